"""Every method in several processes: the same batch, and the gradient of the whole batch, to rounding."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.distributed.group import ranks
from protovalue.indicators import precompute
from protovalue.indicators.cumulants import CumulantSpec, cumulants
from protovalue.indicators.precompute import PASS_BATCH, IndicatorSpec, States, indicator_rewards
from protovalue.nets.batch_norm import BatchNorm
from protovalue.presets import resolved
from protovalue.pretrain.methods import method_class, method_names
from protovalue.pretrain.trainer import Trainer
from protovalue.tabular.gridworlds import open_grid
from tests.distributed.ranks import Arrays, in_ranks
from tests.pretrain.helpers import successors, walks
from tests.pretrain.test_pinned import PINNED

ALONE = {"random"}  # learns nothing
VARIANTS: list[tuple[str, Any]] = [(name, settings) for name, settings, *_ in PINNED if name not in ALONE] + [
    ("spr", {"channels": 4, "horizon": 3, "center": "no", "shift": 1, "intensity": 0.1, "dropout": 0.3}),
    ("spr", {"channels": 4, "horizon": 3, "shift": 1, "dropout": 0.3, "precision": "bfloat16"}),
    ("pvn", {"tasks": 7, "head_start": "mean", "recompute_activations": True}),
    ("tdjepa", {"dimensions": 7, "inverse": 0.5, "second_map": "own"}),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Walks that end at different times, so that processes have different numbers of steps that exist."""
    folder = tmp_path_factory.mktemp("walk") / "set"
    return walks(folder, successors(open_grid(4, 4)), 60, 9, reward=lambda state: state / 10, ends=(15, 3))


def made(data: Dataset, folder: Path, name: str, settings: Mapping[str, Any]) -> Any:
    own: dict[str, Any] = {"cache": folder / "cache"} if name in ("pvn", "cumulants") else {}
    config = method_class(name).Config(
        out=folder, data=(data.folders[0].path,), method=name, architecture="minatar", batch_size=16, threads=1,
        **own, **settings,
    )  # fmt: skip
    return method_class(name)(resolved(config, data.env_id), data, data.observation_shape, "cpu")


def stepped(data: Dataset, folder: Path) -> Callable[[], Arrays]:
    """Return a function that takes a step with every method, and tells its sample, gradients and what it learned."""

    def found() -> Arrays:
        told: dict[str, Any] = {}
        for number, (name, settings) in enumerate(VARIANTS):
            method = made(data, folder, name, settings)
            trainer = Trainer(method, None, None, "cpu", quiet=True)
            if method.config.recompute_activations:
                method.encoder.recompute_activations()
            told |= {f"{number} sample {key}": value for key, value in method.sample(0).items()}
            trainer.step(method.sample(0))
            told |= {
                f"{number} gradient {key}": one.grad for key, one in method.named_parameters() if one.requires_grad
            }
            told |= {f"{number} buffer {key}": one for key, one in method.named_buffers()}
            metrics = trainer.metrics()
            told |= {f"{number} logged {key}": metrics[key] for key in metrics if key != "samples_per_second"}
            told[f"{number} bytes"] = method.sample_bytes()
        return told

    return found


@pytest.fixture(scope="module")
def steps(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, np.ndarray]]]:
    """What one process, two and four found."""
    folder = tmp_path_factory.mktemp("steps")
    for name, settings in VARIANTS:
        made(data, folder, name, settings)  # what is computed once
    return {count: in_ranks(folder / str(count), count, stepped(data, folder)) for count in (1, 2, 4)}


def test_every_method_can_be_shared_out_or_says_that_it_cannot() -> None:
    for name in method_names():
        assert method_class(name).several_processes == (name not in ALONE)
    assert {name for name, _ in VARIANTS} == set(method_names()) - ALONE


@pytest.mark.parametrize("count", [2, 4])
def test_each_process_has_its_rows_of_the_same_batch(steps: Any, count: int) -> None:
    (alone,), several = steps[1], steps[count]
    names = [name for name in alone if " sample " in name]
    assert len(names) > 30
    for name in names:
        assert len(alone[name]) == 16
        assert all(len(one[name]) == 16 // count for one in several)
        np.testing.assert_array_equal(np.concatenate([one[name] for one in several]), alone[name], name)
    for number in range(len(VARIANTS)):
        assert all(one[f"{number} bytes"] * count == alone[f"{number} bytes"] for one in several)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("number", range(len(VARIANTS)), ids=lambda number: str(VARIANTS[number]))
def test_the_gradient_is_that_of_the_whole_batch(steps: Any, count: int, number: int) -> None:
    (alone,), several = steps[1], steps[count]
    half = VARIANTS[number][1].get("precision") == "bfloat16"  # another order of sums is rounded to three digits
    names = [name for name in alone if name.startswith(f"{number} gradient ")]
    sizes = {name: float(np.abs(alone[name]).max()) for name in names}
    # The pinned self-prediction has no way back to its convolutions: of its four channels none is left by the ReLU.
    assert all(sizes.values()) or VARIANTS[number] == ("spr", {"channels": 4, "horizon": 2})
    least = 0.01 * max(sizes.values())  # that of a bias before centring is rounding alone
    for name, size in sizes.items():
        for one in several:
            np.testing.assert_array_equal(one[name], several[0][name], name)  # all take the same step
            assert np.abs(one[name] - alone[name]).max() <= (0.1 if half else 2e-5) * max(size, least), name
    for name in (name for name in alone if name.startswith((f"{number} buffer ", f"{number} logged "))):
        # Damping counts how many gradients are near 0, and of some that should be 0 only rounding is left.
        tolerance = 0.02 if half else 5e-3 if name.endswith(" adam_damping") else 2e-5
        for one in several:
            np.testing.assert_allclose(one[name], alone[name], tolerance, 1e-6, err_msg=name)


def test_batch_normalisation_is_over_all_rows(tmp_path: Path) -> None:
    """Values and gradients of a layer whose rows are in three processes, against PyTorch's own over all of them."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(3, 2, (6, 2, 3, 3)), rng.normal(size=(6, 2, 3, 3))

    def found() -> Arrays:
        rows = ranks().rows(6)
        layer = BatchNorm(2)
        given = torch.tensor(x[rows], dtype=torch.float32, requires_grad=True)
        out = layer(given)
        (out * torch.tensor(weights[rows])).sum().backward()
        assert given.grad is not None
        assert layer.weight.grad is not None
        state = {name: value for name, value in layer.state_dict().items() if "running" in name or "num" in name}
        after = layer.eval()(given[:1])
        return {
            "out": out.detach(),
            "gradient": given.grad,
            "weight": layer.weight.grad,
            "later": after.detach(),
            **state,
        }

    parts, layer = in_ranks(tmp_path, 3, found), torch.nn.BatchNorm2d(2)
    whole = torch.tensor(x, dtype=torch.float32, requires_grad=True)
    out = layer(whole)
    (out * torch.tensor(weights)).sum().backward()
    assert whole.grad is not None
    assert layer.weight.grad is not None
    np.testing.assert_allclose(np.concatenate([one["out"] for one in parts]), out.detach(), atol=1e-5)
    np.testing.assert_allclose(np.concatenate([one["gradient"] for one in parts]), whole.grad, atol=1e-5)
    np.testing.assert_allclose(sum(one["weight"] for one in parts), layer.weight.grad, rtol=1e-4)
    for one in parts:
        np.testing.assert_allclose(one["running_mean"], layer.running_mean, rtol=1e-5)  # type: ignore[arg-type]
        np.testing.assert_allclose(one["running_var"], layer.running_var, rtol=1e-5)  # type: ignore[arg-type]
        assert one["num_batches_tracked"] == 1
    np.testing.assert_allclose(parts[1]["later"], layer.eval()(whole[2:3]).detach(), atol=1e-5)


def test_the_indicator_pass_is_shared_out(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process scores every third batch of states; what is written is what one process writes, byte for byte."""
    monkeypatch.setattr(precompute, "PASS_BATCH", 16)
    seen: list[int] = []
    real = States.observations

    def noted(self: States, first: int, last: int) -> torch.Tensor:
        seen.append(first)
        return real(self, first, last)

    monkeypatch.setattr(States, "observations", noted)
    specs = [
        IndicatorSpec("rni", 5, 0.3, 1),
        IndicatorSpec("hash", 5, 0.3, 1),
        IndicatorSpec("rni", 3, 0.3, 1, "sgd", 9),
        IndicatorSpec("patches", 5, 0.3, 1, arrival=True),
        IndicatorSpec("patches", 5, 0.3, 1, changes=True),
    ]
    assert PASS_BATCH == 512

    def found(cache: Path) -> Arrays:
        seen.clear()
        rewards = [indicator_rewards(data, spec, cache, quiet=True) for spec in specs]
        random = cumulants(data, CumulantSpec(4, 2), cache, quiet=True)
        first = list(seen)
        again = indicator_rewards(data, specs[0], cache, quiet=True)  # it is there: nothing is scored
        assert seen == first
        np.testing.assert_array_equal(again.bits, rewards[0].bits)
        return {"values": random.values, "seen": first, **{f"bits {n}": one.bits for n, one in enumerate(rewards)}}

    (alone,) = in_ranks(tmp_path / "1", 1, lambda: found(tmp_path / "a"))
    several = in_ranks(tmp_path / "3", 3, lambda: found(tmp_path / "b"))
    for one in several:
        for name in set(alone) - {"seen"}:
            np.testing.assert_array_equal(one[name], alone[name])
    places = [one["seen"].tolist() for one in several]
    assert all(start // 16 % 3 == rank for rank in range(3) for start in places[rank])
    assert sorted(itertools.chain(*places)) == sorted(alone["seen"].tolist())
    files = {path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert {path.name for path in files} >= {"bits.bin", "values.bin"}
    for path in files:
        if path.name != "lock":
            assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path
