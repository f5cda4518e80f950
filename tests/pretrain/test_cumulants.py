"""Random cumulants: their optimal values on a small world, and that every option counts."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.files import read_json
from protovalue.indicators.cumulants import Cumulants, CumulantSpec
from protovalue.indicators.cumulants import cumulants as networks_of
from protovalue.indicators.precompute import load_indicator
from protovalue.pretrain import cumulants
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import CumulantsConfig
from protovalue.tabular.gridworlds import open_grid
from tests.pretrain.helpers import (
    TRANSITIONS,
    episodes,
    fill_table,
    made,
    pictures,
    successors,
    trained,
    two_episodes,
    walks,
)

END, GAMMA = 15, 0.8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return walks(tmp_path_factory.mktemp("mdp") / "set", successors(open_grid(4, 4)), 300, 20, ends=(END,))


@pytest.fixture
def config(data: Dataset, tmp_path: Path) -> CumulantsConfig:
    return CumulantsConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture="minatar", steps=1000, batch_size=64,
        learning_rate=2e-3, tasks=4, tasks_per_module=2, gamma=GAMMA, target_ema=0.9, normalize="yes", threads=1,
    )  # fmt: skip


@pytest.fixture
def few(tmp_path: Path) -> Dataset:
    return two_episodes(tmp_path / "few")


def test_heads_start_at_the_value_of_a_constant(few: Dataset, config: CumulantsConfig) -> None:
    """The mean of f(x') - f(x) over 4 transitions, one of which ends: v = c + 0.8 * 3/4 v."""
    method = made(replace(config, data=(few.folders[0].path,), head_start="mean", unit="none"), few)
    values = method.tasks.of(torch.from_numpy(pictures(np.arange(3)))[:, None]).numpy()  # (3 states, m)
    mean = sum(values[after] - values[x] for x, _, after, _ in TRANSITIONS) / 4
    np.testing.assert_allclose(method.heads.bias.detach().numpy(), [mean / (1 - 0.8 * 0.75)] * 2, atol=1e-6)


@pytest.mark.parametrize("unit", ["deviation", "none"])
@pytest.mark.parametrize("backup", ["mean", "max"])
def test_loss_by_hand(
    few: Dataset,
    table: str,
    tmp_path: Path,
    backup: Literal["mean", "max"],
    unit: Literal["deviation", "none"],
) -> None:
    """Cumulants 3 (f(x') - f(x)), perhaps in deviations of f over all six states, and each transition's target."""
    config = CumulantsConfig(
        out=tmp_path / "run", data=(few.folders[0].path,), architecture=table, tasks=2, scale=3.0, unit=unit, gamma=0.5,
        backup=backup, batch_size=8,
    )  # fmt: skip
    method = made(config, few)
    f = method.tasks.of(torch.from_numpy(pictures(np.arange(3))[:, None])).numpy().astype(float)  # (n, m)
    deviation = np.std(f[[0, 1, 2, 2, 0, 1]], axis=0) if unit == "deviation" else np.ones(2)
    psi, behind = np.random.default_rng(0).normal(size=(2, 3, 2, 2))  # [state][task][action] of network and target
    fill_table(method.heads, psi)
    fill_table(method.target["heads"], behind)
    loss, logged = method.loss(method.sample(5))
    errors, cumulants = [], []
    for index in method.sampler.indices(5):
        x, a, after, terminal = TRANSITIONS[index]
        for task in range(2):
            first, second = behind[after][task]
            following = (first + second) / 2 if backup == "mean" else max(first, second)
            cumulants.append(3 * (f[after][task] - f[x][task]) / deviation[task])
            errors.append(cumulants[-1] + (0.0 if terminal else 0.5 * following) - psi[x][task][a])
    assert loss.item() == pytest.approx(np.mean(np.square(errors)), rel=1e-5)
    assert logged["td_error_std"].item() == pytest.approx(np.std(errors, ddof=1), rel=1e-5)
    assert logged["cumulant_std"].item() == pytest.approx(np.std(cumulants, ddof=1), rel=1e-5)


def test_a_network_that_is_constant_on_the_data_gives_no_reward(
    table: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One state for ever: its cumulants are 0 and not 0 / 0."""
    data = episodes(tmp_path / "still", ((0, 0, 0, 0), (0, 0, 0), (0, 0, 0), End.TERMINATED))
    method = made(CumulantsConfig(out=tmp_path / "run", data=(tmp_path / "still",), architecture=table, tasks=3), data)
    assert method.sample(0)["reward"].tolist() == [[0, 0, 0]] * 256
    assert "3 of 3 networks are constant" in caplog.text


def test_the_networks_are_what_the_config_says(
    few: Dataset, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def recorded(data: Any, spec: Any, *rest: Any) -> Cumulants:
        seen.append((spec, rest))
        return networks_of(data, spec, *rest)

    monkeypatch.setattr(cumulants, "cumulants", recorded)
    base = CumulantsConfig(out=tmp_path / "run", data=(few.folders[0].path,), architecture=table, tasks=3, seed=4)
    made(replace(base, cumulant_seed=0, tasks_per_module=2, cache=tmp_path / "own"), few)
    made(replace(base, preset="paper"), few)
    assert [one[0] for one in seen] == [CumulantSpec(3, 0, True, 2), CumulantSpec(3, 4, False, 10)]
    assert seen[0][1] == (tmp_path / "own", "cpu")


@pytest.mark.parametrize(("encoder", "accuracy"), [("minatar", 0.15), ("table", 0.01)])
def test_it_finds_the_optimal_values_of_its_cumulants(
    data: Dataset, config: CumulantsConfig, table: str, encoder: str, accuracy: float
) -> None:
    """Value iteration over the 16 states, with f from the networks saved with the run; a table can be exact."""
    if encoder == table:
        config = replace(config, architecture=table, learning_rate=0.3, adam_epsilon=0.1, target_ema=0.8)
    method = trained(config, data)
    frames = torch.from_numpy(pictures(np.arange(16))[:, None])
    networks: Any = load_indicator(config.out / "cumulants").networks
    f = networks(frames).numpy() / method.tasks.deviation  # (n, m), in units of the deviation
    after = successors(open_grid(4, 4))
    going_on = (np.arange(16) != END)[:, None]
    exact = np.zeros((4, 16, 4))  # (A, n, m)
    for _ in range(200):  # error 0.8^200 < 1e-19
        exact = f[after] - f + GAMMA * (going_on * exact.max(axis=0))[after]
    with torch.no_grad():
        learned = method.heads.all_actions(method.encoder(frames)).numpy().transpose(2, 0, 1)
    inside = np.arange(16) != END
    assert exact[:, inside].std() > 0.5, "values are as large as s f / deviation"
    assert np.abs(learned - exact)[:, inside].max() < accuracy
    saved = read_json(config.out / "cumulants" / "indicator.json")["deviation"]
    np.testing.assert_allclose(saved, method.tasks.deviation)


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": 5},
        {"scale": 2.0},
        {"unit": "none"},
        {"normalize": "no"},
        {"tasks_per_module": 1},
        {"backup": "mean"},
        {"gamma": 0.5},
        {"target_ema": 0.5},
        {"cumulant_seed": 9},
        {"seed": 1},
    ],
    ids=str,
)
def test_every_option_changes_the_result(config: CumulantsConfig, tmp_path: Path, change: dict[str, Any]) -> None:
    short = replace(config, steps=20)
    pretrain(short, quiet=True)
    pretrain(replace(short, out=tmp_path / "other", **change), quiet=True)
    first, second = ((path / "encoder" / "model.safetensors").read_bytes() for path in (short.out, tmp_path / "other"))
    assert first != second
