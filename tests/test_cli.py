"""The command line: what a user sees, and that it costs nothing to ask."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protovalue import cli
from protovalue.cli import COMMANDS, main
from protovalue.config import PRESET


def modules_after(code: str) -> set[str]:
    """Run code in a fresh interpreter and return the top-level modules that it imported."""
    script = (
        f"import contextlib, io, sys\nwith contextlib.redirect_stdout(io.StringIO()):\n    {code}\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("code", ["import protovalue", "from protovalue.cli import main; main(['--help'])"])
def test_importing_and_asking_for_help_load_nothing_heavy(code: str) -> None:
    assert modules_after(code).isdisjoint({"torch", "numpy", "tyro", "gymnasium", "matplotlib"})


def test_the_public_names_exist_and_come_on_demand() -> None:
    import protovalue

    for name in protovalue.__all__:
        assert getattr(protovalue, name) is not None
    assert "torch" not in modules_after("import protovalue; protovalue.open_dataset")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        protovalue.nonsense  # noqa: B018


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself_with_an_example_that_parses(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"Example: pvn {name}" in text
    kind = cli._load(COMMANDS[name].config)
    docstring = (kind if isinstance(kind, type) else kind([])).__doc__
    assert docstring is not None
    example = next(line for line in docstring.splitlines() if "Example:" in line).split("Example: pvn ")[1]
    called, load = list[Any](), cli._load
    monkeypatch.setattr(cli, "_load", lambda where: called.append if where == COMMANDS[name].run else load(where))
    assert main(example.split()) == 0
    assert len(called) == 1


@pytest.mark.parametrize(("flags", "expected"), [([], PRESET), (["--double"], True), (["--no-double"], False)])
def test_a_switch_can_be_turned_off_that_a_preset_has_on(
    flags: list[Any], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, load = list[Any](), cli._load
    monkeypatch.setattr(cli, "_load", lambda where: called.append if where == COMMANDS["dqn"].run else load(where))
    assert main(["dqn", "--env", "minatar/asterix", "--out", "x", *flags]) == 0
    assert called[0].double is expected


def test_overview_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    overview = capsys.readouterr().out
    assert all(f"pvn {name}" in overview for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "protovalue 0.1.0\n"
    assert main(["data"]) == 0
    assert "pvn data verify" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("colect", "unknown command 'colect': did you mean 'collect'?"),
        ("data inof x", "unknown command pvn data 'inof': did you mean 'info'?"),
        ("collect minatar/breakout", "--out"),
        ("collect minatar/breakout --out X --stesp 3", "--stesp"),
        ("collect minatar/breakout --out X --steps many", "--steps"),
        ("collect minatar/breakout --out X --steps 0", "--steps: found 0, expected at least 1"),
        ("collect minatar/breakuot --out X", "did you mean 'minatar/breakout'?"),
        ("collect minatar/breakout --out X --noop-max 3", "unknown option for minatar/breakout 'noop_max'"),
        ("collect minatar/breakout --out X --actions all", "--actions"),
        ("data info nowhere", "nowhere: not a data set: manifest.json is missing"),
        ("data verify nowhere", "nowhere: not a data set: manifest.json is missing"),
        ("bench nothing", "unknown benchmark 'nothing'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: str, expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("pvn: ")
    assert expected in printed.err
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "protovalue.cli", "data", "info", "nowhere", "--debug"], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "UserError: nowhere" in done.stderr


def test_an_unwritable_folder_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main(["collect", "minatar/breakout", "--steps", "10", "--out", str(tmp_path / "file" / "set")]) == 2
    assert f"{tmp_path}/file: found no folder, expected one" in capsys.readouterr().err


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m protovalue.cli --help | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.startswith("pvn:")
