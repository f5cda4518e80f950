"""What `keep_freed_memory` does to the allocator."""

import ctypes
import platform
import subprocess
import sys
from typing import Any

import pytest

from protovalue.nets import memory

FAULTS = """
import resource
import numpy as np
from protovalue.nets.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(64 << 20, np.uint8).fill(1)  # 64 MiB, freed at once: 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def least():  # the kernel may take pages away at any time, for reasons of its own
    return min(faults() for _ in range(5))

default = least()
keep_freed_memory()
print(default, least())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    output = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True).stdout
    default, kept = map(int, output.split())
    assert kept < 100
    assert kept < default


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("the C library was asked"))
    memory.keep_freed_memory()


def test_what_glibc_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its <malloc.h>: M_MMAP_MAX is -4, and 0 switches it off; M_TRIM_THRESHOLD is -1, and -1 switches it off."""
    calls = []

    class Library:
        def mallopt(self, parameter: Any, value: Any) -> None:
            calls.append((parameter, value))

    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.39"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    memory.keep_freed_memory()
    assert calls == [(-4, 0), (-1, -1)]
