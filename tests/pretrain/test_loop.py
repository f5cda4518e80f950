"""The pretraining loop: exact resumption, the encoder folder, mistakes, and that every option changes something."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from protovalue.cli import main
from protovalue.data import format as fmt
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Dataset, open_dataset
from protovalue.data.sampler import Prefetcher, Sampler
from protovalue.encoder import load_encoder
from protovalue.errors import UserError
from protovalue.files import read_json, size_and_crc, write_json
from protovalue.indicators.precompute import load_indicator
from protovalue.pretrain import loop, trainer
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import CONFIGS, PvnConfig, RandomConfig, RewardConfig
from protovalue.pretrain.methods import method_class, method_names
from protovalue.pretrain.pvn import ProtoValueNetwork
from protovalue.pretrain.trainer import Trainer
from protovalue.runs import read_checkpoint, read_metrics, read_run
from tests.data.helpers import forge, made_up, manifest, write


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("d") / "set"
    collect(CollectConfig("minatar/breakout", path, steps=900), quiet=True)
    return path


@pytest.fixture
def config(data: Path, tmp_path: Path) -> PvnConfig:
    return PvnConfig(
        out=tmp_path / "run", data=(data,), tasks=7, steps=23, batch_size=16, checkpoint_every=5, log_every=3, threads=1
    )


def weights(run: Path) -> bytes:
    return (run / "encoder" / "model.safetensors").read_bytes()


def numbers(run: Path) -> list[Any]:
    return [{k: v for k, v in line.items() if k not in ("time", "samples_per_second")} for line in read_metrics(run)]


class Killed(BaseException):
    """Stands for kill -9 between two steps: nothing is written after it."""


LEARNING = [name for name in method_names() if name != "random"]
KILLS = [("pvn", [1]), ("pvn", [4, 5]), ("pvn", [23]), *((name, [6, 14, 22]) for name in LEARNING)]


@pytest.mark.parametrize(("name", "kills"), KILLS, ids=str)
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(
    config: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kills: Any
) -> None:
    """Killed after the given steps, each time resumed from the checkpoint before, every 5 steps."""
    cls = method_class(name)
    config = cls.Config(**{field.name: getattr(config, field.name) for field in fields(PretrainConfig)})
    config, kills, step = replace(config, method=name), list(kills), 0
    whole = replace(config, out=tmp_path / "whole")
    pretrain(whole, quiet=True)
    real, restore = cls.after_step, Trainer.restore

    def restored(self: Any, checkpoint: Any) -> None:
        nonlocal step
        restore(self, checkpoint)
        step = self.taken

    def counted(self: Any) -> None:
        nonlocal step
        real(self)
        step += 1
        if kills and step == kills[0]:
            kills.pop(0)
            raise Killed

    monkeypatch.setattr(Trainer, "restore", restored)
    monkeypatch.setattr(cls, "after_step", counted)
    while kills:
        with pytest.raises(Killed):
            pretrain(config, quiet=True)
        step = 0  # unless a checkpoint says otherwise
    pretrain(config, quiet=True)
    assert step == 23
    assert weights(config.out) == weights(whole.out)
    assert numbers(config.out) == numbers(whole.out)
    last = "checkpoints/step-000000000023/tensors.safetensors"
    assert (config.out / last).read_bytes() == (whole.out / last).read_bytes()


def test_killed_with_9_on_the_command_line_and_repeated(data: Path, tmp_path: Path) -> None:
    flags = f"--data {data} --tasks 5 --steps 400 --batch-size 8 --checkpoint-every 20 --threads 1 --cache {tmp_path}/c"
    command = [sys.executable, "-m", "protovalue.cli", "pretrain", *flags.split()]
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    process = subprocess.Popen([*command, "--out", str(tmp_path / "cut")], stderr=subprocess.DEVNULL)
    while not list((tmp_path / "cut").glob("checkpoints/step-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cut" / "done.json").exists()
    subprocess.run([*command, "--out", str(tmp_path / "cut")], check=True, capture_output=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_ctrl_c_saves_and_the_same_command_continues(
    config: PvnConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain(replace(config, out=tmp_path / "whole"), quiet=True)
    real = ProtoValueNetwork.after_step

    def interrupted(self: Any) -> None:
        real(self)
        if int(self.target.steps) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ProtoValueNetwork, "after_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pretrain(config, quiet=True)
    assert (config.out / "checkpoints" / "step-000000000007").is_dir()
    monkeypatch.undo()
    pretrain(replace(config, cache=tmp_path / "cache" / "indicators"), quiet=True)
    assert weights(config.out) == weights(tmp_path / "whole")


def test_more_steps_continue_a_finished_run(config: PvnConfig, tmp_path: Path) -> None:
    pretrain(replace(config, out=tmp_path / "whole", steps=30), quiet=True)
    pretrain(config, quiet=True)
    pretrain(replace(config, steps=30), quiet=True)
    assert weights(config.out) == weights(tmp_path / "whole")


def test_repeating_a_finished_run_changes_nothing(config: PvnConfig) -> None:
    pretrain(config, quiet=True)
    before = weights(config.out)
    pretrain(config, quiet=True)
    assert weights(config.out) == before
    assert read_run(config.out)["done"]["steps"] == 23


def test_a_run_says_where_it_is_unless_it_is_to_be_quiet(
    config: PvnConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, more = replace(config, steps=2), replace(config, steps=3)
    finished = f"{config.out}: finished before, with the same settings; it is left as it is"
    for quiet, given, lines in (
        (True, few, []),
        (True, more, []),
        (True, more, []),
        (False, more, [finished]),
        (False, replace(config, steps=4), [f"{config.out}: continuing at step 3 of 4", "4/4 steps"]),
        (False, replace(few, out=tmp_path / "other"), ["2/2 steps"]),
    ):
        pretrain(given, **({"quiet": True} if quiet else {}))
        printed = capsys.readouterr()
        said = [line for line in printed.err.splitlines() if not line.startswith("indicators")]
        assert len(said) == len(lines), said
        assert all(expected in line for line, expected in zip(said, lines, strict=True)), said
        assert printed.out == ""


def test_an_encoder_that_was_damaged_after_the_end_is_written_again(
    config: PvnConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    few = replace(config, steps=2)
    pretrain(few, quiet=True)
    whole = weights(few.out)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_encoder", lambda *_: (_ for _ in ()).throw(Killed()))
        pretrain(few, quiet=True)  # which is good is not written
    assert caplog.text == ""
    path = few.out / "encoder" / "model.safetensors"
    path.write_bytes(whole[:-1])
    pretrain(few, quiet=True)
    assert weights(few.out) == whole
    assert f"{path}: damaged" in caplog.text
    assert "; it is written again" in caplog.text


def test_a_finished_run_may_name_its_rollouts_again_and_no_others(config: PvnConfig, tmp_path: Path) -> None:
    held, other = tmp_path / "held", tmp_path / "other"
    for path, seed in ((held, 9), (other, 8)):
        collect(CollectConfig("minatar/breakout", path, steps=150, seed=seed), quiet=True)
    given = replace(config, steps=2, holdout=(held,))
    pretrain(given, quiet=True)
    done = read_run(config.out)["done"]
    assert "holdout_correlation_mean" in done
    for again in (given, replace(given, holdout=())):
        pretrain(again, quiet=True)
        assert read_run(config.out)["done"] == done
    with pytest.raises(UserError, match=f"^--holdout: found {other}, expected {held}, with which {config.out} was fin"):
        pretrain(replace(given, holdout=(other,)), quiet=True)


def test_small_frames_of_any_environment_get_the_small_encoder(config: PvnConfig, tmp_path: Path) -> None:
    like = manifest(frame_shape=(12, 14))
    write(tmp_path / "small", [made_up(5, np.random.default_rng(0), like=like)], frame_shape=(12, 14))
    pretrain(replace(config, data=(tmp_path / "small",), steps=1), quiet=True)
    assert read_run(config.out)["config"]["architecture"] == "minatar"


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"indicator_seed": 9},
        {"tasks": 8},
        {"indicator": "hash"},
        {"backup": "max"},
        {"threshold": "sgd", "burn_in": 300},
        {"gamma": 0.5},
        {"proportion": 0.2},
        {"normalize": "no"},
        {"tasks_per_module": 3},
        {"target_ema": 0.5},
        {"target_every": 4},
        {"learning_rate": 3e-3},
        {"adam_epsilon": 1e-3},
        {"batch_size": 12},
        {"width": 2},
        {"precision": "bfloat16"},
        {"preset": "paper", "width": 1, "learning_rate": 1e-3, "steps": 23},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_option_changes_the_result_and_refuses_to_resume_with_another(
    config: PvnConfig, tmp_path: Path, change: dict[str, Any]
) -> None:
    pretrain(config, quiet=True)
    pretrain(replace(config, out=tmp_path / "other", **change), quiet=True)
    assert weights(config.out) != weights(tmp_path / "other")
    with pytest.raises(UserError, match=f"another config: .*{next(iter(change))} "):
        pretrain(replace(config, **change), quiet=True)


@pytest.mark.parametrize(("given", "recorded", "features"), [("0.25", 0.25, 32), ("1.0", 1, 128)])
def test_a_width_may_be_a_fraction(data: Path, tmp_path: Path, given: str, recorded: float, features: int) -> None:
    words = f"pretrain --data {data} --out {tmp_path}/run --steps 1 --batch-size 4 --tasks 10 --width {given}"
    assert main(words.split()) == 0
    assert load_encoder(tmp_path / "run").num_features == features
    for found in (read_run(tmp_path / "run")["config"], read_json(tmp_path / "run" / "encoder" / "config.json")):
        assert (found["width"], type(found["width"])) == (recorded, type(recorded))


@pytest.mark.parametrize("change", [{"memory": 1}, {"log_every": 50}, {"checkpoint_every": 4}], ids=str)
def test_what_must_not_change_the_result_does_not(config: PvnConfig, tmp_path: Path, change: dict[str, Any]) -> None:
    pretrain(config, quiet=True)
    pretrain(replace(config, out=tmp_path / "other", **change), quiet=True)
    assert weights(config.out) == weights(tmp_path / "other")


def test_no_tasks_is_the_random_initialisation(config: PvnConfig, tmp_path: Path) -> None:
    pretrain(PvnConfig(out=config.out, data=config.data, tasks=0), quiet=True)
    pretrain(RandomConfig(out=tmp_path / "a", data=config.data), quiet=True)
    pretrain(RandomConfig(out=tmp_path / "b", env="minatar/breakout"), quiet=True)
    assert weights(config.out) == weights(tmp_path / "a") == weights(tmp_path / "b")
    pretrain(RandomConfig(out=tmp_path / "c", env="minatar/breakout", seed=1), quiet=True)
    assert weights(tmp_path / "c") != weights(tmp_path / "b")


def test_logged_numbers(config: PvnConfig) -> None:
    pretrain(config, quiet=True)
    lines = read_metrics(config.out)
    assert [line["step"] for line in lines] == [3, 6, 9, 12, 15, 18, 21, 23]
    expected = {
        "loss", "td_error_std", "prediction_mean", "gradient_norm", "feature_norm", "feature_rms", "dead_units",
        "effective_rank", "indicator_proportion", "samples_per_second",
    }  # fmt: skip
    assert expected <= set(lines[0])
    assert all(np.isfinite(value) for line in lines for value in line.values())
    assert 1 <= lines[-1]["effective_rank"] <= 128
    assert lines[0]["gradient_norm"] > 0


def test_the_rate_is_samples_over_time(config: PvnConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by two seconds whenever it is read: once for a log line, once after it."""
    ticks = iter(range(0, 2000, 2))
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    pretrain(config, quiet=True)
    rates = [line["samples_per_second"] for line in read_metrics(config.out)]
    assert rates == [3 * 16 / 2] * 7 + [2 * 16 / 2]
    assert "samples_per_second" not in read_run(config.out)["done"]


@pytest.mark.parametrize("limit", [0.0, 0.01, 1e6])
def test_gradients_are_scaled_down_to_the_limit(
    config: PvnConfig, monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    """After one step Adam's first moment is a tenth of the gradient that it was given."""
    monkeypatch.setattr(ProtoValueNetwork, "max_gradient_norm", limit)
    pretrain(replace(config, steps=1), quiet=True)
    (line,) = read_metrics(config.out)
    tensors = read_checkpoint(config.out).tensors
    moments = [array for name, array in tensors.items() if name.endswith("exp_avg")]
    given = 10 * np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in moments))
    assert line["gradient_norm"] > 0.02, "before it is scaled"
    assert given == pytest.approx(0.01 if limit == 0.01 else line["gradient_norm"], rel=1e-3)


def test_half_of_the_memory_is_for_frames_and_half_for_batches(
    config: PvnConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    load = Dataset.load

    def noted(self: Any, budget: Any) -> bool:
        asked.append(budget)
        return load(self, budget)

    monkeypatch.setattr(Dataset, "load", noted)

    class Recorded(Prefetcher[Any]):
        def __init__(self, make: Any, steps: Any, item_bytes: Any, budget: Any) -> None:
            asked.append((steps, item_bytes, budget))
            super().__init__(make, steps, item_bytes, budget)

    monkeypatch.setattr(trainer, "Prefetcher", Recorded)
    pretrain(replace(config, memory=6), quiet=True)
    assert asked == [3 << 20, (range(23), 16 * 2 * 400, 3 << 20)]


@pytest.mark.parametrize("wanted", [True, False])
def test_the_encoder_is_compiled_where_that_is_asked_for(
    config: PvnConfig, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(type(self).__name__))
    pretrain(replace(config, steps=1, compile=wanted), quiet=True)
    assert compiled == ["MinatarEncoder"] * wanted


def test_freed_memory_is_kept(config: PvnConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of a step's time: docs/decisions.md."""
    asked = []
    monkeypatch.setattr(loop, "keep_freed_memory", lambda: asked.append(True))
    pretrain(replace(config, steps=1), quiet=True)
    assert asked == [True]


def test_threads_are_set_and_recorded(config: PvnConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    pretrain(replace(config, steps=1, threads=5), quiet=True)
    assert (asked, read_run(config.out)["config"]["threads"]) == ([5], 5)
    chosen = replace(config, out=tmp_path / "chosen", steps=1, threads=None)
    pretrain(chosen, quiet=True)
    assert (asked, read_run(chosen.out)["config"]["threads"]) == ([5, 1], 1), "the network is small"


def test_the_command_says_what_there_is_now(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, flags = tmp_path / "run", "--tasks 3 --steps 1200 --batch-size 4 --log-every 600 --threads 1"
    assert main(f"collect minatar/breakout --steps 200 --seed 9 --out {tmp_path}/other".split()) == 0
    capsys.readouterr()
    assert main(f"pretrain --data {data} --out {run} {flags} --holdout {tmp_path}/other".split()) == 0
    done = read_run(run)["done"]
    names = ("correlation mean", "correlation min", "prediction mean", "rollout mean")
    assert capsys.readouterr().out.splitlines() == [
        f"{run}/encoder: 128 features, effective rank {done['effective_rank']:.1f}",
        f"1,200 steps, loss {done['loss']:.5f}; curves: tensorboard --logdir {run}",
        *(f"holdout {name}: {done['holdout_' + name.replace(' ', '_')]:.3f}" for name in names),
    ]


def test_the_card_by_hand(config: PvnConfig, data: Path, tmp_path: Path) -> None:
    """What was made, how to load it, the command that makes it again, the data, and the numbers."""
    folder = tmp_path / "a folder"
    pretrain(replace(config, out=folder, steps=2, target_every=3), quiet=True)
    lines = (folder / "encoder" / "README.md").read_text().splitlines()
    assert lines[0] == "# Encoder for minatar/breakout: pvn"
    assert lines[2:4] == [
        "128 features of a minatar encoder of width 1, trained for",
        "2 steps with the method `pvn` of protovalue.",
    ]
    (command,) = [line for line in lines if line.startswith("pvn pretrain")]
    assert command == (
        f"pvn pretrain --out '{folder}' --data {data} --architecture minatar --width 1 --no-layer-norm "
        "--steps 2 --batch-size 16 --learning-rate 0.001 --adam-epsilon 1e-08 --precision float32 --threads 1 "
        "--log-every 3 --checkpoint-every 5 --tasks 7 --proportion 0.05 --normalize yes --tasks-per-module 10 "
        "--rni-network dqn --rni-output linear --gamma 0.99 --target-every 3 --head-start zero"
    )
    start = lines.index("```python")
    assert lines[start + 1 : start + 6] == [
        "import protovalue",
        "",
        'encoder = protovalue.load_encoder("path/to/this/folder")',
        "features = encoder.features(observations)  # (N, stack, *frame_shape) uint8 or bool -> (N, k)",
        "```",
    ]
    opened, done = open_dataset(data), read_run(folder)["done"]
    episodes = f"900 transitions in {opened.num_episodes} episodes of minatar/breakout, checksum"
    start = lines.index("## Data")
    assert lines[start + 2 : start + 4] == [episodes, f"`{opened.checksum}`."]
    start = lines.index("## Numbers")
    rows = [f"| {name} | {value:.6g} |" for name, value in done.items() if isinstance(value, int | float)]
    assert lines[start + 2 :] == ["| | |", "|---|---|", *rows]
    assert f"| loss | {done['loss']:.6g} |" in rows


def test_the_encoder_folder_stands_alone(config: PvnConfig, data: Path) -> None:
    pretrain(config, quiet=True)
    encoder = load_encoder(config.out)
    assert (encoder.num_features, encoder.observation_shape) == (128, (1, 10, 10, 4))
    obs = Sampler(open_dataset(data), 8, 0).batch(0).obs
    features = encoder.features(obs)
    assert features.shape == (8, 128)
    assert torch.equal(features, encoder(torch.from_numpy(obs.copy())))
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert torch.equal(load_encoder(config.out / "encoder").features(obs), features)
    card = (config.out / "encoder" / "README.md").read_text()
    assert "900 transitions" in card
    assert "pvn pretrain" in card
    assert "--tasks 7" in card
    about = json.loads((config.out / "encoder" / "config.json").read_text())
    assert (about["encoder"], about["width"], about["num_features"]) == ("minatar", 1, 128)


def test_the_indicators_are_saved_with_the_run(config: PvnConfig, data: Path) -> None:
    pretrain(config, quiet=True)
    opened = open_dataset(data)
    found = load_indicator(config.out / "indicator")
    obs = torch.from_numpy(Sampler(opened, 1, 0).transitions(np.arange(900)).obs.copy())
    proportions = found.rewards(obs).float().mean(0)
    assert found.num_tasks == 7
    assert float(proportions.min()) == pytest.approx(read_run(config.out)["done"]["proportion_min"])


def test_damaged_indicators_of_a_run_that_goes_on_are_written_again(config: PvnConfig) -> None:
    pretrain(config, quiet=True)
    path = config.out / "indicator" / "indicator.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    pretrain(replace(config, steps=24), quiet=True)
    assert path.read_bytes() == whole


def test_a_non_finite_loss_stops_with_step_and_checkpoint(config: PvnConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = ProtoValueNetwork.loss, []

    def explodes(self: Any, sample: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        calls.append(int(self.target.steps))
        loss, logged = real(self, sample)
        return (loss * torch.inf if int(self.target.steps) == 12 else loss), logged

    monkeypatch.setattr(ProtoValueNetwork, "loss", explodes)
    with pytest.raises(UserError, match="the loss of step 13 is not finite; the checkpoint of step 10 is good"):
        pretrain(config, quiet=True)
    assert calls == list(range(13)), "at once"


def test_a_loss_that_is_not_finite_names_the_data_set(config: PvnConfig, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "set")
    rewards = np.fromfile(tmp_path / "set/rewards.bin", fmt.REWARD)
    forge(tmp_path / "set", rewards=np.full_like(rewards, np.nan))
    given = {field.name: getattr(config, field.name) for field in fields(PretrainConfig)}
    learned = RewardConfig(**{**given, "method": "reward", "data": (tmp_path / "set",)})
    with pytest.raises(UserError, match=f"step 1 is not finite; .* look at the rewards of {tmp_path / 'set'}$"):
        pretrain(learned, quiet=True)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("adam.0.exp_avg", lambda array: array[..., :1].copy(), "adam.0: found"),
        ("adam.0.exp_avg_sq", lambda array: array.astype(np.int32), "adam.0: found"),
        ("adam.1.step", lambda array: np.repeat(array, 2), "adam.1: found"),
        ("adam.99.step", lambda array: np.zeros(()), "list index out of range"),
        ("adam.0.exp_avg", lambda array: array * np.nan, "adam.0.exp_avg: found numbers that are not finite"),
        ("method.encoder.dense.weight", lambda array: array + np.inf, "dense.weight: found numbers that are not"),
    ],
)
def test_a_checkpoint_whose_tensors_do_not_fit_is_named(
    config: PvnConfig, name: str, change: Any, expected: str
) -> None:
    """All checksums hold. Adam's fused step would read moments beyond their ends."""
    pretrain(replace(config, steps=2), quiet=True)
    (checkpoint,) = (config.out / "checkpoints").iterdir()
    path = checkpoint / "tensors.safetensors"
    tensors = load_file(path)
    save_file({**tensors, name: np.ascontiguousarray(change(tensors.get(name, np.zeros(()))))}, path)
    size, crc = size_and_crc(path)
    write_json(checkpoint / "state.json", {**read_json(checkpoint / "state.json"), "bytes": size, "crc32": crc})
    with pytest.raises(UserError) as raised:
        pretrain(config, quiet=True)
    assert str(raised.value).startswith(f"{checkpoint}: damaged: it does not hold the state of such a run (")
    assert expected in str(raised.value)


def test_damaged_or_missing_encoders(config: PvnConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no encoder here: config.json is missing"):
        load_encoder(tmp_path / "nowhere")
    monkeypatch.setattr(loop, "save_encoder", lambda *_: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        pretrain(config, quiet=True)
    with pytest.raises(UserError, match="no encoder here: the run is not finished"):
        load_encoder(config.out)
    monkeypatch.undo()
    pretrain(replace(config, cache=tmp_path / "cache" / "indicators"), quiet=True)
    path = config.out / "encoder" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match="model.safetensors: damaged"):
        load_encoder(config.out)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--out R", "--data: missing; method pvn learns from a data set"),
        ("--out R --method random", "--env or --data: missing"),
        ("--out R --method pnv", "unknown method 'pnv': did you mean 'pvn'?"),
        ("--out R --method loop", "unknown method 'loop'"),
        ("--out R --method mine.py", "--method: found no file mine.py, expected a Python file"),
        ("--out R --data nowhere", "nowhere: not a data set"),
        ("--out R --method random --tasks 3", "--tasks"),
        ("--out R --data D --proportion 0", "--proportion: found 0.0, expected more than 0 and less than 1"),
        ("--out R --data D --proportion 1.5", "--proportion"),
        ("--out R --data D --gamma 1", "--gamma: found 1.0, expected at least 0 and less than 1"),
        ("--out R --data D --architecture nature --env minatar/breakout", "--env: found together with --data"),
        ("--out R --data D --indicator hash --normalize yes", "--normalize: found yes, expected it only with"),
        ("--out R --data D --indicator hash --tasks-per-module 5", "--tasks-per-module"),
        ("--out R --data D --burn-in 500", "--burn-in: found 500, expected it only with --threshold sgd"),
        ("--out R --data D --target-every 5 --target-ema 0.9", "--target-ema: found 0.9, expected either it or"),
        ("--out R --data D --indicator hsah", "unknown indicator 'hsah': did you mean 'hash'?"),
        ("--out R --data D --device cuda", "--device: found cuda, expected cpu"),
        (
            "--out R --data D --device cpu --precision tf32 --steps 1 --batch-size 4",
            "--precision: found tf32 on cpu, expected float32 or",
        ),
    ],
)
def test_mistakes(
    flags: str,
    message: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", *flags.replace("--data D", f"--data {data}").split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_method_of_another_data_set_is_refused(config: PvnConfig, tmp_path: Path) -> None:
    pretrain(config, quiet=True)
    collect(CollectConfig("minatar/breakout", tmp_path / "d2", steps=300, seed=5), quiet=True)
    with pytest.raises(UserError, match="another config: data_checksum"):
        pretrain(replace(config, data=(tmp_path / "d2",)), quiet=True)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((6,), r"found \(2, 6\), expected \(stack, H, W\)"), ((2, 3), r"found \(2, 2, 3\), expected frames of at least")],
)
def test_observations_that_no_encoder_takes_are_named_with_their_data_set(
    config: PvnConfig, tmp_path: Path, shape: tuple[Any, ...], expected: str
) -> None:
    like = manifest(frame_shape=shape)
    write(tmp_path / "flat", [made_up(5, np.random.default_rng(0), like=like)], frame_shape=shape)
    with pytest.raises(UserError, match=f"^{tmp_path / 'flat'}: observation shape: {expected}"):
        pretrain(replace(config, data=(tmp_path / "flat",)), quiet=True)


def test_every_method_has_a_help_text_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(method_names()) == set(CONFIGS)
    for name in method_names():
        assert issubclass(method_class(name).Config, PretrainConfig)
        with pytest.raises(SystemExit):
            main(["pretrain", "--method", name, "--help"])
        assert "Example: pvn pretrain" in capsys.readouterr().out
