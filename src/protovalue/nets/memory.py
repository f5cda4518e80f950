"""How the process's memory allocator treats the large tensors of a training step."""

import ctypes
import platform

# Parameters of glibc's mallopt, from <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Keep freed memory in the process for the next step, where the C library is glibc; elsewhere nothing happens.

    A training step frees and allocates the same hundreds of megabytes every time. By default glibc returns large blocks
    to the kernel, which has to fill every page with zeros again in the next step: a quarter of the processor time of a
    step of an Impala network (`pvn bench pretrain`). No result changes. The process keeps its peak memory until it
    ends, and the peak itself rises by some percent, because blocks of different sizes now share one heap.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_MAX, 0)  # large blocks come from the heap, too
    libc.mallopt(_M_TRIM_THRESHOLD, -1)  # and the heap never shrinks
