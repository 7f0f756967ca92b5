"""Builds a target in a copy of the fork server, and says why it cannot serve the trials.

The user's code may do anything. So the copy does it, while the original keeps the limits that a
trial has: of time, of memory and of what it may print. The copy serves only if it is certain that a
fork of it is like a process that has built the target itself: :mod:`.belongings` are as before, the
GPU is untouched, nothing has been compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autocompile.protocol import processes
from autocompile.protocol.requests import Header, read_request
from autocompile.store.record import Step
from autocompile.trial.belongings import Belongings, settled

_POLL_S = 0.02
_MEMORY_POLL_S = 0.5
_MOST_PRINTED = 256 * 1024  # bytes: the log of a trial keeps so much from its beginning
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_EASY_TO_END = "900"


@dataclass(frozen=True)
class Said:
    """How a copy has fared.

    Attributes:
        why: trials have to build the target; empty if the copy can serve them.
        was_ended: whether it has gone beyond a limit.
        modules: libraries that are to be imported first, since they start threads.
    """

    why: str = ""
    was_ended: bool = False
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildLimits:
    """Of a build: as of a trial."""

    step_s: float
    memory_bytes: int | None


class _NotShared(Exception):
    """Forks would not be like processes that have built the target themselves."""

    def __init__(self, why: str, modules: tuple[str, ...] = ()) -> None:
        self.modules = modules
        super().__init__(why)


# --- in the original ------------------------------------------------------------------------------


def watch(
    copy: int,
    channel: socket.socket,
    printed: int,
    limits: BuildLimits,
    step: Callable[[str], None],
) -> Said:
    """Wait until a copy can serve or has ended, or is beyond a limit; that it ends is left to do.

    Processes that it leaves behind may keep the channel open, so that does not tell its end.
    """
    began, look_at, now_in = time.monotonic(), 0.0, Step.IMPORT
    lines = _Lines(channel)
    while True:
        # Asked first: all that it has said is there then.
        ended = os.waitid(os.P_PID, copy, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        for said in lines.come():
            if "step" not in said:
                return Said(said["why"], modules=tuple(said["modules"]))
            began, now_in = time.monotonic(), Step(said["step"])
            step(now_in.value)
        if ended is not None:
            return Said(f"its process ended {_how(ended)}")
        if time.monotonic() - began > limits.step_s:
            what = f"it was still in {now_in.value} after {limits.step_s:.0f} s"
            return Said(what, was_ended=True)
        if os.fstat(printed).st_size > _MOST_PRINTED:
            return Said(f"it prints more than {_MOST_PRINTED // 1024} KiB")
        if limits.memory_bytes and time.monotonic() > look_at:
            look_at = time.monotonic() + _MEMORY_POLL_S
            if _memory_bytes(copy) > limits.memory_bytes:
                gib = limits.memory_bytes / 2**30
                return Said(f"it held more than {gib:.1f} GiB", was_ended=True)
        time.sleep(_POLL_S)


class _Lines:
    """What a copy says, as far as it has come."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._channel, self._rest = channel, b""

    def come(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(BlockingIOError):
            while more := self._channel.recv(2**16):
                self._rest += more
        *lines, self._rest = self._rest.split(b"\n")
        yield from map(json.loads, lines)


def _how(ended: Any) -> str:
    if ended.si_code == os.CLD_EXITED:
        return f"with exit code {ended.si_status}"
    return f"by {signal.Signals(ended.si_status).name}"


def _memory_bytes(root: int) -> int:
    """Memory of a process and those below it, shared pages of files left out."""
    below, tree = processes.parents(), [root]
    for pid in tree:  # which grows meanwhile
        tree += [child for child, parent in below.items() if parent == pid]
    pages = 0
    for pid in tree:
        with contextlib.suppress(OSError):
            _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
            pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- in the copy ----------------------------------------------------------------------------------


def build_for_all(
    request: Mapping[str, Any],
    channel: socket.socket,
    printed: int,
    unfit: Callable[[], str],
) -> None:
    """Build the target and tell the original; returns only if this process can serve trials.

    ``unfit`` says why this process cannot fork.
    """
    this = os.getpid()
    said: dict[str, Any] = {"why": "", "modules": ()}
    try:
        with _ended_first():
            _build(request, channel, printed)
        said["why"] = unfit()
    except _NotShared as error:
        said = {"why": str(error), "modules": error.modules}
    except BaseException as error:  # SystemExit of the user's code as well
        said["why"] = f"{type(error).__name__}: {error}"[:1000] or "it fails"
    if os.getpid() != this:  # the user's code has forked, and the child has come back
        os._exit(70)
    _say(channel, **said)
    if said["why"]:
        processes.end_descendants()
        os._exit(0)


@contextlib.contextmanager
def _ended_first() -> Iterator[None]:
    """If memory runs out meanwhile, the kernel ends this process before others.

    A container whose own score is higher does not let it be changed.
    """
    usual = ""
    with contextlib.suppress(OSError):
        usual = _OOM_SCORE.read_text()
        _OOM_SCORE.write_text(_EASY_TO_END)
    yield
    if usual:
        with contextlib.suppress(OSError):
            _OOM_SCORE.write_text(usual)


def _build(request: Mapping[str, Any], channel: socket.socket, printed: int) -> None:
    import torch

    from autocompile.trial.measure import environment, telemetry
    from autocompile.trial.model import built

    header: Header = read_request(Path(request["folder"])).header
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    compiled = telemetry.compilations()
    with _printing_to(printed) as read:
        before = Belongings.now()

        def is_imported() -> None:
            now = settled(before)
            if now.has_more_threads(before):
                names = tuple(environment.library_modules())
                raise _NotShared(now.more_than(before), names)
            _say(channel, step=Step.BUILD.value)

        built.build_once(header, is_imported, read)
        gc.collect()  # closes what nobody refers to
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise _NotShared("it uses the GPU")
        if telemetry.compilations() != compiled:
            raise _NotShared("it compiles")
        if more := settled(before).more_than(before):
            raise _NotShared(more)


def _say(channel: socket.socket, **fields: Any) -> None:
    channel.sendall(json.dumps(fields).encode() + b"\n")


@contextlib.contextmanager
def _printing_to(file: int) -> Iterator[Callable[[], bytes]]:
    """Catch in a file what this process and those that it starts print; yields what reads it.

    That raises where the user's code has sent its output elsewhere.
    """
    _flush()
    kept = [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(file, number)

    def read() -> bytes:
        _flush()
        for number in (1, 2):
            if not os.path.sameopenfile(number, file):
                raise _NotShared("it redirects its output")
        size = os.fstat(file).st_size
        if size > _MOST_PRINTED:
            raise _NotShared(f"it prints more than {_MOST_PRINTED // 1024} KiB")
        return os.pread(file, size, 0)

    try:
        yield read
    finally:
        _flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    ctypes.CDLL(None).fflush(None)
