"""Files whose checksums hold and whose contents do not: every command says one line, and nothing is a traceback."""

import copy
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.evaluate.episodes import load_agent
from protovalue.files import json_line, read_json, read_lines, size_and_crc, write_json
from protovalue.online.config import OnlineConfig
from protovalue.online.linear_dqn import prepare, with_environment
from protovalue.presets import resolved
from protovalue.report import summary
from protovalue.report.command import compute
from protovalue.report.config import ReportConfig
from protovalue.report.model import FeatureNumbers, Spread
from protovalue.report.reading import read_results
from protovalue.report.results import EncoderFeatures
from protovalue.report.results_file import write_results
from protovalue.study.command import open_study
from protovalue.study.folder import write_study
from protovalue.study.rates import Rate, rates_file, remember, remembered
from tests.faults.world import STUDY

FEW = 20  # damages of each file
NUMBERS = EncoderFeatures(0, 0, 8, 4.5, 0.5, 0.25)
WRONG: list[Any] = [
    None, True, -1, 0, 3, 10**30, 1 << 40, 0.5, float("nan"), "", "text", "\0", "\ud800", "a" * 5000, [], [[]],
    [1, "a"], {}, {"a": {"b": None}},
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of which every stage was run, and the names of its folders: data, pretrain, online, dqn."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "study.toml").write_text(STUDY)
    study, root, laid_out = open_study(folder / "study.toml", folder / "out")
    for stage in laid_out.stages:
        assert main(list(stage.command[1:])) == 0
    write_study(root, laid_out.fields(study))
    for name in ("data", "pretrain", "online", "dqn"):
        (one,) = (root / name).iterdir()
        (folder / name).symlink_to(one)
    return folder


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Walk over all places of a JSON value."""
    if path[-2:] == ("state", "env"):  # the environments' own
        return
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def mutants(fields: dict[str, Any], count: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is wrong, and fields of which one has another value or is not there."""
    chance, known = random.Random(seed), list(places(fields))
    for _ in range(count):
        path, changed = chance.choice(known), copy.deepcopy(fields)
        *outer, last = path
        place: Any = changed
        for key in outer:
            place = place[key]
        if chance.random() < 0.15:
            del place[last]
            yield f"{path} removed", changed
        else:
            place[last] = chance.choice(WRONG)
            yield f"{path} = {str(place[last])[:30]!r}", changed


def check(file: Path, action: Callable[[], Any], count: int, seed: int) -> int:
    """Do something with a file in many ways wrong; return how often that was refused."""
    whole, refused = read_json(file), 0
    try:
        for what, fields in mutants(whole, count, seed):
            write_json(file, fields)
            try:
                action()
            except UserError as error:
                refused += 1
                assert "\n" not in str(error), what  # noqa: PT017
            except OSError as error:
                refused += 1
                assert error.filename, what  # noqa: PT017
            except BaseException as error:
                raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    finally:
        write_json(file, whole)
    action()
    return refused


def command(words: str, clean: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Return an action that runs a command; what is said after exit code 2 counts as refused."""

    def act() -> None:
        clean()
        code = main(words.split())
        assert code in (0, 2)
        if code:
            raise UserError("exit code 2")

    return act


def test_the_config_of_an_encoder(made: Path) -> None:
    config = OnlineConfig(encoder=str(made / "pretrain"), out=Path("new"))

    def begin() -> None:
        known = with_environment(config)
        prepare(resolved(known, known.env))[0].close()

    assert check(made / "pretrain/encoder/config.json", begin, FEW, 1) > FEW / 6


@pytest.mark.parametrize("kind", ["online", "dqn"])
def test_the_config_of_a_run_that_is_played(made: Path, kind: str) -> None:
    assert check(made / kind / "config.json", lambda: load_agent(made / kind, 1)[0].close(), FEW, 2) > FEW / 10


def test_the_state_of_a_checkpoint_that_is_played(made: Path) -> None:
    (checkpoint,) = (made / "dqn/checkpoints").iterdir()
    check(checkpoint / "state.json", lambda: load_agent(made / "dqn", 1)[0].close(), FEW, 3)


def test_the_state_of_a_checkpoint_from_which_a_run_goes_on(made: Path, tmp_path: Path) -> None:
    kept, run = tmp_path / "kept", tmp_path / "run"
    words = f"online --encoder {made}/pretrain --out {run} --keep-replay --replay-min 5 --steps "
    assert main((words + "8").split()) == 0
    shutil.copytree(run / "checkpoints", kept)
    shutil.copytree(run / "replay", kept / "replay")
    (name,) = (entry.name for entry in kept.iterdir() if entry.name.startswith("step"))

    def back() -> None:
        for entry in (run / "checkpoints").iterdir():
            if entry.name != name:
                shutil.rmtree(entry)
        shutil.copytree(kept / "replay", run / "replay", dirs_exist_ok=True)

    check(run / "checkpoints" / name / "state.json", command(words + "10", back), FEW, 4)


@pytest.mark.parametrize(
    "file",
    ["out/study.json", "online/evaluation.json", "online/config.json", "dqn/config.json", "dqn/random.json",
     "pretrain/encoder/config.json", "pretrain/config.json"],
)  # fmt: skip
@pytest.mark.parametrize("loose", [False, True])
def test_what_a_report_reads(made: Path, file: str, loose: bool) -> None:
    runs = [made / "online", made / "dqn"] if loose else [made / "out"]

    def report() -> None:
        results = read_results(runs)
        scale = summary.scale_of(results)
        summary.per_game(results, scale)
        summary.normalised_scores(results, scale)
        summary.references(results)

    check(made / file, report, FEW, 5)


def test_what_a_file_of_results_says(made: Path, tmp_path: Path) -> None:
    results = read_results([made / "out"])
    spread = Spread(0, 0, 0)
    looked = [FeatureNumbers(results.envs[0], results.methods[0], 1, 8, spread, spread, spread, (NUMBERS,))]
    file, refused = write_results(results, looked, tmp_path / "results.jsonl"), 0
    rows = read_lines(file, lambda row: "").rows
    for what, changed in mutants({"rows": rows}, 6 * FEW, 8):
        left = changed.get("rows")
        lines = [json_line(row) for row in left if isinstance(row, dict)] if isinstance(left, list) else []
        file.write_bytes(b"".join(lines))
        try:
            compute(read_results([file]), ReportConfig(runs=(file,), draws=100), quiet=True)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error), what  # noqa: PT017
        except BaseException as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    assert refused > FEW


@pytest.mark.parametrize("file", ["out/study.json", "online/done.json", "dqn/random.json"])
def test_what_the_state_of_a_study_reads(made: Path, file: str) -> None:
    check(made / file, command(f"study status {made}/study.toml --out {made}/out"), FEW, 6)


def test_rates_that_were_remembered(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROTOVALUE_CACHE", str(tmp_path))
    remember({"a rate": Rate(1.0, 2.0, "here")})
    assert remembered() == {"a rate": Rate(1.0, 2.0, "here")}

    def both() -> None:
        remembered()
        remember({"b": Rate(1.0, 2.0, "")})

    check(rates_file(), both, 3 * FEW, 7)


@pytest.mark.parametrize("name", ["theta", "target", "exp_avg", "step"])
def test_tensors_that_do_not_fit(made: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree((made / "dqn").resolve(), tmp_path / "run")
    (checkpoint,) = (tmp_path / "run/checkpoints").iterdir()
    whole = load_file(checkpoint / "tensors.safetensors")
    for wrong in (None, np.zeros((2, 3), np.float32), np.zeros(0, np.float32), np.zeros((1, 1), np.int8)):
        tensors = {key: value for key, value in whole.items() if key != f"agent.{name}"}
        if wrong is not None:
            tensors[f"agent.{name}"] = wrong
        save_file(tensors, checkpoint / "tensors.safetensors")
        size, crc = size_and_crc(checkpoint / "tensors.safetensors")
        write_json(checkpoint / "state.json", {**read_json(checkpoint / "state.json"), "bytes": size, "crc32": crc})
        code = main(f"evaluate {tmp_path}/run --episodes 1 --out {tmp_path}/e.json".split())
        said = capsys.readouterr().err
        if name == "step" and wrong is not None and wrong.size == 1:
            assert code == 0  # one number, whatever its type
        else:
            assert code == 2
            assert "step-000000000012: damaged: it does not hold the state of such a run" in said


def test_flipped_bytes_of_a_replay_stop_a_run_that_would_go_on(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"dqn --env minatar/breakout --out {tmp_path}/run --keep-replay --replay-min 5 --steps "
    assert main((words + "40").split()) == 0
    path = tmp_path / "run/replay/rewards.bin"
    whole = bytearray(path.read_bytes())
    for place in random.Random(0).sample(range(40 * 4), 20):
        whole[place] ^= 0xFF
    path.write_bytes(whole)
    capsys.readouterr()
    assert main((words + "50").split()) == 2
    assert "replay/rewards.bin: damaged: the slots 0 to 39 of the seed number 0" in capsys.readouterr().err


def test_a_state_that_no_game_can_be_in_is_named_with_its_checkpoint(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"dqn --env minatar/breakout --out {tmp_path}/run --keep-replay --replay-min 5 --steps "
    assert main((words + "8").split()) == 0
    (checkpoint,) = (tmp_path / "run/checkpoints").iterdir()
    fields = read_json(checkpoint / "state.json")
    fields["state"]["env"]["games"][0]["bricks"] = ["a" * 5000]
    write_json(checkpoint / "state.json", fields)
    capsys.readouterr()
    assert main((words + "10").split()) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"pvn: {checkpoint}: minatar/breakout: the saved state is damaged: ")
    assert len(last) < 400 + len(str(checkpoint))
