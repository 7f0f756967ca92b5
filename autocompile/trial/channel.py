"""The trial's end of the result channel: JSON lines on a pipe of their own."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from autocompile.record import Step

__all__ = ["Channel"]

_VERSION = 1


class Channel:
    """Sends steps and the result to the parent, or to stdout when a trial is rerun by hand.

    Args:
        descriptor: the pipe; None for stdout.
        nonce: proves to the parent that a line is ours.
    """

    def __init__(self, descriptor: int | None, nonce: str) -> None:
        self._descriptor, self._nonce = descriptor, nonce
        self.current = Step.IMPORT
        if descriptor is not None:
            os.set_inheritable(descriptor, False)

    def step(self, step: Step) -> None:
        """Say which step begins."""
        self.current = step
        self._send({"event": "step", "step": step.value})

    def result(self, payload: dict[str, Any]) -> None:
        """Say how it ended; the first result counts."""
        self._send({"event": "result", "step": self.current.value, **payload})

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps({"v": _VERSION, "nonce": self._nonce, **message}) + "\n"
        if self._descriptor is None:
            sys.stdout.write(line)
            return
        data = line.encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
