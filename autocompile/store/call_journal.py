"""The calls of a program as they happen: one line each, so that nothing is lost however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from autocompile.store.recorded_calls import RecordedCalls

_KEPT = 100_000  # calls of a module, so that a server that runs for days stays small


class Journal:
    """Adds calls to a file. Threads and forked processes may share one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)
        # By process, module and call, since a forked process has what its parent noted.
        self._numbers: dict[tuple[int, str, str], int] = {}
        self._counts: dict[tuple[int, str], int] = {}

    def _begin_anew(self) -> None:
        """A lock that no thread of before a fork holds."""
        self._lock = threading.Lock()

    def add(
        self, module: str, model: str, has_weights: bool, call: str, seconds: float
    ) -> None:
        """Note a call (JSON) of a module, by a key of its own and the name of its class."""
        process = os.getpid()
        with self._lock:
            count = self._counts.get((process, module), 0)
            if count >= _KEPT:
                return
            self._counts[process, module] = count + 1
            place = (process, module, call)
            is_new = place not in self._numbers
            number = self._numbers.setdefault(place, len(self._numbers))
            line = {"of": f"{process} {module}", "model": model, "call": number}
            line |= {"has_weights": has_weights, "seconds": round(seconds, 6)}
            line |= {"text": call} if is_new else {}
            # One write: lines of several processes do not mix. The program is the user's own, which
            # a full disk of ours must not end.
            # Opened each time: the program may close every file that it has not opened itself.
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                file = os.open(self._path, flags, 0o600)
                try:
                    os.write(file, json.dumps(line).encode() + b"\n")
                finally:
                    os.close(file)


@dataclass
class Called:
    """One module in a process, and what it was called with."""

    model: str
    has_weights: bool
    distinct: dict[int, str] = field(default_factory=dict)  # calls as JSON
    order: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def calls(self) -> RecordedCalls:
        places = {number: place for place, number in enumerate(self.distinct)}
        distinct = tuple(json.loads(text) for text in self.distinct.values())
        return RecordedCalls(
            self.model, distinct, tuple(places[number] for number in self.order)
        )


def called_modules(path: Path) -> list[Called]:
    """The modules of a journal, that with most time first, and those without weights last.

    A line that is cut off is left out.
    """
    found: dict[str, Called] = {}
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:  # it was cut off
            continue
        new = Called(line["model"], line["has_weights"])
        one = found.setdefault(line["of"], new)
        if "text" in line:
            one.distinct[line["call"]] = line["text"]
        if line["call"] not in one.distinct:
            continue  # the line that says what it was is lost
        one.order.append(line["call"])
        one.seconds += line["seconds"]
    called = [one for one in found.values() if one.order]
    return sorted(called, key=lambda one: (not one.has_weights, -one.seconds))
