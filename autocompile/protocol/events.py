"""What a trial says while it runs: one JSON line an event, signed with a nonce, capped.

Nothing that arrives is ever unpickled or evaluated. Only the standard library may be imported: the
supervisor, which imports neither torch nor numpy, speaks it too.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

_LONGEST_LINE = 8 * 2**20
FAILED_RANK = "failed_rank.json"
"""File in a trial's folder: the result of the first rank that failed, which is the trial's."""
RANKS_ARE_OVER = "ranks_are_over"
"""File in a trial's folder: all ranks have done their work, and the result has been sent."""
MEETING = "meeting"
"""File in a trial's folder by which its ranks find each other."""


class EventName(StrEnum):
    """What a line is about, in the order in which they come, and in brackets what else it holds."""

    # From the supervisor:
    WORKER_BEGAN = "worker_began"  # the worker runs (pid)
    # From the worker:
    STEP = "step"  # a step begins (step)
    MODULES = "modules"  # other trials will import these too (names)
    TOOLCHAIN = "toolchain"  # trials will compile for the CPU
    # What eager mode holds in each phase, and the memory that is free for trials (phases,
    # free_bytes, context_bytes).
    ROOM = "room"
    EXCLUSIVE = "exclusive"  # it waits until no other trial uses the machine
    SHARED = "shared"  # the others may go on
    # A trial is measured and right; the result if none follows (as RESULT).
    MEASURED = "measured"
    # The task is over (step, and what autocompile.protocol.requests says).
    RESULT = "result"
    # From the supervisor:
    # The worker and all below it are gone (code, and of several ranks which one ended first).
    WORKER_ENDED = "worker_ended"


class ChannelError(Exception):
    """Something that is no message of ours came through the channel."""


def encode(nonce: str, event: EventName, **fields: Any) -> str:
    """One event as a line."""
    message = {"nonce": nonce, "event": event.value, **fields}
    return json.dumps(message, default=_as_json) + "\n"


def _as_json(value: Any) -> Any:
    """A number of NumPy as Python's; anything else that JSON has no form for in words."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "size", 0) == 1 else str(value)


class LineReader:
    """Turns bytes into events, each with what its line holds."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[EventName, dict[str, Any]]]:
        """The events completed by these bytes; a ChannelError if a line is too long or no event."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (*lines, self._rest))) > _LONGEST_LINE:
            raise ChannelError(f"a line of more than {_LONGEST_LINE} bytes")
        return [self._parse(line) for line in lines]

    def _parse(self, line: bytes) -> tuple[EventName, dict[str, Any]]:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise ChannelError(f"no JSON: {line[:60]!r}") from None
        if not isinstance(message, dict) or message.pop("nonce", None) != self._nonce:
            raise ChannelError("a message with the wrong nonce")
        try:
            return EventName(message.pop("event", None)), message
        except ValueError as error:
            raise ChannelError(str(error)) from None
