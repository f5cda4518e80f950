"""What `keep_freed_memory` does to the allocator."""

import ctypes
import platform
import subprocess
import sys

import pytest

from protovalue.nets import memory

FAULTS = """
import resource
import torch
from protovalue.nets.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(16 << 20)  # 64 MiB, freed at once: 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
default = faults()
keep_freed_memory()
faults()
print(default, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_freed_memory_is_used_again_without_page_faults():
    output = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True).stdout
    default, kept = map(int, output.split())
    assert kept < 100
    assert kept < default


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("the C library was asked"))
    memory.keep_freed_memory()
