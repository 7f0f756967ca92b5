"""The parent's ends of a trial's pipes: its output goes to a log, and nothing there is a result."""

from __future__ import annotations

import os
from pathlib import Path

from autocompile.store.files import not_for_all

__all__ = ["CappedLog", "drain"]


class CappedLog:
    """A trial's output on disk: the first and the last part, with what was cut out counted."""

    def __init__(self, path: Path, head: int = 256 * 1024, tail: int = 64 * 1024) -> None:
        self._file = open(path, "wb", opener=not_for_all)  # noqa: SIM115  (closed in close())
        self._room = head
        self._keep = tail
        self._tail = b""
        self._cut = 0

    def write(self, data: bytes) -> None:
        """Take some output; a full disk loses the log, not the trial."""
        try:
            if self._room:
                self._file.write(data[: self._room])
                self._file.flush()
        except OSError:
            self._room = 0
        data, self._room = data[self._room :], max(0, self._room - len(data))
        if data:
            tail = self._tail + data
            self._cut += max(0, len(tail) - self._keep)
            self._tail = tail[-self._keep :]

    def close(self) -> None:
        """Write the kept tail and close."""
        try:
            if self._cut:
                self._file.write(f"\n[... {self._cut} bytes left out ...]\n".encode())
            self._file.write(self._tail)
            self._file.close()
        except OSError:
            pass


def drain(descriptor: int, most: int = 2**20) -> bytes | None:
    """What a non-blocking pipe holds now; None once it has ended."""
    try:
        return os.read(descriptor, most) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None
