"""Large blocks of memory that a process holds at its peak: a shared object that it preloads.

torch's own profiler sees neither what compiled code allocates nor nested profiles. ``preload`` gives
the environment of a child, and :class:`Blocks` reads the counts in it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def preload(folder: Path, least: int) -> dict[str, str]:
    """Build the shared object; the environment in which blocks of ``least`` bytes are counted."""
    library = folder / "counting.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return {**os.environ, "LD_PRELOAD": str(library), "BLOCKS_LEAST": str(least)}


class Blocks:
    """The blocks of this process, which ``preload`` has started."""

    def __init__(self, number_by: Callable[[int], int] | None = None) -> None:
        self._library = ctypes.CDLL(None)
        for name in ("blocks_at_peak", "blocks_bytes"):
            getattr(self._library, name).restype = ctypes.c_size_t
        for name in ("blocks_bytes", "blocks_number"):
            getattr(self._library, name).argtypes = [ctypes.c_size_t]
        self._library.blocks_number.restype = ctypes.c_long
        if number_by:
            kind = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_size_t)
            self._callback = kind(number_by)  # kept, since C calls it
            self._library.blocks_number_by(self._callback)

    def at_peak(self) -> list[tuple[int, int]]:
        """Bytes and number of each block when they were most together; the last one came then."""
        read = self._library
        count = read.blocks_at_peak()
        return [(read.blocks_bytes(n), read.blocks_number(n)) for n in range(count)]
