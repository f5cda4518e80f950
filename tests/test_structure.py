"""The tree shows the flow of data: imports inside the package go in one direction only."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import protovalue
from protovalue.cli import COMMANDS
from tests.documents import blocks, text_of

# The command line names what it runs and imports it when it is called: it comes before all that it runs.
ORDER = [
    "errors", "schema", "randomness", "user_code", "options", "own_options", "registry", "files", "interrupt",
    "processes", "compiling", "progress", "precision", "device", "config", "presets", "flags", "cli", "envs", "data",
    "losses", "runs", "distributed", "nets", "caches", "indicators", "card", "hub", "zoo", "encoder", "released",
    "feature_env", "integrations", "pretrain", "online", "collecting", "evaluate", "tabular", "study", "report",
    "probe", "sets", "publish", "api", "listing", "demo", "bench", "check",
]  # fmt: skip
ROOT = Path(protovalue.__file__).parent


def imported(source: str) -> set[str]:
    """Return the top-level parts of this package that a module imports: at its head, in a function, or by a name."""
    parts = {name.split(".")[1] for name in named(source) if name.startswith("protovalue.")}
    return parts - {"__version__"}


def named(source: str) -> set[str]:
    """Return whatever a module imports, by its full name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("protovalue.(relative)")
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func) and node.args:
            given = [text.value for text in ast.walk(node.args[0]) if isinstance(text, ast.Constant)]
            found |= {text for text in given if isinstance(text, str)}
    return found


def test_imports_follow_the_flow() -> None:
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        assert part in ORDER, f"{part} has no place in the flow"
        later = {name for name in imported(path.read_text()) if ORDER.index(name) > ORDER.index(part)}
        assert not later, f"{path.relative_to(ROOT)} imports {later}, which comes after it in the flow"


@pytest.mark.parametrize(
    "line",
    [
        "import protovalue.online.dqn",
        "from protovalue.online.dqn import train_dqn",
        "from protovalue.online import dqn",
        "from protovalue import online",
        "def f():\n    if x:\n        from protovalue.online.dqn import train_dqn",
        "if TYPE_CHECKING:\n    from protovalue.online.dqn import Dqn",
        "importlib.import_module('protovalue.online.dqn').main()",
        "import_module(f'protovalue.online.{name}')",
    ],
)
def test_no_way_to_import_is_overlooked(line: str) -> None:
    assert imported(line) == {"online"}


def rows() -> list[tuple[str, str]]:
    """Return what docs/architecture.md has a row for, and what must be unknown there."""
    return re.findall(r"^\| `(\w+)` \|.*\|(.*)\|$", text_of("docs/architecture.md"), re.MULTILINE)


def test_the_page_has_a_row_for_every_part_in_the_order_of_the_flow() -> None:
    assert [part for part, _ in rows()] == ORDER
    assert {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()} >= set(ORDER)


def test_what_a_part_must_not_know_by_the_page_it_does_not_import() -> None:
    for part, unknown in rows():
        names = set(re.findall(r"`(\w+)`", unknown))
        assert names <= {*ORDER, "torch", "numpy", "tyro"}, part
        for path in [ROOT / f"{part}.py", *(ROOT / part).rglob("*.py")]:
            source = path.read_text() if path.exists() else ""
            known = imported(source) | {name.split(".")[0] for name in named(source)}
            assert names.isdisjoint(known), f"{path.relative_to(ROOT)} imports {names & known}"


def test_the_picture_has_commands_and_parts_that_there_are() -> None:
    (picture,) = [block.text for block in blocks("docs/architecture.md") if block.language == "mermaid"]
    found = re.findall(r"pvn ([a-z ]*[a-z]) \(([a-z, ]+)\)", picture)
    assert len(found) == picture.count("pvn ")
    for command, parts in found:
        assert any(f"{name} ".startswith(f"{command} ") for name in COMMANDS), command
        assert set(parts.split(", ")) <= set(ORDER), command


def test_tabular_stands_beside_the_deep_code() -> None:
    allowed = {"errors", "randomness", "files", "processes", "progress", "config", "losses", "tabular"}
    for path in (ROOT / "tabular").rglob("*.py"):
        assert imported(path.read_text()) <= allowed, path.name


def test_every_file_says_what_lives_in_it() -> None:
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_a_public_name_that_is_also_a_module_can_be_called() -> None:
    """`import protovalue.data` would replace a public name `data` by the module; three of them are both."""
    modules = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules & set(protovalue.__all__) == {"evaluate", "pretrain", "report"}
    for name in ("evaluate", "pretrain", "report"):
        assert callable(importlib.import_module(f"protovalue.{name}"))


def test_no_reader_unpickles_or_evaluates() -> None:
    """Nothing in the package can turn data into code, but for what the user names: their own files and benchmarks."""
    modules = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "runpy", "code"}
    calls = {"eval", "exec", "compile", "__import__", "exec_module"}
    allowed = {"user_code.py", "bench.py"}  # exec_module, of a path that the user gave
    for path in ROOT.rglob("*.py"):
        where = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert modules.isdisjoint(name.split(".")[0] for name in names), where
            if not isinstance(node, ast.Call):
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            own = isinstance(node.func, ast.Name) or called == "exec_module"
            assert not (own and called in calls) or (called == "exec_module" and where in allowed), f"{where}: {called}"
            if called == "load" and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                assert node.func.value.id not in ("torch", "np", "numpy"), f"{where}: {called} may unpickle"
            assert not any(keyword.arg == "allow_pickle" for keyword in node.keywords), where


def test_flags_are_written_in_one_place() -> None:
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert path == ROOT / "config.py" or not re.search(r"""replace\(["']_["'], ["']-["']\)""", text), path
