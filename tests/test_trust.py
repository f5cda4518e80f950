"""Nothing that is loaded can run code: what a file names is neither imported nor executed, by any command."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

import protovalue
from protovalue.cli import main
from protovalue.encoder import save_encoder
from protovalue.envs.registry import import_module_of, make, same
from protovalue.errors import UserError
from protovalue.files import read_json, write_json
from protovalue.indicators.precompute import load_indicator
from protovalue.nets.encoders import make_encoder
from protovalue.study.command import open_study
from protovalue.study.folder import write_study

SPY = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
"""
# A spy that also registers an environment, as a module of the user's own does.
REGISTERS = (
    SPY
    + """
import gymnasium, numpy as np
from gymnasium.spaces import Box, Discrete

class Screen(gymnasium.Env):
    observation_space, action_space = Box(0, 1, (4, 4), np.bool_), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 3
        return np.zeros((4, 4), np.bool_), {}

    def step(self, action):
        self.left -= 1
        return np.ones((4, 4), np.bool_), float(action), self.left == 0, False, {}

gymnasium.register("Screen-v0", Screen)
"""
)
SCREEN = "gym/screens:Screen-v0"
SPYING = "gym/spy:Screen-v0"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two modules that can be imported: one that a hostile file names, and one that registers an environment."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "spy.py").write_text(SPY)
    (folder / "screens.py").write_text(REGISTERS)
    monkeypatch.syspath_prepend(folder)
    yield folder
    forget()


def forget() -> None:
    """Make the environment unknown again, as in another process."""
    gymnasium.registry.pop("Screen-v0", None)
    for name in ("spy", "screens"):
        sys.modules.pop(name, None)


def ran(modules: Path, name: str) -> bool:
    return (modules / f"{name}.ran").exists()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set, an encoder, a linear and an end-to-end run, evaluated, of MinAtar: small and honest."""
    folder = tmp_path_factory.mktemp("made")
    for words in (
        f"collect minatar/breakout --steps 64 --num-envs 2 --out {folder}/data",
        f"pretrain --method random --data {folder}/data --out {folder}/pretrain",
        f"online --encoder {folder}/pretrain --steps 12 --replay-min 5 --out {folder}/online",
        f"evaluate {folder}/online --episodes 1",
        f"dqn --env minatar/breakout --steps 12 --replay-min 5 --out {folder}/dqn",
        f"evaluate {folder}/dqn --episodes 1",
    ):
        assert main(words.split()) == 0
    return folder


@pytest.fixture
def hostile(made: Path, tmp_path: Path) -> Path:
    """A copy of what was made in which a file can be changed, with its checksum put right."""
    shutil.copytree(made, tmp_path / "hostile")
    return tmp_path / "hostile"


def change(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file; a__b is field b of field a."""
    whole = read_json(path)
    for name, value in fields.items():
        *outer, last = name.split("__")
        place = whole
        for key in outer:
            place = place[key]
        place[last] = value
    write_json(path, whole)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.strip().splitlines()[-1].startswith("pvn: ")
    return said.strip().splitlines()[-1]


def test_make_imports_no_module(modules: Path) -> None:
    with pytest.raises(UserError, match=r"named on the command line \(--env gym/spy:Screen-v0\)"):
        make(SPYING)
    for name in ("gym/spy:spy:Screen-v0", "gym/:spy", "gym/spy:", "gym/a/spy:x-v0"):
        with pytest.raises(UserError):
            make(name)
    assert not ran(modules, "spy")


def test_what_the_user_names_is_imported_and_then_known_to_files_too(modules: Path) -> None:
    import_module_of(SCREEN)
    assert ran(modules, "screens")
    env = make(SPYING)  # the environment is registered now; the module of this name is still not imported
    assert env.single_observation_space.shape == (1, 4, 4)
    assert env.env_id == SPYING
    assert not ran(modules, "spy")
    with pytest.raises(UserError, match="cannot import the module 'nowhere'"):
        import_module_of("gym/nowhere:Screen-v0")
    with pytest.raises(UserError, match="cannot import the module ''"):
        import_module_of("gym/:Screen-v0")
    import_module_of("minatar/breakout")


def test_names_of_the_same_environment() -> None:
    assert same("gym/a:X-v0", "gym/X-v0")
    assert same("gym/a:X-v0", "gym/b:X-v0")
    assert not same("gym/a:X-v0", "gym/a:X-v1")
    assert not same("minatar/x:y", "minatar/y")


def test_an_environment_whose_own_code_fails_is_one_line() -> None:
    def fails(**_: Any) -> gymnasium.Env[Any, Any]:
        raise RuntimeError("no\nscreen")

    gymnasium.register("Fails-v0", fails)
    where = r"test_trust.py: this file of yours raised RuntimeError: no screen \(line \d+: raise RuntimeError\("
    with pytest.raises(UserError, match=where):
        make("gym/Fails-v0")


def test_online_imports_nothing_that_the_encoder_names(
    modules: Path, hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(hostile / "pretrain/encoder/config.json", about__env_id=SPYING, about__env_options={})
    assert main(f"online --encoder {hostile}/pretrain --out {hostile}/new".split()) == 2
    assert "--env gym/spy:Screen-v0" in one_line(capsys)
    assert not ran(modules, "spy")
    assert not (hostile / "new").exists()


@pytest.mark.parametrize("kind", ["online", "dqn"])
def test_evaluate_imports_nothing_that_the_run_names(
    modules: Path, hostile: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(hostile / kind / "config.json", config__env=SPYING, config__options={})
    assert main(f"evaluate {hostile}/{kind} --episodes 1".split()) == 2
    assert "--env gym/spy:Screen-v0" in one_line(capsys)
    assert not ran(modules, "spy")


def test_report_imports_nothing_that_a_run_names(
    modules: Path, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spy = str(modules / "spy.py")
    change(hostile / "pretrain/encoder/config.json", about__method=spy, about__config__indicator=spy)
    change(hostile / "pretrain/config.json", config__method=spy)
    for kind in ("online", "dqn"):
        change(hostile / kind / "config.json", config__env=SPYING)
        change(hostile / kind / "evaluation.json", env=SPYING, env_options={})
    change(hostile / "online/config.json", config__encoder=str(hostile / "pretrain"))
    assert main(f"report {hostile}/online {hostile}/dqn --out {tmp_path}/page --draws 100".split()) == 0
    assert "because it cannot be played: environment 'gym/spy:Screen-v0'" in capsys.readouterr().out
    assert not ran(modules, "spy")


def test_nothing_is_imported_that_a_data_set_names(
    modules: Path, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(hostile / "data/manifest.json", env_id=SPYING, env_options={"stack": 1, "max_steps": None})
    main(f"data info {hostile}/data --picture {tmp_path}/frames.png".split())
    main(f"data verify {hostile}/data".split())
    small = "--steps 2 --batch-size 4 --tasks 8 --architecture minatar"
    assert main(f"pretrain --data {hostile}/data --out {tmp_path}/run {small}".split()) == 0
    assert (
        main(f"pretrain --method random --data {hostile}/data --architecture minatar --out {tmp_path}/r".split()) == 0
    )
    capsys.readouterr()
    assert main(f"online --encoder {tmp_path}/run --out {tmp_path}/online".split()) == 2
    assert "--env gym/spy:Screen-v0" in one_line(capsys)
    assert main(f"collect minatar/breakout --steps 99 --num-envs 2 --out {hostile}/data".split()) == 2
    assert "holds a data set with env_id" in one_line(capsys)
    assert not ran(modules, "spy")


def test_resuming_imports_nothing_that_the_folder_names(
    modules: Path, hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(hostile / "dqn/config.json", config__env=SPYING)
    assert main(f"dqn --env minatar/breakout --steps 12 --replay-min 5 --out {hostile}/dqn".split()) == 2
    assert "holds a run with another config: env minatar/breakout" in one_line(capsys)
    assert not ran(modules, "spy")


def test_a_loaded_encoder_names_nothing_that_is_run(modules: Path, tmp_path: Path) -> None:
    made = make_encoder("minatar", (1, 4, 4), 1, torch.Generator().manual_seed(0))
    about = {"env_id": SPYING, "method": str(modules / "spy.py"), "config": {"indicator": str(modules / "spy.py")}}
    save_encoder(tmp_path / "encoder", made, "minatar", 1, about, ["card"])
    encoder = protovalue.load_encoder(tmp_path / "encoder")
    import_module_of(SCREEN)
    env = protovalue.FeatureEnv(protovalue.make(SCREEN, 2), encoder)
    assert env.reset(seed=0)[0].shape == (2, 128)
    assert not ran(modules, "spy")


def test_a_method_or_an_indicator_named_by_a_file_is_not_run(
    modules: Path, hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spy = str(modules / "spy.py")
    config = hostile / "pretrain/encoder/config.json"
    change(config, about__method=spy, about__config__method=spy, about__config__indicator=spy)
    change(hostile / "pretrain/config.json", config__method=spy)
    assert main(f"online --encoder {hostile}/pretrain --steps 12 --replay-min 5 --out {hostile}/online".split()) == 0
    assert main(f"evaluate {hostile}/online --episodes 1".split()) == 0
    capsys.readouterr()
    assert main(f"pretrain --method random --data {hostile}/data --out {hostile}/pretrain".split()) == 2
    assert "holds a run with another config: method random" in one_line(capsys)
    assert not ran(modules, "spy")


def test_an_indicator_in_a_run_folder_or_in_the_cache_is_not_run(
    modules: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"pretrain --data {made}/data --tasks 8 --steps 2 --batch-size 4 --cache {tmp_path}/cache --out"
    assert main([*words.split(), f"{tmp_path}/run"]) == 0
    for folder in (*tmp_path.glob("run/indicator*"), *(tmp_path / "cache").iterdir()):
        (about,) = folder.glob("*.json")
        change(about, indicator__name=str(modules / "spy.py"))
        with pytest.raises(UserError, match="unknown indicator"):
            load_indicator(folder)
    main([*words.split(), f"{tmp_path}/again"])
    assert not ran(modules, "spy")


def test_an_environment_or_an_encoder_of_a_users_file_is_named_again(
    modules: Path, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a file says, by a name or by a path, its code is not run; the line says how to name it."""
    spy = str(modules / "spy.py")
    monkeypatch.chdir(modules)
    for name in ("spy", "spy.py", spy, f"{spy}:Spy"):
        change(hostile / "pretrain/encoder/config.json", encoder=name)
        assert main(f"online --encoder {hostile}/pretrain --out {hostile}/new".split()) == 2
        assert "(--code path/to/" in one_line(capsys)
        change(hostile / "online/config.json", config__encoder=str(hostile / "pretrain"))
        assert main(f"evaluate {hostile}/online --episodes 1".split()) == 2
        assert "(--code path/to/" in one_line(capsys)
        change(hostile / "dqn/config.json", config__architecture=name, config__env="minatar/breakout")
        assert main(f"evaluate {hostile}/dqn --episodes 1".split()) == 2
        assert "(--code path/to/" in one_line(capsys)
        change(hostile / "dqn/config.json", config__architecture="minatar", config__env=f"{name}/x")
        assert main(f"evaluate {hostile}/dqn --episodes 1".split()) == 2
        assert "(--env path/to/" in one_line(capsys)
        change(hostile / "online/config.json", config__encoder=f"random:{name}:1", config__code=[spy])
        assert main(f"evaluate {hostile}/online --episodes 1".split()) == 2
        assert "--code path/to/" in one_line(capsys) or name == "spy"
        change(hostile / "data/manifest.json", env_id=f"{name}/x", env_options={"stack": 1, "own": 2})
        main(f"data info {hostile}/data".split())
        small = "--method random --architecture minatar"
        assert main(f"pretrain {small} --data {hostile}/data --out {tmp_path}/r{len(name)}".split()) == 0
        main(f"report {hostile}/online {hostile}/dqn --out {tmp_path}/page --draws 100".split())
        capsys.readouterr()
    assert not ran(modules, "spy")
    with pytest.raises(UserError, match="defines none of"):
        protovalue.load_code(spy)
    assert ran(modules, "spy")


STUDY = f"""
environments = ["{SCREEN}"]
normalise = "dqn"
[data]
steps = 40
num_envs = 2
[pretrain]
steps = 2
batch_size = 4
architecture = "minatar"
[online]
steps = 12
replay_min = 5
[dqn]
steps = 12
replay_min = 5
architecture = "minatar"
[evaluate]
episodes = 1
[methods.pvn]
tasks = 8
[methods.dqn]
"""


def test_the_users_own_study_may_name_a_module_and_all_its_commands_work(
    modules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every stage is run here as its own command line, with the environment forgotten in between."""
    (tmp_path / "study.toml").write_text(STUDY)
    study, _, laid_out = open_study(tmp_path / "study.toml", tmp_path / "out")
    assert len(laid_out.stages) == 7  # data, pvn, its agents and their evaluation, dqn, its own, the random policy
    for stage in laid_out.stages:
        forget()
        assert main(list(stage.command[1:])) == 0, stage.id
    write_study(tmp_path / "out", laid_out.fields(study))
    forget()
    assert main(f"report {tmp_path}/out --out {tmp_path}/page --draws 100 --env {SCREEN}".split()) == 0
    assert "cannot be played" not in capsys.readouterr().out
    assert list((tmp_path / "page/figures").glob("mds-*"))  # it was played


def test_evaluate_wants_the_environment_of_the_run(
    modules: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"evaluate {made}/online --episodes 1 --env {SCREEN}".split()) == 2
    assert f"--env: found {SCREEN}, expected minatar/breakout" in one_line(capsys)
    assert not ran(modules, "screens")
    assert main(f"evaluate {made}/online --episodes 1 --env minatar/breakout".split()) == 0
