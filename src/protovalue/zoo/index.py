"""The folder of the zoo: index.json with the checksum of every file, and a folder for each encoder."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protovalue.errors import UserError, unknown
from protovalue.files import read_bytes, read_json, reading, write_json
from protovalue.schema import checked, require

SCHEME = "zoo:"
INDEX = "index.json"
FORMAT, VERSION = "protovalue zoo", 1
HOME = Path(__file__).parent / "encoders"
_NAME = re.compile(r"[a-z0-9_]+(?:[/-][a-z0-9_]+)*")
_FILE = re.compile(r"[A-Za-z0-9_]+\.[a-z]+")


@dataclass(frozen=True)
class Index:
    """What index.json says."""

    format: str
    version: int
    made_by: str
    """The command that made the zoo."""
    encoders: dict[str, dict[str, str]]
    """By name: the SHA-256 of each file of its folder."""

    def __post_init__(self) -> None:
        require(self.format == FORMAT, "format", self.format, repr(FORMAT))
        require(self.version == VERSION, "version", self.version, str(VERSION))
        for name, files in self.encoders.items():
            require(_NAME.fullmatch(name) is not None, "encoders", name, "names such as minatar/breakout/pvn")
            odd = [one for one in files if not _FILE.fullmatch(one)]
            require(not odd, f"encoders.{name}", odd[:1], "names of files")


def is_name(text: str) -> bool:
    """Whether a text names an encoder of the zoo."""
    return text.startswith(SCHEME)


def home() -> Path:
    """Return the folder of the zoo: PROTOVALUE_ZOO, or the package's own."""
    given = os.environ.get("PROTOVALUE_ZOO")
    return Path(given).expanduser() if given else HOME


def read_index(root: Path) -> Index | None:
    """Read a zoo's index; None where there is no zoo."""
    path = root / INDEX
    return checked(Index, read_json(path), path) if path.is_file() else None


def write_index(root: Path, made_by: str, encoders: Mapping[str, Mapping[str, str]]) -> None:
    """Write a zoo's index."""
    fields = {"made_by": made_by, "encoders": {name: dict(files) for name, files in sorted(encoders.items())}}
    write_json(root / INDEX, {"format": FORMAT, "version": VERSION, **fields})


def sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a folder."""
    return {path.name: _sha256(path) for path in sorted(folder.iterdir())}


def folder_of(name: str) -> Path:
    """Return the folder of zoo:NAME, after its files were compared with their checksums."""
    wanted, root = name.removeprefix(SCHEME), home()
    index = read_index(root)
    if index is None or not index.encoders:
        raise UserError(f"{name}: {empty(root)}")
    if wanted not in index.encoders:
        raise unknown("encoder of the zoo", wanted, index.encoders)
    folder = root / wanted
    for file, expected in index.encoders[wanted].items():
        path = folder / file
        if not path.is_file():
            raise UserError(f"{path}: missing, expected it in the zoo")
        if _sha256(path) != expected:
            raise UserError(f"{path}: damaged: its checksum is not the one in {root / INDEX}")
    return folder


def empty(root: Path) -> str:
    """Say that there is no encoder in a zoo, and where one comes from."""
    return f"the zoo in {root} is empty; `pvn zoo make` fills it from a finished study"


def card_of(name: str) -> str:
    """Return the card of an encoder of the zoo."""
    return read_bytes(folder_of(name) / "README.md").decode()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with reading(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
