"""Starts trial processes under each interpreter: forks of its fork server, or new interpreters."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from selectors import BaseSelector
from typing import Literal

import autocompile
from autocompile.errors import UsageError
from autocompile.execute.child import Child
from autocompile.execute.executor import Job
from autocompile.execute.fork_server import ForkServer, ForkServerError

__all__ = ["Isolation", "ProcessStarter", "ProcessStarters"]

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
        variables: environment variables on top of the parent's.

    Raises:
        UsageError: unknown isolation, or not available on this system.
    """

    def __init__(
        self,
        python: str,
        isolation: Isolation,
        tell: Callable[[str], None],
        selector: BaseSelector,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        if isolation not in ("auto", "fork", "spawn"):
            raise UsageError(f"unknown isolation {isolation!r} (choose from: auto, fork, spawn)")
        self._python, self._tell, self._variables = python, tell, dict(variables or {})
        self._selector = selector
        self._insists = isolation == "fork"
        self._forks = isolation != "spawn" and sys.platform == "linux"
        if self._insists and not self._forks:
            raise UsageError("trials can be forked on Linux only", hint="--isolation spawn")
        self._fork_server: ForkServer | None = None
        self._warmth: tuple[Sequence[str], Path | None] = ((), None)
        self._deaths = 0

    def is_ready(self, job: Job, alone: bool) -> bool:
        """Whether a trial can start at once; if not, starts the fork server that it waits for.

        Args:
            job: the trial.
            alone: no other trial is running, so the fork server may be replaced.

        Raises:
            UsageError: isolation is ``fork``, and forking is not safe.
        """
        while self._forks and not job.fresh:
            try:
                server = self._fork_server
                # While it imports, it is expected to grow.
                if alone and server and not self.is_busy and server.has_grown():
                    self.close()
                if self._fork_server is None:
                    self._fork_server = ForkServer(self._python, self._variables, self._selector)
                    if any(self._warmth):
                        self._fork_server.warm(*self._warmth)
                return self._fork_server.is_ready()
            except ForkServerError as error:
                self._fall_back(error)
        return True

    @property
    def is_busy(self) -> bool:
        """Whether the fork server imports or compiles something, which would disturb timings."""
        return self._fork_server is not None and self._fork_server.is_busy

    def start(self, child: Child) -> bool:
        """Start a trial's processes, after :meth:`is_ready` returned True.

        Args:
            child: the trial; its ``supervisor`` and ``pidfd`` are set.

        Returns:
            False if the fork server has died since; try again.

        Raises:
            UsageError: isolation is ``fork``, and forking is not safe.
            OSError: no process can be started.
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
        """Have the fork server import modules and prepare a toolchain, now and after a restart.

        Args:
            modules: names of modules; empty: unchanged.
            toolchain: folder for the files that every compiler cache starts with; None: unchanged.
        """
        self._warmth = (modules or self._warmth[0], toolchain or self._warmth[1])
        if self._fork_server is not None:
            try:
                self._fork_server.warm(modules, toolchain)
            except ForkServerError as error:
                self._fall_back(error)

    def close(self) -> None:
        """Kill the fork server; the next trial starts a new one."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None

    def _fall_back(self, error: ForkServerError) -> None:
        """Fork without the target's imports, or else start interpreters.

        Raises:
            UsageError: isolation is ``fork``.
        """
        self.close()
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


class ProcessStarters:
    """Creates the starter of each interpreter on first use.

    Args:
        python: the interpreter of jobs that name none.
        isolation: as for :class:`ProcessStarter`, like ``tell`` and ``selector``.
        tell: called with messages for the user.
        selector: sockets of fork servers are registered here.

    Raises:
        UsageError: unknown isolation, or not available on this system.
    """

    def __init__(
        self,
        python: str,
        isolation: Isolation,
        tell: Callable[[str], None],
        selector: BaseSelector,
    ) -> None:
        self._python, self._isolation, self._tell = python, isolation, tell
        self._selector = selector
        self._made = {python: ProcessStarter(python, isolation, tell, selector)}
        self._library: tempfile.TemporaryDirectory[str] | None = None

    def of(self, python: str | None) -> ProcessStarter:
        """The starter of an interpreter; None means the default one."""
        name = python or self._python
        if name not in self._made:
            self._made[name] = ProcessStarter(
                name, self._isolation, self._tell, self._selector, self._package_path()
            )
        return self._made[name]

    @property
    def are_busy(self) -> bool:
        """Whether any fork server imports or compiles something."""
        return any(starter.is_busy for starter in self._made.values())

    def close(self) -> None:
        """Kill all fork servers."""
        for starter in self._made.values():
            starter.close()
        if self._library is not None:
            self._library.cleanup()
            self._library = None

    def _package_path(self) -> dict[str, str]:
        """Environment variables that make this package importable in another interpreter.

        The package gets a folder of its own, since site-packages here may hold another torch.
        """
        if self._library is None:
            self._library = tempfile.TemporaryDirectory(prefix="autocompile-lib-")
            package = Path(autocompile.__file__).parent
            (Path(self._library.name) / "autocompile").symlink_to(package)
        paths = [self._library.name, os.environ.get("PYTHONPATH", "")]
        return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
