"""The tree shows the flow of data: imports inside the package go in one direction only."""

import ast
from pathlib import Path

import protovalue

ORDER = [
    "errors", "schema", "randomness", "user_code", "files", "diary", "interrupt", "processes", "progress", "precision",
    "config", "envs", "data", "losses", "runs", "nets", "indicators", "encoder", "feature_env", "pretrain", "online",
    "evaluate", "tabular", "report", "study", "demo", "bench", "cli",
]  # fmt: skip
ROOT = Path(protovalue.__file__).parent


def imported(path: Path) -> set[str]:
    """Return the top-level parts of this package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("protovalue."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("protovalue.")}
    return found


def test_imports_follow_the_flow():
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        assert part in ORDER, f"{part} has no place in the flow"
        later = {name for name in imported(path) if ORDER.index(name) > ORDER.index(part)}
        assert not later, f"{path.relative_to(ROOT)} imports {later}, which comes after it in the flow"


def test_tabular_stands_beside_the_deep_code():
    allowed = {"errors", "randomness", "files", "processes", "progress", "config", "losses", "tabular"}
    for path in (ROOT / "tabular").rglob("*.py"):
        assert imported(path) <= allowed, path.name


def test_every_file_says_what_lives_in_it():
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_no_public_name_hides_a_module():
    """`import protovalue.data` would replace a public name `data` by the module."""
    modules = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules.isdisjoint(protovalue.__all__)


def test_no_reader_unpickles_or_evaluates():
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
