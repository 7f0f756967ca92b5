"""Memory that is kept: what trials do on a CPU, and programs that use their settings."""

from __future__ import annotations

import contextlib
import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MOST_IN_HEAP, _KEPT_BYTES = 2**25, 2**28  # the first is the most that glibc takes


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, so that calls do not wait for pages that were given back.

    By itself it does so or not by how the heap happens to lie: eager calls of a network that needs
    8 MB for a moment took 1.8 ms in one process and 5.5 ms in the next, with 1,900 page faults.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MOST_IN_HEAP)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


@functools.cache
def keep_in_program() -> None:
    """Do so once, in a user's process."""
    keep_freed_memory()
