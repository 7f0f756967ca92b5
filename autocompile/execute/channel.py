"""The parent's end of the result channel: JSON lines, versioned, signed with a nonce, capped.

Nothing that arrives here is ever unpickled or evaluated, and nothing that a trial prints can be
mistaken for a result: stdout and stderr go elsewhere.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from autocompile.store.files import not_for_all

__all__ = ["VERSION", "CappedLog", "ChannelError", "LineReader", "drain"]

VERSION = 1
_LONGEST_LINE = 8 * 2**20


class ChannelError(Exception):
    """Something that is no message of ours came through the channel."""


class LineReader:
    """Turns bytes into messages.

    Raises:
        ChannelError: from :meth:`feed`, for a line that is too long, no JSON object, of another
            version, or with the wrong nonce.
    """

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages completed by these bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (*lines, self._rest))) > _LONGEST_LINE:
            raise ChannelError(f"a line of more than {_LONGEST_LINE} bytes")
        return [self._parse(line) for line in lines]

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise ChannelError(f"no JSON: {line[:60]!r}") from None
        if not isinstance(message, dict) or message.get("v") != VERSION:
            raise ChannelError(f"not a message of version {VERSION}: {line[:60]!r}")
        if message.get("nonce") != self._nonce:
            raise ChannelError("a message with the wrong nonce")
        return message


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
