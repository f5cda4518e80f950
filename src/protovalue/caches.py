"""What is computed once per data set and kept for all later runs: where it lies, and `pvn cache list|clear`."""

import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from protovalue.config import INPUT, PLACE, Settings
from protovalue.errors import UserError
from protovalue.files import locked, read_json

PARTIAL = ".partial"  # the end of the name of what is not finished
_NAME = re.compile(rf"[0-9a-f]{{32}}({re.escape(PARTIAL)})?")
_SHOWN = 12  # characters of a name, which are enough to tell them apart
_ABOUT = "indicator.json"
_DAY = 86_400


def default_cache() -> Path:
    """Return the folder for what is computed once per data set: PROTOVALUE_CACHE, or the user's cache folder."""
    base = os.environ.get("PROTOVALUE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "protovalue"
    return Path(base).expanduser() / "indicators"


def size_text(size: int) -> str:
    """Return a size as text."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"


@dataclass(frozen=True, kw_only=True)
class CacheListConfig(Settings):
    """List what was computed once per data set: indicator rewards and cumulants, with their sizes.

    Example: pvn cache list
    """

    cache: Annotated[Path | None, PLACE] = None
    """Folder of the cache [the user's cache folder]."""


@dataclass(frozen=True, kw_only=True)
class CacheClearConfig(Settings):
    """Remove what was computed once per data set; a run that needs it computes it again.

    Example: pvn cache clear 3f2a9c

    Without names all of it is removed. What is being computed right now is left alone.
    """

    names: Annotated[Positional[tuple[str, ...]], INPUT] = ()
    """Names, as `pvn cache list` shows them; their beginning is enough."""
    cache: Annotated[Path | None, PLACE] = None
    """Folder of the cache [the user's cache folder]."""


@dataclass(frozen=True)
class Entry:
    """One folder of the cache."""

    path: Path
    size: int
    """Bytes."""
    used: float
    """When it was last written to, in seconds since 1970."""
    what: str

    @property
    def name(self) -> str:
        """Its name, as far as it is shown."""
        return self.path.name[:_SHOWN]


def entries(cache: Path) -> list[Entry]:
    """Return what lies in a cache, the largest first; other things in that folder are none of its."""
    if not cache.is_dir():
        if cache.exists():
            raise UserError(f"--cache: found a file {cache}, expected a folder")
        return []
    folders = [
        path for path in cache.iterdir() if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
    ]
    return sorted((_entry(folder) for folder in folders), key=lambda entry: (-entry.size, entry.path.name))


def _entry(folder: Path) -> Entry:
    files = [path.stat() for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
    return Entry(
        folder, sum(file.st_size for file in files), max((file.st_mtime for file in files), default=0.0), _what(folder)
    )


def _what(folder: Path) -> str:
    """Say what a folder holds, in a few words."""
    if folder.name.endswith(PARTIAL):
        return "being computed" if locked(folder) else "not finished"
    try:
        about: Any = read_json(folder / _ABOUT)
        one, states = about["indicator"], about.get("transitions")
        kind = "cumulants" if about.get("deviation") else f"indicators {json.dumps(one['name'])[1:-1][:40]}"
        shape = "x".join(str(int(size)) for size in one["observation_shape"])
        counted = f", {int(states):,} states" if states else ""
        return f"{kind}: {int(one['num_tasks'])} tasks{counted}, observations {shape}"
    except (UserError, OSError, AttributeError, KeyError, TypeError, ValueError):
        return "damaged"


def cache_list(config: CacheListConfig) -> None:
    """Print what lies in the cache."""
    cache = config.cache or default_cache()
    found = entries(cache)
    for entry in found:
        days = (time.time() - entry.used) / _DAY
        print(f"{entry.name}  {size_text(entry.size):>10}  {days:5.1f} days  {entry.what}")
    print(f"{cache}: {len(found)} entr{'y' if len(found) == 1 else 'ies'}, {size_text(sum(one.size for one in found))}")


def cache_clear(config: CacheClearConfig) -> None:
    """Remove what is asked for, and say how much there was."""
    cache = config.cache or default_cache()
    found = entries(cache)
    chosen: dict[Path, Entry] = {}
    for name in config.names:
        meant = [entry for entry in found if name and entry.path.name.startswith(name)]
        if len({entry.path.name.removesuffix(PARTIAL) for entry in meant}) != 1:
            raise UserError(f"NAMES: found {name!r}, which {len(meant)} entries of {cache} begin with, expected one")
        chosen |= {entry.path: entry for entry in meant}
    gone = 0
    for entry in chosen.values() if config.names else found:
        if entry.path.name.endswith(PARTIAL) and locked(entry.path):
            print(f"{entry.name}: left alone, as it is being computed")
            continue
        shutil.rmtree(entry.path)
        gone += entry.size
    print(f"{cache}: {size_text(gone)} removed")
