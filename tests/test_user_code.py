"""A file of the user's that goes wrong is named with its own lines, as one line, wherever it is called from."""

import sys
from pathlib import Path

import pytest

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
