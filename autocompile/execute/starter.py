"""Starts trial processes under an interpreter: forks of its fork server, or new interpreters."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from selectors import BaseSelector
from typing import Literal

import autocompile
from autocompile.errors import UsageError
from autocompile.execute.child import Child
from autocompile.execute.executor import Job
from autocompile.execute.fork_server import ForkServer, ForkServerError

__all__ = ["Isolation", "ProcessStarter"]

Isolation = Literal["auto", "fork", "spawn"]

_MOST_DEATHS = 2  # of fork servers that died unexpectedly


class ProcessStarter:
    """Starts trial processes under one interpreter.

    Args:
        python: the interpreter.
        isolation: ``fork`` forks trials from the fork server, ``spawn`` starts an interpreter for
            each, ``auto`` forks where that is safe.
        tell: called with a message when it falls back to a slower way.
        selector: the fork server's socket is registered here.

    Raises:
        UsageError: unknown isolation, or not available on this system; from all methods: isolation
            is ``fork``, and forking is not safe.
    """

    def __init__(
        self, python: str, isolation: Isolation, tell: Callable[[str], None], selector: BaseSelector
    ) -> None:
        if isolation not in ("auto", "fork", "spawn"):
            raise UsageError(f"unknown isolation {isolation!r} (choose from: auto, fork, spawn)")
        if not Path("/proc/self/task").exists():
            raise UsageError("trials run on Linux only, with /proc mounted")
        self._python, self._tell, self._selector = python, tell, selector
        self._insists, self._forks = isolation == "fork", isolation != "spawn"
        self._library: tempfile.TemporaryDirectory[str] | None = None
        self._variables: dict[str, str] = {}  # on top of the parent's
        if python != sys.executable:
            self._lend_package()
        self._fork_server: ForkServer | None = None
        self._warmth: tuple[Sequence[str], Path | None] = ((), None)
        self._deaths = 0

    def is_ready(self, job: Job) -> bool:
        """Whether a trial can start at once; if not, starts the fork server that it waits for."""
        while self._forks and not job.fresh:
            try:
                if self._fork_server is None:
                    self._fork_server = ForkServer(self._python, self._variables, self._selector)
                    if any(self._warmth):
                        self._fork_server.warm(*self._warmth)
                return self._fork_server.is_ready()
            except ForkServerError as error:
                self._fall_back(error)
        return True

    def settle(self) -> None:
        """Have the fork server do now what it would do before the next trial."""
        if self._fork_server is not None:
            try:
                self._fork_server.prepare()
            except ForkServerError as error:
                self._fall_back(error)

    @property
    def is_busy(self) -> bool:
        """Whether the fork server imports or compiles something, which would disturb timings."""
        return self._fork_server is not None and self._fork_server.is_busy

    def start(self, child: Child) -> bool:
        """Start a trial's processes, after :meth:`is_ready`; sets its ``supervisor`` and ``pidfd``.

        Returns:
            False if the fork server has died since; try again.
        """
        if not self._forks or child.job.fresh or self._fork_server is None:
            child.process = self._interpreter(child)
            child.supervisor = child.process.pid
        else:
            try:
                child.supervisor = self._fork_server.fork(child.arguments, child.pipes.theirs)
            except ForkServerError as error:
                self._fall_back(error)
                return False
            child.forked = True
        with contextlib.suppress(OSError, AttributeError):
            child.pidfd = os.pidfd_open(child.supervisor)
        return True

    def warm(self, modules: Sequence[str], toolchain: Path | None) -> None:
        """Have the fork server import modules or prepare a toolchain, now and after a restart."""
        self._warmth = (modules or self._warmth[0], toolchain or self._warmth[1])
        if self._fork_server is not None:
            try:
                self._fork_server.warm(modules, toolchain)
            except ForkServerError as error:
                self._fall_back(error)

    def close(self) -> None:
        self._end_fork_server()
        if self._library is not None:
            self._library.cleanup()

    def _end_fork_server(self) -> None:
        """The next trial starts a new one."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None

    def _fall_back(self, error: ForkServerError) -> None:
        """Fork without the target's imports, or else start interpreters."""
        self._end_fork_server()
        self._deaths += not error.is_unfit
        if not error.is_unfit and self._deaths <= _MOST_DEATHS:
            return  # it may have been killed from outside: try a new one
        if any(self._warmth):
            self._warmth = ((), None)
            self._tell(f"trials are forked without the target's imports: {error}")
            return
        self._forks = False
        if self._insists:
            raise UsageError(f"trials cannot be forked here: {error}", hint="--isolation spawn")
        self._tell(f"each trial starts its own interpreter, which is slower: {error}")

    def _interpreter(self, child: Child) -> subprocess.Popen[bytes]:
        results, output, control = child.pipes.theirs
        theirs = child.arguments
        options = {"channel": results, "control": control, "parent": os.getpid()}
        options |= {"nonce": theirs["nonce"], "cgroup": theirs["cgroup"]}
        options |= {"fork_server": int(self._forks)}
        command = [self._python, "-m", "autocompile.trial", theirs["folder"]]
        return subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(results, control),
            start_new_session=True,
            env={**os.environ, **self._variables, **theirs["environment"]},
        )

    def _lend_package(self) -> None:
        """Make this package importable in another interpreter.

        It gets a folder of its own, since site-packages here may hold another torch.
        """
        self._library = tempfile.TemporaryDirectory(prefix="autocompile-lib-")
        package = Path(autocompile.__file__).parent
        (Path(self._library.name) / "autocompile").symlink_to(package)
        paths = [self._library.name, os.environ.get("PYTHONPATH", "")]
        self._variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
