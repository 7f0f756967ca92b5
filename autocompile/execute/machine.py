"""This machine among several autocompiles and other programs.

One command at a time compiles or times, also where their GPUs differ: calls are launched from the
CPU, and while one is timed the other's compilers would run there. (Several GPUs of a host in one
search: ``--ray``.) The lock is a file in the temporary folder, one for each user; with another
``TMPDIR`` it is another lock. What other users hold is told and not waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from autocompile.errors import RunError
from autocompile.store.files import not_for_all

__all__ = ["busy_cores", "busy_gpu", "held", "take"]

_GLANCE_S = 0.5
_NAME = "autocompile-{}.lock"


def take(file: BinaryIO) -> bool:
    """Lock a file; a moment's patience is for those who only look whether it is held."""
    for pause_s in (0.05, 0.1, 0.2, None):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if pause_s:
            time.sleep(pause_s)
    return False


@contextlib.contextmanager
def held(doing: str, tell: Callable[[str], None], wait: bool = False) -> Iterator[float]:
    """Hold this machine; yields the seconds that it was waited for.

    Args:
        doing: what for, as another command names it.
        tell: is told of a wait, and of what cannot be locked.
        wait: until it is free, in place of an error.

    Raises:
        RunError: another autocompile of this user is at work.
    """
    folder, own = Path(tempfile.gettempdir()), _NAME.format(os.getuid())
    began, told = time.monotonic(), ""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(folder / own, "r+b", buffering=0, opener=_own_file))
            while not take(file):
                holder = _holder(file)
                if not wait:
                    raise RunError(
                        f"another autocompile is at work on this machine: {holder}",
                        "two at once spoil each other's timing",
                        hint="the same command with --wait, or when the other has ended",
                    )
                if holder != told:
                    tell(f"waiting for the autocompile that is at work on this machine: {holder}")
                    told = holder
                time.sleep(_GLANCE_S)
            file.truncate(0)
            since = time.strftime("%Y-%m-%d %H:%M")
            os.pwrite(file.fileno(), f"pid {os.getpid()} since {since}, {doing}".encode(), 0)
        except OSError as error:
            why = error.strerror or error
            tell(f"cannot tell whether another autocompile is at work: {folder / own}: {why}")
        for other in folder.glob(_NAME.format("*")):
            if other.name != own and (holder := _of_another_user(other)):
                tell(f"another user's autocompile is at work on this machine: {holder}")
        yield time.monotonic() - began if told else 0.0


def _own_file(path: str, flags: int) -> int:
    """Open a file of this user; what another has put there, or a link, is an OSError."""
    descriptor = not_for_all(path, flags | os.O_CREAT)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(0, "it is another user's")
    return descriptor


def _holder(file: BinaryIO) -> str:
    """What the holder of a lock has written there; nothing at the moment of its start."""
    words = os.pread(file.fileno(), 1000, 0).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in words) or "it has just begun"


def _of_another_user(path: Path) -> str:
    """Who holds this lock; empty if nobody, or if that cannot be seen."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
    return ""


def busy_cores(for_s: float = 0.25) -> float:
    """How many of the cores that this process may use are at work now; 0 where that is unknown."""
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    before = _jiffies(cores)
    time.sleep(for_s)
    shares = [
        1 - (idle - idle_before) / (total - total_before)
        for (idle, total), (idle_before, total_before) in zip(_jiffies(cores), before, strict=False)
        if total > total_before
    ]
    return round(sum(shares), 1)


def _jiffies(cores: set[str]) -> list[tuple[int, int]]:
    """Idle and whole time of each of these cores so far."""
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return []
    counts = [[int(n) for n in line[1:9]] for line in lines if line and line[0] in cores]
    return [(count[3] + count[4], sum(count)) for count in counts]  # waiting for a disk is idle


def busy_gpu() -> float:
    """The share of the last moment in which a GPU of this host computed, the most; 0 if unknown."""
    shares = [0.0]
    with contextlib.suppress(OSError, AttributeError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        count, gpu = ctypes.c_uint(), ctypes.c_void_p()
        percent = (ctypes.c_uint * 2)()  # of the GPU and of its memory
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return 0.0
        for index in range(count.value):
            refused = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu))
            if not (refused or nvml.nvmlDeviceGetUtilizationRates(gpu, ctypes.byref(percent))):
                shares.append(percent[0] / 100)
    return max(shares)
