"""A station: ``python -m autocompile.cluster.station`` runs jobs that it is told on its stdin.

It is a process of its own below a Ray actor, with the environment that the machine had before Ray,
and runs an ordinary ``LocalExecutor``. When its stdin ends, the actor is dead: it ends all it runs.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autocompile import __version__
from autocompile.cluster.paths import StationFolder
from autocompile.cluster.wire import Do, Say, decode, encode, job_of, sent_ending
from autocompile.errors import AutocompileError
from autocompile.execute.executor import Ended, Event, Stepped
from autocompile.execute.local import LocalExecutor
from autocompile.execute.memory import most_memory_bytes

__all__ = ["Station", "facts", "main"]

_IDLE_S, _GLANCE_S = 60.0, 0.1
_PATIENCE_S = 5.0  # to end itself once its stdin has ended


def facts() -> dict[str, Any]:
    """The machine and the versions, without importing torch."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "boot": boot.read_text().strip() if boot.exists() else socket.gethostname(),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "torch": torch,
        "autocompile": __version__,
    }


class Inbox:
    """Messages from a thread that reads stdin; a byte in a pipe says that there are some."""

    def __init__(self, source: int) -> None:
        self._messages = queue.SimpleQueue[str | None]()
        self.descriptor, self._bell = os.pipe()
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def _read(self, source: int) -> None:
        with open(source, encoding="utf-8") as lines:
            for line in lines:
                self._put(line)
        self._put(None)
        time.sleep(_PATIENCE_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _put(self, line: str | None) -> None:
        self._messages.put(line)
        os.write(self._bell, b"!")

    def take(self) -> list[str | None]:
        """What has come; None for the end."""
        found: list[str | None] = []
        while select.select([self.descriptor], [], [], 0)[0]:
            os.read(self.descriptor, 1)
            found.append(self._messages.get())
        return found


class Station:
    """Does what messages say, and writes what it has to say to a file; also the executor's host."""

    def __init__(self, inbox: Inbox, sink: int) -> None:
        self._inbox, self._sink = inbox, sink
        self._executor: LocalExecutor | None = None
        self._folder: StationFolder | None = None
        self._numbers: set[int] = set()
        self._slots = 0
        self._asked = self._has_token = self._is_hushing = self._is_hushed = False
        self._later: list[dict[str, Any]] = []  # jobs whose files are not copied beside a timing

    def run(self) -> None:
        """Work until it is told to close, or the actor is dead."""
        try:
            while all(map(self._take, self._inbox.take())):
                self._tell_changes()  # at once: others of the host wait for it
                # A fork server that becomes quiet does not end the wait.
                most_s = _GLANCE_S if self._is_hushing else _IDLE_S
                events = self._executor.wait(most_s) if self._executor else []
                for event in events:
                    self._tell(event)
                if not self._numbers and not events:
                    select.select([self._inbox.descriptor], [], [], most_s)
        except (AutocompileError, OSError, ValueError) as error:
            what = error.text() if isinstance(error, AutocompileError) else str(error)
            self._say(Say.FAILED, text=what)
        finally:
            if self._executor:
                self._executor.close()
            if self._folder:
                self._folder.remove()
            with contextlib.suppress(OSError):
                self._say(Say.CLOSED)

    # The executor's host --------------------------------------------------------------------------

    def may_measure(self) -> bool:
        """Whether this station has its host's token; if not, asks for it."""
        if not self._has_token and not self._asked:
            self._asked = True
            self._say(Say.ASK)
        return self._has_token

    def measured(self) -> None:
        if self._has_token:
            self._has_token = False
            self._say(Say.DONE)

    # What it is told ------------------------------------------------------------------------------

    def _take(self, line: str | None) -> bool:
        """Do what a message says; False to end."""
        message: dict[str, Any] = decode(line) if line is not None else {"do": Do.CLOSE}
        kind = message["do"]
        if kind is Do.CLOSE:
            return False
        if kind is Do.OPEN:
            self._open(message)
            return True
        if (executor := self._executor) is None:  # words of the tokens may come early
            return True
        if kind is Do.START and self._is_hushed:
            self._later.append(message)
        elif kind is Do.START:
            self._start(executor, message)
        elif kind is Do.CANCEL:
            self._later = [m for m in self._later if m["job"]["number"] != message["number"]]
            executor.cancel(message["number"])
        elif kind is Do.HUSH:
            executor.hush(True)
            self._is_hushing = self._is_hushed = True
        elif kind is Do.FREE:
            self._go_on(executor)
        elif kind is Do.GRANTED:
            self._asked, self._has_token, self._is_hushed = False, True, True
            executor.hush(True)
            if not executor.measure():
                self.measured()  # who wanted it has ended
        elif kind is Do.ANEW:
            self._go_on(executor)
            if self._asked:
                self._say(Say.ASK)
        return True

    def _go_on(self, executor: LocalExecutor) -> None:
        self._is_hushing = self._is_hushed = False
        executor.hush(False)
        later, self._later = self._later, []
        for message in later:
            self._start(executor, message)

    def _open(self, message: Mapping[str, Any]) -> None:
        self._folder = StationFolder(message["files"], message["place"], message["run"])
        jobs = message.get("jobs")
        self._executor = LocalExecutor(message["isolation"], jobs, host=self)
        if jobs is None:  # as many as on one machine, but no more than its share
            self._executor.slots = min(self._executor.slots, message["most_jobs"])
        self._executor.listen(self._inbox.descriptor)
        self._memory = message["memory_limit_bytes"]
        self._share = message["share"]
        self._slots = self._executor.slots
        self._say(Say.HELLO, slots=self._slots, **facts())

    def _start(self, executor: LocalExecutor, message: Mapping[str, Any]) -> None:
        assert self._folder is not None
        sent, number = message["job"], message["job"]["number"]
        if not self._numbers:
            self._folder.drop_caches(message["kept"])
        own = {
            "environment": self._folder.environment(number, sent["environment"]),
            "toolchain": self._folder.toolchain if sent["toolchain"] else None,
            "memory_limit_bytes": self._memory or self._limit(message["alone"]),
        }
        self._numbers.add(number)
        executor.start(job_of(sent, self._folder.prepare(number, message["request"]), **own))

    def _limit(self, alone: bool) -> int | None:
        """Its share of the machine's free memory, for one trial."""
        share = int(most_memory_bytes() * self._share)
        return (share if alone else share // max(1, self._slots)) or None

    # What it says ---------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        assert self._folder is not None
        if isinstance(event, Stepped):
            self._say(Say.STEPPED, number=event.number, step=event.step.value)
        elif isinstance(event, Ended):
            self._numbers.discard(event.number)
            files = self._folder.results(event.number)
            ending = sent_ending(event.ending)
            self._say(Say.ENDED, number=event.number, ending=ending, files=files)
        else:
            self._say(Say.TOLD, text=event.text)

    def _tell_changes(self) -> None:
        """Say what has become so since."""
        if self._executor and self._executor.slots != self._slots:
            self._slots = self._executor.slots
            self._say(Say.SLOTS, slots=self._slots)
        # It measures still where somebody new hands out the tokens.
        is_hushed = self._is_hushing and not self._has_token
        if self._executor and is_hushed and self._executor.is_quiet:
            self._is_hushing = False
            self._say(Say.HUSHED)

    def _say(self, kind: Say, **fields: Any) -> None:
        line = encode(kind, **fields)
        data = (self._folder.outward(line) if self._folder else line).encode() + b"\n"
        while data:
            data = data[os.write(self._sink, data) :]


def main() -> None:
    """Listen on stdin, speak on stdout; whatever else is printed goes to stderr."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Ray may have it ignored, and then nobody waits
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    Station(Inbox(source), sink).run()


if __name__ == "__main__":
    main()
