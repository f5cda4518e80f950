"""The command line: what a user sees, and that it costs nothing to ask."""

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import protovalue
from protovalue import cli
from protovalue.cli import COMMANDS, main
from protovalue.config import PRESET
from protovalue.registry import METHODS


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


def test_no_help_text_needs_more_than_the_settings() -> None:
    """Of all commands and methods, one after another: what one of them imported is there at the end."""
    asked = [*(name.split() for name in COMMANDS), *(["pretrain", "--method", name] for name in METHODS.names())]
    code = f"""
    from protovalue.cli import main
    for words in {asked}:
        try:
            main([*words, "--help"])
        except SystemExit:
            pass"""
    heavy = {"torch", "matplotlib", "pandas", "numba", "scipy", "PIL", "gymnasium"}
    assert modules_after(code.strip()).isdisjoint(heavy)


def help_of(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    return capsys.readouterr().out


def boxes(text: str) -> dict[str, set[str]]:
    """Return the flags under each heading of a help text, which has frames or not."""
    found: dict[str, set[str]] = {}
    for line, after in itertools.pairwise(text.splitlines()):
        if title := re.match("╭─ (.*?) ─", line) or (re.match(" -+ *$", after) and re.match(" (.*?) *$", line)):
            found[title[1]] = set()
        elif flag := re.match("[│ ] (--[a-z][a-z-]+)", line):
            found[list(found)[-1]].add(flag[1])
    return found


def test_the_help_of_a_long_command_is_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    found = boxes(help_of("pretrain", capsys))
    assert list(found) == ["options", "method options", "training options", "machine options"]
    usual = {"out", "data", "env", "method", "preset", "architecture", "steps", "seed", "holdout"}
    assert found["options"] == {f"--{name}" for name in usual}
    assert {"--tasks", "--gamma", "--width"} <= found["method options"]
    assert found["training options"] == {
        "--batch-size",
        "--learning-rate",
        "--adam-epsilon",
        "--precision",
        "--compile",
    }
    machine = {"device", "recompute-activations", "threads", "processes", "memory", "log-every", "checkpoint-every"}
    machine |= {"cache"}
    assert found["machine options"] == {f"--{name}" for name in machine}
    for command in ("online", "dqn"):
        found = boxes(help_of(command, capsys))
        assert list(found) == ["options", "method options", "machine options", "environment options"]
        assert {"--env", "--out", "--seeds", "--preset", "--steps"} <= found["options"]
        assert "--keep-replay" in found["machine options"]
    assert list(boxes(help_of("collect", capsys))) == ["positional arguments", "options", "environment options"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_help_text_shows_what_only_python_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_of(name, capsys).replace("│", " ").split())
    for wrong in ("(default: None)", "None is", "None takes", "(default: )", "(default: '')", "options options"):
        assert wrong not in text


def test_help_says_what_the_presets_give(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(command: str) -> str:
        return " ".join(help_of(command, capsys).replace("│", " ").split())

    assert "Gradient steps. [paper 1_562_500; small 10_000, minatar 5_000, atari 15_000]" in shown("pretrain")
    assert "Agent steps of each seed. [paper 3_750_000; small 100_000, minatar 60_000]" in shown("online")
    assert "[paper 50_000_000; small 1_000_000, minatar 300_000, atari 500_000]" in shown("dqn")


def test_help_names_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(path.stem for path in (Path(__file__).parents[1] / "benchmarks").glob("*.py"))
    assert f"Benchmarks: {', '.join(names)}" in help_of("bench", capsys)


@pytest.mark.parametrize(("text", "expected"), [("1e4", 10_000), ("10_000", 10_000), ("2.5E3", 2_500), ("7", 7)])
def test_a_whole_number_may_be_written_in_several_ways(
    text: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, load = list[Any](), cli._load
    run = COMMANDS["online"].run
    monkeypatch.setattr(cli, "_load", lambda where: called.append if where == run else load(where))
    words = ["--encoder", "x", "--out", "y", "--steps", text, "--hidden", text, "3", "--max-steps", text]
    assert main(["online", *words]) == 0
    config = called[0]
    assert (config.steps, config.hidden, config.options.max_steps) == (expected, (expected, 3), expected)
    assert type(config.steps) is int


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
        ("collect minatar/breakout --out X --steps many", "--steps"),
        ("collect minatar/breakout --out X --steps 0", "--steps: found 0, expected at least 1"),
        ("collect minatar/breakuot --out X", "did you mean 'minatar/breakout'?"),
        ("collect minatar/breakout --out X --noop-max 3", "unknown option for minatar/breakout 'noop_max'"),
        ("collect minatar/breakout --out X --actions all", "--actions"),
        ("data info X --picture x.xyz", "--picture: found x.xyz, expected a name that ends in .png"),
        ("import rlu .", "--out: missing"),
        ("import dqn-replay . --out X", ".: found no file there, expected names such as $store$_observation_ckpt.0.gz"),
        ("data info nowhere", "nowhere: not a data set: manifest.json is missing"),
        ("data verify nowhere", "nowhere: not a data set: manifest.json is missing"),
        ("bench nothing", "unknown benchmark 'nothing'"),
        (
            "collect minatar/breakout --out X --stesp 3",
            "--stesp: pvn collect has no such option, did you mean --steps?",
        ),
        ("collect minatar/breakout --out X --xyzzy", "--xyzzy: pvn collect has no such option (`pvn collect --help`"),
        ("collect minatar/breakout y --out X", "found y, expected no more words without a flag"),
        ("collect --out X", "ENV: missing (`pvn collect --help` explains)"),
        ("collect minatar/breakout --out", "--out: found no value after it, expected one"),
        ("collect minatar/breakout --out X --steps 1e4x", "--steps: found '1e4x', expected a whole number such as"),
        ("collect minatar/breakout --out X --steps 1.5", "--steps: found '1.5', expected a whole number such as"),
        ("collect minatar/breakout --out X --steps 1.5e0", "--steps: found '1.5e0', expected a whole number such as"),
        ("collect minatar/breakout --out X --steps 1e99999", "--steps: found '1e99999', expected a whole number"),
        ("collect minatar/breakout --out X --sticky x", "--sticky: found 'x', expected a number"),
        ("collect minatar/breakout --out X --env-options 4", "--env-options: found '4', expected key=value"),
        ("pretrain", "--out: missing (`pvn pretrain --help` explains)"),
        ("pretrain --method", "--out: missing (`pvn pretrain --help` explains)"),
        ("pretrain --method bc", "--out: missing (`pvn pretrain --method bc --help` explains)"),
        ("pretrain --method=bc", "--out: missing (`pvn pretrain --method=bc --help` explains)"),
        (
            "pretrain --method bc --data X --out Y --tasks 5",
            "--tasks: found it with --method bc, expected it only with --method pvn, cumulants\n",
        ),
        ("pretrain --data X --out Y --horizon 5", "--horizon: found it with --method pvn, expected it only with"),
        ("pretrain --data X --out Y --width two", "--width: found 'two', expected a number"),
        ("pretrain --data X --out Y --tasks two", "--tasks: found 'two', expected a whole number"),
        ("pretrain --data X --out Y --normalize maybe", "--normalize: found 'maybe', expected yes or no ("),
        (f"pretrain --data X --out Y --backup {'x.' * 90}", f"--backup: found '{'x.' * 90}', expected mean or max"),
        (f"pretrain --data X --out Y --backup={'x.' * 90}", f"--backup: found '{'x.' * 90}', expected mean or max"),
        ("pretrain --data X --out Y --encoder resnet", "--encoder: found a name that it had before, expected --arch"),
        ("pretrain --data X --out Y --steps None", "--steps: found 'None', expected a whole number"),
        ("online --encoder X --out Y --hidden 3 b", "--hidden: found '3', 'b', expected numbers"),
        ("online --encoder X --out Y --double=3", "--double: found '3' after it, expected no value: it is a switch"),
        ("online --encoder X --out Y --hidden 0", "--hidden: found 0, expected 1 to 1,048,576"),
        ("pretrain --data X --out Y --indicator-options a=1", "--indicator-options: found a=1, expected it only with"),
        ("data info", "PATHS: found none, expected the folder of a data set"),
        ("collect nope.py/x --out X", "--env: found no file nope.py, expected a Python file"),
        ("tabular --out X", "WORLD: found neither, expected one of four-rooms"),
        ("list envs", "KIND: found 'envs', expected environments, encoders, methods, indicators, presets or all ("),
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


def test_the_package_can_be_run_as_the_command() -> None:
    command = [sys.executable, "-m", "protovalue"]
    assert subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout.split() == [
        "protovalue",
        protovalue.__version__,
    ]
    done = subprocess.run([*command, "colect"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("pvn: unknown command 'colect'")


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
    assert (
        f"{tmp_path}/file: found a file, expected a folder or a free name: {tmp_path}/file/set is to be there"
        in capsys.readouterr().err
    )


def test_a_file_in_place_of_a_folder_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main(["collect", "minatar/breakout", "--steps", "10", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"pvn: {tmp_path}/file: found a file, expected a folder or a free name\n"


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m protovalue.cli --help | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.startswith("pvn:")
