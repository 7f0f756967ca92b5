"""What runs in Ray's workers: a pipe to a station's process, and the keeper of the tokens.

Both are plain classes; ``links.py`` makes actors of them. The user's code never runs here.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import autocompile
from autocompile.cluster.hosts import Hosts, Orders
from autocompile.cluster.wire import Do, Say, decode, encode

__all__ = ["Pipe", "TokenKeeper", "restored"]

_OF_TOKENS = (Say.ASK, Say.HUSHED, Say.DONE)
_SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "SPT_NOENV")


def restored(now: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker without what Ray has changed; the visible GPUs stay.

    Args:
        now: of the worker.
        before: of the process that started it, which has what the machine had.
    """

    def is_rays(name: str) -> bool:
        return name in _SET_BY_RAY or name.startswith("RAY_")

    found = {name: value for name, value in now.items() if not is_rays(name)}
    return found | {name: value for name, value in before.items() if is_rays(name)}


def _environment_of(pid: int) -> dict[str, str]:
    """Of another process; empty where it cannot be read."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(p).split("=", 1) for p in pairs if b"=" in p)


class Pipe:
    """A station's process: lines in, lines out.

    Args:
        key: names it to the tokens' keeper, as no other station of any driver.
    """

    def __init__(self, key: str) -> None:
        self._key, self._tokens = key, None  # type: str, Any
        environment = restored(os.environ, _environment_of(os.getppid()))
        home = Path(autocompile.__file__).parent.parent
        if home.name != "site-packages":  # Ray has brought this package: it is not installed here
            paths = [str(home), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autocompile.cluster.station"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
        self._said = queue.SimpleQueue[str | None]()
        threading.Thread(target=self._read, daemon=True).start()

    def attach(self, tokens: Any) -> None:
        """Ask this keeper for tokens from now on."""
        is_new, self._tokens = self._tokens is not None, tokens
        if is_new:
            self.send(encode(Do.ANEW))

    def send(self, line: str) -> None:
        """Pass a line on; one to a dead process is lost, and :meth:`receive` says so."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._said.put(None)

    def receive(self, timeout_s: float) -> list[str | None]:
        """Wait for lines; None at the end: the process is dead."""
        found: list[str | None] = []
        try:
            found.append(self._said.get(timeout=timeout_s))
            while found[-1] is not None:
                found.append(self._said.get_nowait())
        except queue.Empty:
            pass
        return found

    def last(self) -> None:
        """Return once the process is dead; whoever waits also learns that the actor is."""
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                text = line.decode()
                kind = decode(text)["say"]
                if kind not in _OF_TOKENS:
                    self._said.put(text)
                elif self._tokens is not None:
                    self._tokens.hear.remote(self._key, kind.value)
        finally:  # also after a line that is no message
            self._said.put(None)


class TokenKeeper:
    """Hands out the tokens for measuring to the stations of all drivers, by their keys."""

    def __init__(self, group: str) -> None:
        self._hosts, self._pipes, self._lock = Hosts(), dict[str, Any](), threading.Lock()
        self._group = group  # of calls that wait

    def join(self, station: str, host: str, pipe: Any) -> None:
        """Add a station, until it is dead: its driver may not be there to say so."""
        self._pipes[station] = pipe
        self._order(self._hosts.join, station, host)
        end = pipe.last.options(concurrency_group=self._group).remote().future()
        end.add_done_callback(lambda _: self.leave(station))

    def leave(self, station: str) -> None:
        """Forget a station, and end it: it must not measure any more."""
        if (pipe := self._pipes.pop(station, None)) is not None:
            pipe.send.remote(encode(Do.CLOSE))
            self._order(self._hosts.leave, station)

    def allow(self, stations: Sequence[str], in_step: bool) -> None:
        self._order(self._hosts.allow, stations, in_step)

    def hear(self, station: str, kind: str) -> None:
        does = {Say.ASK: self._hosts.ask, Say.HUSHED: self._hosts.confirm}
        self._order(does.get(Say(kind), self._hosts.done), station)

    def _order(self, decide: Callable[..., Orders], *args: Any) -> None:
        with self._lock:  # ends are heard of in threads of their own
            for station, what in decide(*args):
                if (pipe := self._pipes.get(station)) is not None:
                    pipe.send.remote(encode(what))

    def last(self) -> None:
        """Never returns: whoever waits for it learns that the keeper is dead."""
        threading.Event().wait()
