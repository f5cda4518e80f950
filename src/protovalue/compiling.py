"""Functions compiled by numba, once for each machine: what an earlier process compiled is taken from its cache."""

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

# What the compiled functions of agents and of their encoders compute, to the last bits. It is part of what a run
# records: change it with every change of their formulas or of the order of their sums.
VERSION = "2"  # 2: Impala and Nature encoders, too

# The same for what agents see of encoders with layer norm, which PyTorch alone computed before.
NORMALIZED = "1"

# The same for random networks on large frames (`nets/patches.py`), and so for the rewards that are made of them. It is
# also part of the name of such rewards in the cache.
PATCHES = "1"


def compiled(function: F, sources: Iterable[Path] = (), **options: Any) -> F:
    """Compile a function when it is first called, or load what an earlier process compiled.

    Args:
        function: in the part of Python that numba knows. Copies are better loops: numba takes seconds to compile an
            assignment of one slice to another.
        sources: other files than its own that it is made from. To see whether what was compiled is out of date numba
            looks at the function's own file only: its name will stand for the others.
        **options: of numba.njit.
    """
    import numba  # here and not above: it takes a third of a second

    name = function.__qualname__
    if content := b"".join(path.read_bytes() for path in sources):
        function.__qualname__ = f"{name}_{hashlib.sha256(content).hexdigest()[:16]}"
    try:
        return cast(F, numba.njit(function, cache=True, nogil=True, **options))
    except RuntimeError:  # neither the file's folder nor the user's cache can be written
        log.warning("compiling %s in every process: set NUMBA_CACHE_DIR to a folder to keep it in", name)
        return cast(F, numba.njit(function, nogil=True, **options))
