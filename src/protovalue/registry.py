"""What has a name: environments, encoders, methods and indicators, of this package or of a Python file of the user's.

One of this package is a file in the folder of its kind that sets the kind's constant (`METHOD = ...`); the file's name
is its name. One of the user's is a Python file that does the same, anywhere: `path.py`, or `path.py:NAME` for another
class of that file. `Registry.load` is for what the user typed, on the command line or in a study file: it alone runs
such a file, and so does `load_code`. `Registry.find` is for names from anywhere, also from a file that somebody else
wrote: it finds what is in this package or was loaded before, and runs nothing.
"""

import ast
import hashlib
import importlib
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from protovalue.errors import UserError, unknown
from protovalue.user_code import module_name, run_file

_FILE = re.compile(r"(?P<path>.*\.py)(?::(?P<name>[A-Za-z_]\w*))?", re.DOTALL)
_GYM = re.compile(r"gym/(?P<path>.*\.py):(?P<id>[^:]+)", re.DOTALL)
_GAME = re.compile(r"(?P<file>.*\.py(?::[A-Za-z_]\w*)?)/(?P<game>[^/]+)", re.DOTALL)


def is_file(spec: str) -> bool:
    """Whether a name is that of a Python file of the user's, `path.py` or `path.py:NAME`."""
    return _FILE.fullmatch(spec) is not None


def name_of(spec: str) -> str:
    """Return the name by which a thing is recorded: that of its file or class, without a path, or the name that it is.

    So no file that is written names code to run.
    """
    found = _FILE.fullmatch(spec)
    return spec if found is None else found["name"] or Path(found["path"]).stem


def path_of(spec: str) -> Path:
    """Return the file of `path.py` or `path.py:NAME`."""
    found = _FILE.fullmatch(spec)
    return Path(spec if found is None else found["path"])


def split_env(env_id: str) -> tuple[str, str]:
    """Return the family of an environment, as given, and the name of its game: `path.py/GAME` or `FAMILY/GAME`."""
    found = _GAME.fullmatch(env_id)
    if found is not None:
        return found["file"], found["game"]
    family, _, game = env_id.partition("/")
    return family, game


def env_file(env_id: str) -> str | None:
    """Return the user's file that an environment is of: `path.py/GAME`, or `gym/path.py:ID`."""
    registered = _GYM.fullmatch(env_id)
    family = split_env(env_id)[0]
    return registered["path"] if registered is not None else family if is_file(family) else None


def env_name(env_id: str) -> str:
    """Return the name by which an environment is recorded: `maze/small` of `path/to/maze.py/small`.

    One that a file registers with Gymnasium is `gym/ID` of `gym/path/to/file.py:ID`.
    """
    registered = _GYM.fullmatch(env_id)
    if registered is not None:
        return f"gym/{registered['id']}"
    family, game = split_env(env_id)
    return f"{name_of(family)}/{game}" if game else env_id


def env_again(env: str | None) -> str:
    """Return what `pvn evaluate` needs beside the run: an environment whose code the user named is named again."""
    return f" --env {env}" if env is not None and (":" in env or env_name(env) != env) else ""


def checksum(specs: Iterable[str | None]) -> str:
    """Return a checksum of the user's Python files among these names; empty where there is none."""
    files = [path_of(spec) for spec in specs if spec is not None and is_file(spec)]
    parts = [path.read_bytes() for path in files if path.is_file()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest() if parts else ""


@dataclass(frozen=True)
class _Loaded:
    """A class that a file of the user's defined."""

    name: str
    where: str
    """The file, as the user named it."""
    cls: type[Any]


@dataclass(frozen=True)
class Registry:
    """All that there is of one kind."""

    kind: str
    """What one of them is called."""
    plural: str
    flag: str
    """Where the user names it."""
    package: str
    """The folder of this package's own."""
    constant: str
    """What a file sets to the class."""
    base: str
    """What the class extends, as "module:Class"."""
    page: str
    """The document about adding one."""
    loaded: dict[str, _Loaded] = field(default_factory=dict)
    """The user's own, by module and class."""

    def names(self) -> list[str]:
        """Return the names of this package's own; none of them is imported."""
        return list(_own(self.package, self.constant))

    def summaries(self) -> dict[str, str]:
        """Return the first line about each of this package's own; none of them is imported."""
        return dict(_own(self.package, self.constant))

    def find(self, name: str) -> Any:
        """Return the class of that name, or raise a UserError; never runs a file."""
        same = [one for one in self.loaded.values() if one.name == name_of(name)]
        exact = [self.loaded[key] for key in [_key(name)] if key in self.loaded]
        for one in exact or (same if len(same) == 1 else []):
            return one.cls
        if same:
            files = " and ".join(sorted(one.where for one in same))
            raise UserError(f"{self.kind} {name_of(name)!r}: found it in {files}, expected one of them")
        if name in self.names():
            return getattr(importlib.import_module(f"{self.package}.{name}"), self.constant)
        error = unknown(self.kind, name, self.names())
        raise UserError(f"{error}; {self.how_to_load(name_of(name))}")

    def load(self, spec: str) -> Any:
        """Return the class that the user named; their file is run, once for its contents."""
        if not is_file(spec):
            if spec not in self.names() and all(one.name != spec for one in self.loaded.values()):
                raise unknown(self.kind, spec, self.names())
            return self.find(spec)
        return self._take(spec, _run(path_of(spec), self.flag))

    def how_to_load(self, name: str) -> str:
        """Say how code of the user's that a file names is made known."""
        file = f"path/to/{name}.py"
        how = f"--env {file}/NAME" if self is ENVIRONMENTS else f"--code {file}"
        return (
            f"a file of yours that defines it is run only if it is named on the command line ({how}) or in your study "
            f"file, or if your own program loads it (protovalue.load_code('{file}'))"
        )

    def _take(self, spec: str, module: ModuleType) -> Any:
        """Take the class out of a file that was run, and make it known."""
        found = _FILE.fullmatch(spec)
        wanted = (found and found["name"]) or self.constant
        base = self.base_class()
        cls = getattr(module, wanted, None)
        path, name = path_of(spec), name_of(spec)
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise UserError(
                f"{self.flag}: {path} defines no {wanted}, expected a class that extends {base.__name__} ({self.page})"
            )
        if name in self.names():
            raise UserError(f"{self.flag}: found {spec}, but {name} is of this package, expected another name")
        self.loaded[_key(spec)] = _Loaded(name, str(path), cls)
        return cls

    def base_class(self) -> type[Any]:
        """Import what all of this kind extend."""
        where, name = self.base.split(":")
        base: type[Any] = getattr(importlib.import_module(where), name)
        return base


def run_once(path: Path, flag: str) -> None:
    """Run a file that the user named for what it does, such as registering an environment; once for its contents."""
    _run(path, flag)


def load_code(path: Path | str) -> None:
    """Run a Python file of yours and make known what it defines: ENVIRONMENT, ENCODER, METHOD, INDICATOR.

    With `path.py:NAME`, the class NAME. So encoders and runs that were made with it can be loaded.
    """
    spec = str(path)
    if not is_file(spec):
        raise UserError(f"--code: found {spec}, expected a Python file")
    module, found = _run(path_of(spec), "--code"), 0
    named = _FILE.fullmatch(spec)
    wanted = named and named["name"]
    for registry in REGISTRIES:
        cls = getattr(module, wanted or registry.constant, None)
        if cls is not None and (not wanted or (isinstance(cls, type) and issubclass(cls, registry.base_class()))):
            registry._take(spec, module)
            found += 1
    if not found:
        constants = wanted or ", ".join(registry.constant for registry in REGISTRIES)
        raise UserError(f"--code: {path_of(spec)} defines none of {constants}, expected one")


def _key(spec: str) -> str:
    """Tell files apart, also those of the same name, and the classes in one."""
    return f"{module_name(path_of(spec))}:{name_of(spec)}" if is_file(spec) else spec


_modules: dict[Path, tuple[str, ModuleType]] = {}  # what was run, and the checksum of what it was then


def _run(path: Path, flag: str) -> ModuleType:
    """Run a file of the user's, or take the module that it was the last time, if it has not changed."""
    place = path.resolve()
    now = checksum([str(place)])
    if place in _modules and _modules[place][0] == now:
        return _modules[place][1]
    module = run_file(path)
    if module is None:
        found = path if path.exists() else f"no file {path}"
        raise UserError(f"{flag}: found {found}, expected a Python file")
    _modules[place] = (now, module)
    return module


@cache
def _own(package: str, constant: str) -> dict[str, str]:
    """Return name and first line of every file in a package's folder that sets the constant, from its text alone."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0])
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    parsed = {name: ast.parse(text) for name, text in texts.items() if f"\n{constant} = " in text}
    return {name: (ast.get_docstring(tree) or "").partition("\n")[0] for name, tree in parsed.items()}


ENVIRONMENTS = Registry(
    "environment", "environments", "--env", "protovalue.envs", "ENVIRONMENT",
    "protovalue.envs.base:Family", "docs/adding-an-environment.md",
)  # fmt: skip
ENCODERS = Registry(
    "encoder", "encoders", "--architecture", "protovalue.nets", "ENCODER",
    "protovalue.nets.encoders:Encoder", "docs/adding-an-encoder.md",
)  # fmt: skip
METHODS = Registry(
    "method", "methods", "--method", "protovalue.pretrain", "METHOD",
    "protovalue.pretrain.base:Method", "docs/adding-a-method.md",
)  # fmt: skip
INDICATORS = Registry(
    "indicator", "indicators", "--indicator", "protovalue.indicators", "INDICATOR",
    "protovalue.indicators.base:Indicator", "docs/adding-an-indicator.md",
)  # fmt: skip
REGISTRIES = (ENVIRONMENTS, ENCODERS, METHODS, INDICATORS)
