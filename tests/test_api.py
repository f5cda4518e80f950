"""`import protovalue`: a function for each stage, settings as keywords, and what it says to whoever is mistaken."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import protovalue
from protovalue.api import _from_keywords
from protovalue.encoder import FrozenEncoder
from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.nets.encoders import make_encoder
from protovalue.pretrain import loop
from protovalue.report import command as report_command
from protovalue.runs import read_run
from protovalue.study import command as study_command
from tests.options.world import InTurn

STUDY = """
name = "tiny"
environments = ["minatar/breakout"]
[seeds]
data = 1
pretraining = 1
online = 2
[data]
steps = 60
[online]
steps = 30
replay_min = 10
[evaluate]
episodes = 1
[methods.random]
"""


def test_importing_imports_nothing_and_every_name_is_there() -> None:
    code = (
        "import sys, protovalue\n"
        "slow = [name for name in ('torch', 'numpy', 'gymnasium', 'tyro', 'rich') if name in sys.modules]\n"
        "assert not slow, slow\n"
        "for name in protovalue.__all__: assert getattr(protovalue, name) is not None, name\n"
        "assert set(dir(protovalue)) == set(protovalue.__all__)\n"
        "import protovalue.report.config, protovalue.evaluate.episodes\n"
        "assert callable(protovalue.report) and callable(protovalue.evaluate) and callable(protovalue.pretrain)\n"
        "from protovalue import pretrain\n"
        "assert callable(pretrain) and pretrain.config is sys.modules['protovalue.pretrain.config']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_from_experience_to_a_page_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Paths are text, several things are a list or one, and what is asked to be quiet is, indicators included."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROTOVALUE_CACHE", "cache")
    data = protovalue.collect("minatar/breakout", out="data", steps=np.int64(64), num_envs=2, sticky=0.25, quiet=True)
    assert (data.num_transitions, data.env_options["sticky"]) == (64, 0.25)
    for given in ("data", ["data"], Path("data")):
        run = protovalue.pretrain(data=given, out="runs/pvn", steps=1, batch_size=8, tasks=3, threads=1, quiet=True)
    assert run == Path("runs/pvn")
    assert read_json(run / "config.json")["config"]["tasks"] == 3
    agents = protovalue.train_online(
        encoder=run, out="runs/online", seeds="0,2", steps=12, replay_min=5, threads=1, max_steps=9, quiet=True
    )
    result = protovalue.evaluate(agents, episodes=2, quiet=True)
    assert [len(row["returns"]) for row in result["seeds"]] == [2, 2]
    assert result["env_options"]["max_steps"] == 9
    whole = protovalue.train_dqn(
        env="minatar/breakout", out="runs/dqn", steps=12, replay_min=5, threads=1, options={"max_steps": 9}, quiet=True
    )
    protovalue.evaluate(protovalue.EvaluateConfig(whole, 1), quiet=True)
    monkeypatch.setattr(report_command, "draw_all", lambda *_: ())  # tested where it is, and slow
    page = protovalue.report(["runs/online", "runs/dqn"], out="report", draws=100, features="none", quiet=True)
    assert page == Path("report/index.html")
    assert page.is_file()
    shown = capfd.readouterr()
    assert shown.out == ""
    assert [line for line in shown.err.splitlines() if not line.startswith("indicators: task")] == []


def test_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study_command, "LocalProcesses", InTurn)
    Path("tiny.toml").write_text(STUDY)
    assert protovalue.run_study("tiny.toml", quiet=True) == Path("runs/tiny")
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "runs" / "tiny" / "study.json").is_file()


def test_data_sets_may_be_given_as_they_are(tmp_path: Path) -> None:
    """What `collect` returns, and what `open_dataset` makes of two, is what `pretrain` takes."""
    for seed in (0, 1):
        one = protovalue.collect("minatar/breakout", out=tmp_path / f"d{seed}", steps=60, seed=seed, quiet=True)
    both = protovalue.open_dataset(tmp_path / "d0", tmp_path / "d1")
    for data, folders in ((one, ["d1"]), (both, ["d0", "d1"])):
        run = protovalue.pretrain(data=data, out=tmp_path / f"r{len(folders)}", method="bc", steps=1, batch_size=4)
        assert read_run(run)["config"]["data"] == [str(tmp_path / name) for name in folders]
    with pytest.raises(protovalue.UserError, match="^batch_size: found 0, expected 1 or more$"):
        protovalue.Sampler(one, batch_size=0, seed=0)


def test_settings_may_be_a_config_whose_paths_are_text(tmp_path: Path) -> None:
    config = protovalue.CollectConfig("minatar/breakout", str(tmp_path / "data"), steps=16)  # type: ignore[arg-type]
    assert config.out == tmp_path / "data"
    assert protovalue.collect(config, quiet=True).num_transitions == 16
    many = protovalue.PvnConfig(out="a", data="b", holdout=["c", "d"])  # type: ignore[arg-type]
    assert (many.out, many.data, many.holdout, many.cache) == (Path("a"), (Path("b"),), (Path("c"), Path("d")), None)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([0, 1, 2], "0-2"),
        ((4,), "4"),
        (range(3), "0-2"),
        (range(0, 6, 2), "0,2,4"),
        (np.array([7, 3, 4, 9]), "7,3-4,9"),
        ("0,1,2", "0,1,2"),
    ],
)
def test_seeds_may_be_numbers(given: object, text: str) -> None:
    """What is recorded is what the flag has, so that the command goes on with the run."""
    assert protovalue.OnlineConfig(env="e", encoder="f", out=Path("r"), seeds=given).seeds == text  # type: ignore[arg-type]
    assert _from_keywords(protovalue.DqnConfig, {"env": "e", "out": "r", "seeds": given}).seeds == text


@pytest.mark.parametrize("given", [3, None, [], [0.5], [True], ["0"], [[0]]])
def test_what_could_be_a_seed_or_how_many_is_refused(given: object) -> None:
    said = f"--seeds: found {given!r}, expected a list such as [0, 1, 2], or text such as '0-2'"
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        protovalue.train_dqn(env="minatar/breakout", out="r", seeds=given)
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        protovalue.DqnConfig(env="minatar/breakout", out=Path("r"), seeds=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: protovalue.pretrain(data="d", out="r", step=3), "unknown setting 'step': did you mean 'steps'"),
        (lambda: protovalue.pretrain(data="d", out="r", method="bc", tasks=3), "unknown setting 'tasks': "),
        (lambda: protovalue.pretrain(data="d"), "^out: missing, expected a value, as of --out$"),
        (lambda: protovalue.collect("minatar/breakout", out="d", steps="many"), "field steps: found 'many', exp"),
        (lambda: protovalue.collect("minatar/breakout", out="d", steps=0), "--steps: found 0, expected at least 1"),
        (lambda: protovalue.evaluate(), "^run: missing"),
        (lambda: protovalue.make("minatar/breakout", 0), "^num_envs: found 0, expected 1 or more$"),
        (lambda: protovalue.Sampler("d", 2, 0), "^dataset: found str, expected one of open_dataset"),  # type: ignore[arg-type]
        (lambda: protovalue.FeatureEnv("g", "e"), "^env: found str, expected a vector environment, as of proto"),  # type: ignore[arg-type]
        (
            lambda: protovalue.FeatureEnv(protovalue.make("minatar/breakout"), "runs/e"),  # type: ignore[arg-type]
            "^encoder: found str, expected one of protovalue.load_encoder$",
        ),
        (lambda: protovalue.report(paper=True), "^runs: missing, expected folders of runs; `pvn report --paper`"),
        (lambda: protovalue.evaluate(protovalue.EvaluateConfig(Path("r")), seed=1), "found seed beside a config, exp"),
        (lambda: protovalue.train_online(3, out="r"), "found int, expected OnlineConfig or key"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_mistakes(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(UserError, match=message):
        call()


def test_what_an_encoder_says_to_other_shapes() -> None:
    encoder = FrozenEncoder(make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(0)), {})
    one = np.zeros((1, 10, 10, 4), np.bool_)
    expected = encoder.features(one[None])
    assert torch.equal(encoder.features([one, one]), expected.expand(2, -1))
    assert torch.equal(encoder.features([one]), expected)
    for given, said in (
        (one, r"found shape (1, 10, 10, 4), expected (N, 1, 10, 10, 4): this is one observation; obs[None] is a batch"),
        (one[0], "found shape (10, 10, 4), expected (N, 1, 10, 10, 4): this is one frame; frame[None, None] is exp"),
        (np.repeat(one, 7, 0), "found shape (7, 10, 10, 4), expected (N, 1, 10, 10, 4): these are frames without a st"),
        (np.zeros((2, 1, 9, 9, 4), np.bool_), "found shape (2, 1, 9, 9, 4), expected (N, 1, 10, 10, 4)"),
        ([one, one[0]], "found shapes [(1, 10, 10, 4), (10, 10, 4)] in one list, expected all alike"),
        ("text", "found str, expected an array, a tensor or a list of arrays"),
        ([], "found list, expected an array, a tensor or a list of arrays"),
    ):
        with pytest.raises(UserError) as raised:
            encoder.features(given)
        assert said in str(raised.value)


def test_what_is_printed_of_a_data_set_and_an_encoder(tmp_path: Path) -> None:
    data = protovalue.collect("minatar/breakout", out=tmp_path / "data", steps=32, num_envs=1, quiet=True)
    assert repr(data) == (
        f"Dataset({tmp_path / 'data'}: 32 transitions of minatar/breakout in {data.num_episodes} episodes, "
        "observations (1, 10, 10, 4) bool, 3 actions)"
    )
    run = protovalue.pretrain(method="random", env="minatar/breakout", out=tmp_path / "run", quiet=True)
    # 16 filters of 3 x 3 x 4, then 128 features of 8 x 8 x 16 values, with their biases
    count = 16 * 36 + 16 + 128 * 1024 + 128
    assert repr(protovalue.load_encoder(run)) == (
        f"FrozenEncoder(random on minatar/breakout: observations (1, 10, 10, 4) -> 128 features, "
        f"{count:,} parameters, cpu)"
    )


def test_the_trainer_below_is_quiet_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A method's constructor computes the indicators, and is not told who asked for silence."""
    protovalue.collect("minatar/breakout", out=tmp_path / "data", steps=64, num_envs=2, quiet=True)
    for quiet in (True, False):
        config = protovalue.PvnConfig(
            data=(tmp_path / "data",), out=tmp_path / f"{quiet}", cache=tmp_path / f"cache-{quiet}", steps=1, tasks=3
        )
        loop.pretrain(config, quiet)
        assert ("pvn cache list" in capfd.readouterr().err) is not quiet


def test_it_is_typed_and_a_wheel_has_everything_of_the_package() -> None:
    """The mark of a typed package is in it, and nothing of it is left out when a wheel is built: not the zoo either."""
    root = Path(__file__).parents[1]
    assert (root / "src/protovalue/py.typed").is_file()
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build == {"targets": {"wheel": {"packages": ["src/protovalue"]}}}
    ignored = (root / ".gitignore").read_text().split()  # which a build leaves out
    assert [line for line in ignored if not line.startswith((".", "/", "__", "*.egg"))] == []
