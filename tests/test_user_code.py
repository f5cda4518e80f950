"""A file of the user's that goes wrong is named with its own lines, as one line, wherever it is called from."""

import re
import sys
from pathlib import Path

import pytest

import protovalue
from protovalue.cli import main
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.errors import UserError
from protovalue.user_code import module_name, run_file, user_code

INDICATOR = """
import torch
from protovalue.indicators.base import Indicator

def helper(obs):
    return obs.no_such_thing()

class Mine(Indicator):
    tuned_on_data = False
    def __init__(self, observation_shape, num_tasks, proportion, generator):
        super().__init__(observation_shape, num_tasks, proportion)
        self.thresholds.fill_(0.5)
    def scores(self, obs):
        return helper(obs)

INDICATOR = Mine
"""

METHOD = """
from protovalue.pretrain.base import Method
from protovalue.pretrain.bc import METHOD as Bc

class Mine(Bc):
    def loss(self, sample):
        return sample["nothing"]

METHOD = Mine
"""


ENCODER = """
from protovalue.nets.minatar import MinatarEncoder

class Mine(MinatarEncoder):
    def __init__(self, observation_shape, width, generator):
        super().__init__(observation_shape, width, generator)
        if AGAIN:
            raise RuntimeError("only once")

AGAIN = False
ENCODER = Mine
"""
FAMILY = """
import numpy as np
from protovalue.envs.base import Family, Game, PythonEnv

class Door(Game):
    def reset(self, seed):
        return np.zeros((4, 4), np.bool_)

    def step(self, action):
        return WHAT

    def save_state(self):
        return None

class Doors(Family):
    games = ("one",)

    def __init__(self, stack: int = 1, max_steps: int = 5):
        pass

    def make(self, env_id, game, num_envs):
        return PythonEnv(env_id, self.options, [Door() for _ in range(num_envs)], (4, 4), np.bool_, 2)

ENVIRONMENT = Doors
"""


def test_a_file_runs_once_as_a_module_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 3\n")
    module = run_file(tmp_path / "mine.py")
    assert module is not None
    assert module.x == 3
    assert sys.modules[module_name(tmp_path / "mine.py")] is module
    (tmp_path / "other").mkdir()
    assert module_name(tmp_path / "mine.py") != module_name(tmp_path / "other" / "mine.py")
    assert run_file(tmp_path / "nothing.py") is None
    (tmp_path / "notes.txt").write_text("x = 3\n")
    assert run_file(tmp_path / "notes.txt") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_at_all\n", "ModuleNotFoundError: No module named 'nothing_at_all' (line 1: import nothing_"),
        ("x = 1\ndef f():\n    return x / 0\nf()\n", "ZeroDivisionError: division by zero (line 3: return x / 0, "
         "called from line 4: f())"),
        ("x = 1\nx =\n", "SyntaxError: invalid syntax (line 2: x =)"),
        ("raise ValueError('two\\nlines')\n", "ValueError: two lines (line 1: raise ValueError('two\\nlines'))"),
        ("raise SystemExit\n", "SystemExit (line 1: raise SystemExit)"),
        ("open('nothing/there')\n", "FileNotFoundError: [Errno 2] No such file or directory: 'nothing/there' (line 1"),
    ],
)  # fmt: skip
def test_what_a_file_raises_while_it_is_run(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        run_file(path)
    assert str(raised.value).startswith(f"{path}: this file of yours raised {message}")
    assert "\n" not in str(raised.value)


def test_only_the_innermost_lines_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "deep.py"
    path.write_text("def f(n):\n    return f(n - 1) if n else {}[n]\n")
    module = run_file(path)
    assert module is not None
    with pytest.raises(UserError) as raised, user_code():
        module.f(9)
    text = str(raised.value)
    assert text.startswith(f"{path}: this file of yours raised KeyError: 0 (line 2: return f(n - 1)")
    assert text.count("line 2") == 4


def test_what_is_not_the_users_goes_on_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), user_code():
        raise ZeroDivisionError
    with pytest.raises(UserError, match="^as it is$"), user_code(Path("some.py")):
        raise UserError("as it is")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "set"
    collect(CollectConfig("minatar/breakout", folder, steps=60), quiet=True)
    return folder


def test_an_indicator_that_raises_in_the_middle_of_a_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOVALUE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(INDICATOR)
    words = ["pretrain", "--data", str(data), "--out", str(tmp_path / "run"), "--indicator", str(tmp_path / "mine.py")]
    assert main([*words, "--steps", "1", "--threads", "1"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error == (
        f"pvn: {tmp_path / 'mine.py'}: this file of yours raised AttributeError: "
        "'Tensor' object has no attribute 'no_such_thing' "
        "(line 6: return obs.no_such_thing(), called from line 14: return helper(obs))"
    )


def test_a_method_that_raises_in_the_middle_of_a_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    words = ["pretrain", "--method", str(tmp_path / "mine.py"), "--data", str(data), "--out", str(tmp_path / "run")]
    assert main([*words, "--steps", "1", "--threads", "1"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    said = "this file of yours raised KeyError: 'nothing' (line 7: return sample[\"nothing\"])"
    assert error == f"pvn: {tmp_path / 'mine.py'}: {said}"


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "    def sample(self, step):\n        return step / 0\n",
            "ZeroDivisionError: division by zero (line 7: ",
        ),
        ("    def after_step(self):\n        [][1]\n", "IndexError: list index out of range (line 7: [][1])"),
        ("    def finish(self):\n        raise OSError('no\\nwhere')\n", "OSError: no where (line 7: raise OSError("),
    ],
)
def test_any_part_of_a_method(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, said: str
) -> None:
    """Also what is called in another thread, as `sample` is."""
    head = METHOD.partition("    def loss")[0]
    (tmp_path / "mine.py").write_text(f"{head}{body}METHOD = Mine\n")
    words = f"pretrain --method {tmp_path}/mine.py --data {data} --out {tmp_path}/run --steps 1 --threads 1"
    assert main(words.split()) == 2
    assert last_line(capsys).startswith(f"pvn: {tmp_path}/mine.py: this file of yours raised {said}")


def test_a_loss_that_is_none(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for returned, said in (
        ('sample["action"].sum()', "a tensor of shape ()"),
        ('sample["action"], {}', "(a tensor of shape (256,), a dict)"),
        ("None", "a NoneType"),
    ):
        (tmp_path / "mine.py").write_text(METHOD.replace('sample["nothing"]', returned))
        words = f"pretrain --method {tmp_path}/mine.py --data {data} --out {tmp_path}/run --steps 1 --threads 1"
        assert main(words.split()) == 2
        assert f"mine.py: its loss returned {said}, expected a scalar tensor and a dict" in last_line(capsys)


def test_an_encoder_that_raises_when_it_is_loaded(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder is not damaged, its code is."""
    (tmp_path / "mine.py").write_text(ENCODER)
    words = f"pretrain --method random --data {data} --architecture {tmp_path}/mine.py --out {tmp_path}/run"
    assert main(words.split()) == 0
    (tmp_path / "mine.py").write_text(ENCODER.replace("AGAIN = False", "AGAIN = True"))
    words = f"online --encoder {tmp_path}/run --code {tmp_path}/mine.py --steps 9 --replay-min 5 --out {tmp_path}/o"
    assert main(words.split()) == 2
    said = f"{tmp_path}/mine.py: this file of yours raised RuntimeError: only once (line 8: raise RuntimeError("
    assert said in last_line(capsys)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("self.nothing", "doors.py: this file of yours raised AttributeError: 'Door' object has no attribute 'nothing' "
         "(line 10: return self.nothing)"),
        ("np.zeros((4, 4)), 0.0, False, False", "environment 'doors/one': found a frame of shape (4, 4) float64, "
         "expected (4, 4) bool, as it declares"),
        ("np.zeros(4, np.bool_), 0.0, False, False", "found a frame of shape (4,) bool, expected (4, 4) bool, as it"),
        ("[[0] * 4] * 4, 0.0, False, False", "found a frame of shape None list, expected (4, 4) bool, as it declares"),
    ],
)  # fmt: skip
def test_an_environment_of_a_family(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, said: str) -> None:
    """Also from Python: what it says is the same."""
    (tmp_path / "doors.py").write_text(FAMILY.replace("WHAT", what))
    assert main(f"collect {tmp_path}/doors.py/one --steps 9 --out {tmp_path}/data".split()) == 2
    assert said in last_line(capsys)
    with pytest.raises(UserError, match=re.escape(said)):
        protovalue.collect(f"{tmp_path}/doors.py/one", steps=9, out=tmp_path / "again", quiet=True)
