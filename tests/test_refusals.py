"""A mistake leaves every byte as it was, so that the corrected command works; a finished run is never altered.

Every case runs a real command in a copy of a small world of data sets and runs, and compares all names and bytes in it
before and after.
"""

import shutil
from pathlib import Path

import pytest

from protovalue.cli import main
from protovalue.data.dataset import open_dataset
from protovalue.files import read_json
from protovalue.runs import read_checkpoint, read_run
from protovalue.study.folder import write_study
from protovalue.tabular.config import TabularConfig

BREAKOUT = "minatar/breakout"
ENVIRONMENT = "--env minatar/breakout"
TRAIN = "--replay-min 5 --replay-size 40 --threads 1"
RUNS = {
    "data": f"collect {BREAKOUT} --steps 90 --num-envs 2 --out data",
    "held": f"collect {BREAKOUT} --steps 90 --num-envs 2 --seed 1 --out held",
    "asterix": "collect minatar/asterix --steps 60 --num-envs 2 --out asterix",
    "pre": "pretrain --data data --tasks 3 --proportion 0.3 --batch-size 8 --steps 4 --threads 1 --out pre",
    "random": f"pretrain --method random {ENVIRONMENT} --out random",
    "online": f"online --encoder pre --steps 12 {TRAIN} --out online",
    "dqn": f"dqn {ENVIRONMENT} --steps 12 {TRAIN} --out dqn",
    "kept": f"dqn {ENVIRONMENT} --steps 12 {TRAIN} --keep-replay --out kept",
    "recorded": f"dqn {ENVIRONMENT} --steps 12 {TRAIN} --record seen --iterations 2 --out recorded",
    "evaluated": "evaluate dqn --episodes 3",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PROTOVALUE_CACHE", str(tmp_path_factory.mktemp("cache")))
        for words in RUNS.values():
            assert main(words.split()) == 0
        Path("thesis").mkdir()
        Path("thesis/thesis.tex").write_text("precious")
        Path("file").write_text("a file")
        Path("raises.py").write_text("raise ValueError('on import')\n")
    return folder


@pytest.fixture
def world(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all that was made, which is the current folder; runs have relative paths of each other."""
    shutil.copytree(made, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    return tmp_path / "world"


def everything(folder: Path) -> dict[str, bytes | None]:
    """Return the bytes of all files by name, locks too, and None for folders."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def refused(world: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command that must be refused in one line, and leave everything as it was."""
    before = everything(world)
    capsys.readouterr()
    assert main(words.split()) == 2, words
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    after = everything(world)
    assert sorted(after) == sorted(before)
    assert [name for name in before if before[name] != after[name]] == []


COLLECT = f"collect {BREAKOUT} --steps 30 --num-envs 2 --out new"
PRETRAIN = "pretrain --data data --tasks 3 --proportion 0.3 --batch-size 8 --steps 2 --threads 1 --out new"
ONLINE = f"online --encoder pre --steps 8 {TRAIN} --out new"
DQN = f"dqn {ENVIRONMENT} --steps 8 {TRAIN} --out new"
EVALUATE = "evaluate online --episodes 2"
MISTAKES = [
    # The corrected command, what is wrong in place of what, what is said.
    (COLLECT, "minatar/breakout", "minatar/breakot", "did you mean"),
    (COLLECT, "--steps 30", "--steps 0", "--steps"),
    (COLLECT, "--out new", "--out new --sticky 2", "option sticky: found 2.0"),
    (COLLECT, "--out new", "--out new --difficulty-ramping maybe", "--difficulty-ramping"),
    (COLLECT, "--out new", "--out thesis", "thesis: not empty and not a data set"),
    (COLLECT, "--out new", "--out file/new", "file: found a file, expected a folder"),
    (COLLECT, "--num-envs 2 --out new", "--policy dqn --out thesis", "thesis: not empty and not a data set"),
    (PRETRAIN, "--out new", "--out new --indicator hsh", "'hsh': did you mean 'hash'?"),
    (PRETRAIN, "--out new", "--out new --indicator raises.py", "on import"),
    (PRETRAIN, "--out new", "--out new --architecture minatr", "did you mean 'minatar'?"),
    (PRETRAIN, "--out new", "--out new --architecture-options depth=3", "depth"),
    (PRETRAIN, "--out new", "--out new --architecture raises.py", "on import"),
    (PRETRAIN, "--out new", "--out new --method pvm", "did you mean 'pvn'?"),
    (PRETRAIN, "--out new", "--out new --holdout nowhere", "pvn: --holdout: nowhere: not a data set"),
    (PRETRAIN, "--out new", "--out new --holdout asterix", "--holdout: asterix: found env_id minatar/asterix"),
    (PRETRAIN, "--out new", "--out new --holdout data", "--holdout: data holds the episodes of --data data"),
    (PRETRAIN, "--out new", "--out new --holdout held held", "--holdout: held holds the same episodes as held"),
    (PRETRAIN, "--out new", "--out new --cache file", "file"),
    (PRETRAIN, "--out new", "--out new --precision bfloat17", "bfloat17"),
    (PRETRAIN, "--out new", "--out new --threshold sgd --indicator hash", "--threshold"),
    (PRETRAIN, "--out new", f"--out new {ENVIRONMENT}", "--env: found together with --data"),
    (PRETRAIN, "--out new", "--out data", "data: not empty and not a run"),
    (PRETRAIN, "--out new", "--out file/new", "file: found a file, expected a folder"),
    (PRETRAIN, "--data data", "--data nowhere", "pvn: --data: nowhere: not a data set"),
    (PRETRAIN, "--data data", "--data data data", "--data: data holds the same episodes as data"),
    (PRETRAIN, "--data data", "--data data asterix", "asterix"),
    (ONLINE, "--encoder pre", "--encoder nowhere", "pvn: --encoder: nowhere: no encoder here: found no such folder, "
     "expected one of pvn pretrain or random:"),
    (ONLINE, "--encoder pre", "--encoder data", "pvn: --encoder: data: no encoder here: "),
    (ONLINE, "--encoder pre", "--encoder pre --env minatar/asterix", "--encoder: pre"),
    (ONLINE, "--encoder pre", f"--encoder random:minatr:1 {ENVIRONMENT}", "random:minatr:1"),
    (ONLINE, "--steps 8", "--steps 4", "--steps: found 4, expected at least 5: the first update comes then"),
    (ONLINE, "--out new", "--out new --seeds 0,0", "--seeds"),
    (ONLINE, "--out new", "--out new --atoms 5", "--atoms"),
    (ONLINE, "--out new", "--out new --code raises.py", "on import"),
    (ONLINE, "--out new", "--out new --replay-dir file/new", "file: found a file, expected a folder"),
    (ONLINE, "--out new", "--out pre", "pre: found a run of pvn pretrain, expected another folder for pvn online"),
    (ONLINE, "--out new", "--out thesis", "thesis: not empty and not a run"),
    (DQN, "minatar/breakout", "minatar/pong", "unknown"),
    (DQN, "--steps 8", "--steps 4", "--steps: found 4, expected at least 6: the first update comes then"),
    (DQN, "--out new", "--out new --architecture natur", "did you mean 'nature'?"),
    (DQN, "--out new", "--out new --record data", "data: holds a data set that this run did not begin"),
    (DQN, "--out new", "--out new --record thesis", "thesis: not empty and not a data set"),
    (DQN, "--out new", "--out new --record file/new", "file: found a file, expected a folder"),
    (DQN, "--out new", "--out new --record new2 --seeds 0-1", "--record: found it with seeds 0-1"),
    (EVALUATE, "evaluate online", "evaluate nowhere", "nowhere: not a run"),
    (EVALUATE, "evaluate online", "evaluate pre", "pre: not a run of pvn online or pvn dqn"),
    (EVALUATE, "--episodes 2", "--episodes 2 --video film.mp4", "--video: found film.mp4, expected a name that ends"),
    (EVALUATE, "--episodes 2", "--episodes 2 --video file/film.gif", "file: found a file, expected a folder"),
    (EVALUATE, "--episodes 2", "--episodes 2 --out file/new.json", "file: found a file, expected a folder"),
    (EVALUATE, "--episodes 2", "--episodes 2 --num-envs 3", "--num-envs"),
    (EVALUATE, "--episodes 2", "--episodes 2 --env minatar/asterix", "--env: found minatar/asterix"),
]  # fmt: skip


@pytest.mark.parametrize(("good", "right", "wrong", "said"), MISTAKES)
def test_a_mistake_leaves_nothing_and_the_corrected_command_works(
    world: Path, capsys: pytest.CaptureFixture[str], good: str, right: str, wrong: str, said: str
) -> None:
    assert right in good
    refused(world, good.replace(right, wrong), said, capsys)
    assert main(good.split()) == 0


OTHERS = [
    # A finished run's command, what is changed in it, what is said.
    ("data", "minatar/breakout", "minatar/asterix", "holds a data set with env_id minatar/breakout"),
    ("data", "breakout --steps 90", "asterix --steps 9", "holds a data set with env_id minatar/breakout"),
    ("data", "--out", "--sticky 0.5 --out", "holds a data set with env_options"),
    ("data", "--out", "--seed 3 --out", "--seed: found 3, expected 0"),
    ("data", "--num-envs 2", "--policy dqn", "data: holds a data set that this run did not begin"),
    ("pre", "--steps 4", "--steps 3", "--steps: found 3, expected at least 4, which pre has taken already"),
    ("pre", "--tasks 3", "--tasks 4", "another config: tasks 4 (the run has 3)"),
    ("pre", "--data data", "--data held", "another config: data_checksum"),
    ("pre", "--out", "--holdout held --out", "--holdout: found held, expected none, with which pre was finished"),
    ("pre", "--out", "--indicator hsh --out", "indicator hsh (the run has rni)"),
    ("online", "--steps 12", "--steps 20", "--keep-replay"),
    ("online", "--steps 12", "--steps 11", "--steps: found 11, expected at least 12, which online has taken already"),
    ("online", "--encoder pre", "--encoder random", "another config: encoder_checksum"),
    ("online", "--out", "--seeds 0-1 --out", "seeds 0-1 (the run has 0)"),
    ("dqn", "--steps 12", "--steps 20", "--steps: found 20, expected 12: dqn was finished with so many"),
    ("dqn", "--steps 12", "--steps 11", "--steps: found 11, expected at least 12, which dqn has taken already"),
    ("dqn", "minatar/breakout", "minatar/freeway", "env minatar/freeway (the run has minatar/breakout)"),
    ("kept", "--steps 12", "--steps 11", "--steps: found 11, expected at least 12, which kept has taken already"),
    ("recorded", "--record seen", "--record else", "else: not the data set of this run, which is finished"),
    ("recorded", "--record seen", "--record data", "data: holds a data set that this run did not begin"),
    ("recorded", "--steps 12", "--steps 20", "steps 20 (the run has 12)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "instead", "said"), OTHERS)
def test_a_finished_run_is_as_it_was_after_a_refusal(
    world: Path, capsys: pytest.CaptureFixture[str], name: str, given: str, instead: str, said: str
) -> None:
    assert given in RUNS[name]
    refused(world, RUNS[name].replace(given, instead, 1), said, capsys)


SAME = {
    "data": "has 90 transitions already; it is left as it is",
    **{
        name: f"{name}: finished before, with the same settings; it is left as it is"
        for name in ("pre", "random", "online", "dqn", "kept", "recorded")
    },
}


@pytest.mark.parametrize("name", SAME)
def test_a_finished_run_is_as_it_was_after_the_same_command(
    world: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    before = everything(world)
    assert main([*RUNS[name].split(), *(["--log-every", "3"] if name == "pre" else [])]) == 0
    assert SAME[name] in capsys.readouterr().err
    assert everything(world) == before


@pytest.mark.parametrize("name", ["pre", "kept"])
def test_more_steps_go_on_where_the_run_was(world: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    steps = read_checkpoint(world / name).step
    assert main(RUNS[name].replace(f"--steps {steps}", "--steps 20").split()) == 0
    assert f"{name}: continuing at step {steps} of 20" in capsys.readouterr().err
    assert read_checkpoint(world / name).step == read_run(world / name)["done"]["steps"] == 20
    assert read_run(world / name)["config"]["steps"] == 20


def test_a_collection_says_where_it_goes_on(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNS["data"].replace("90", "120").split()) == 0
    assert "data: continuing at step 90 of 120" in capsys.readouterr().err
    assert open_dataset(world / "data").num_transitions == 120


def test_a_longer_evaluation_is_kept(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A shorter one shows its table and its film, and can be written to a file of its own."""
    file = world / "dqn/evaluation.json"
    before = file.read_bytes()
    assert main(["evaluate", "dqn", "--episodes", "2", "--video", "film.gif"]) == 0
    said = capsys.readouterr().out
    assert "2 episodes per seed" in said
    assert "not written: dqn/evaluation.json has 3 episodes and is kept; --out FILE writes these" in said
    assert file.read_bytes() == before
    assert (world / "film.gif").read_bytes().startswith(b"GIF89a")
    assert main(["evaluate", "dqn", "--episodes", "2", "--out", "two.json"]) == 0
    assert read_json(world / "two.json")["episodes"] == 2
    assert main(["evaluate", "dqn", "--episodes", "4"]) == 0
    assert f"every return: {Path('dqn/evaluation.json')}" in capsys.readouterr().out
    assert read_json(file)["episodes"] == 4
    assert main(RUNS["kept"].replace("--out", "--checkpoint-every 25000 --out").split()) == 0
    for steps, episodes in ((12, 3), (20, 1)):  # of other agents: theirs are worth nothing now
        assert main(RUNS["kept"].replace("--steps 12", f"--steps {steps}").split()) == 0
        assert main(f"evaluate kept --episodes {episodes}".split()) == 0
    assert read_json(world / "kept/evaluation.json")["episodes"] == 1


@pytest.mark.parametrize("option", ["--out", "--video"])
def test_an_evaluation_is_not_played_for_a_folder(world: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    (world / "there.gif").mkdir()
    assert main(["evaluate", "dqn", "--episodes", "1", option, "there.gif"]) == 2
    assert capsys.readouterr().err == f"pvn: {option}: found a folder there.gif, expected the name of a file\n"


def test_an_evaluation_makes_the_folder_of_its_file(world: Path) -> None:
    assert main(["evaluate", "dqn", "--episodes", "1", "--out", "new/one.json"]) == 0
    assert read_json(world / "new/one.json")["episodes"] == 1


def test_a_refusal_does_not_say_that_the_run_goes_on(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNS["dqn"].replace("--steps 12", "--steps 20").split()) == 2
    assert "continuing" not in capsys.readouterr().err


def test_one_episode_has_no_standard_error(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "dqn", "--episodes", "1", "--out", "one.json"]) == 0
    table = capsys.readouterr().out
    assert "nan" not in table
    assert "1 episode per seed" in table
    assert table.splitlines()[2].split()[2] == "-"


def test_a_dqn_that_makes_no_update_is_said_loudly(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "minatar/breakout", "--policy", "dqn", "--steps", "40", "--out", "few"]) == 0
    assert "--steps: found 40, and the DQN makes its first update after step 10,000: ALL OF THIS IS RANDOM PLAY" in (
        capsys.readouterr().err
    )
    assert main(["evaluate", "few-agent", "--episodes", "1"]) == 0
    assert "few-agent: its agents have made no update: they play as they were drawn" in capsys.readouterr().err
    assert main(["evaluate", "dqn", "--episodes", "1", "--out", "one.json"]) == 0
    assert "no update" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("pre", "--out: pre: not empty and not a demo, found "),
        ("thesis", "--out: thesis: not empty and not a demo, found thesis.tex; choose another folder"),
        ("file", "file: found a file, expected a folder"),
        ("mine", "mine/study: not empty and not a study; choose another folder with --out"),
        ("yours", "yours/study: found the study 'yours' there, expected 'demo'"),
        ("theirs", "theirs/report: found a file, expected a folder"),
    ],
)
def test_a_demo_is_not_put_into_what_is_there(
    world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, out: str, said: str
) -> None:
    monkeypatch.setattr("protovalue.demo.command.tabular", lambda config: pytest.fail("it began"))
    Path("mine/study").mkdir(parents=True)
    Path("mine/study/notes.txt").write_text("precious")
    Path("yours/study").mkdir(parents=True)
    write_study(Path("yours/study"), {"name": "yours"})
    Path("theirs").mkdir()
    Path("theirs/report").write_text("precious")
    refused(world, f"demo --out {out}", said, capsys)


def test_a_demo_goes_on_in_its_own_folder(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stages, which are other commands with tests of their own, are not run here."""
    for name in ("four-rooms", "report", "study"):
        Path("demo", name).mkdir(parents=True)
    for name in ("episode.gif", "episode.json", ".new-0123456789abcdef.gif", ".DS_Store"):
        Path("demo", name).touch()
    write_study(Path("demo/study"), {"name": "demo"})
    begun: list[Path] = []

    def begin(config: TabularConfig) -> None:
        begun.append(config.out)
        raise KeyboardInterrupt

    monkeypatch.setattr("protovalue.demo.command.tabular", begin)
    assert main(["demo", "--out", "demo"]) == 130
    assert main(["demo", "--out", "another"]) == 130
    assert begun == [Path("demo/four-rooms"), Path("another/four-rooms")]
