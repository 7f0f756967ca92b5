"""Starts trial processes, by a fork of the fork server or in a fresh interpreter."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from selectors import BaseSelector
from typing import Literal

from autocompile.errors import UsageError
from autocompile.execute.child import Child
from autocompile.execute.executor import Job
from autocompile.execute.fork_server import ForkServer, ForkServerError

__all__ = ["Isolation", "ProcessStarter"]

Isolation = Literal["auto", "fork", "spawn"]

_MOST_DEATHS = 2  # of fork servers that nobody had asked to end


class ProcessStarter:
    """Starts the processes of trials.

    Args:
        python: the interpreter.
        isolation: ``fork`` takes trials from a warm process, ``spawn`` starts an interpreter for
            each, ``auto`` forks where that is safe.
        tell: is told, once, when it does otherwise than it began.
        selector: wakes whoever waits when a fork server says something.
        variables: of the environment, on top of the parent's.

    Raises:
        UsageError: no such isolation, or none on this system.
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
        """Whether a trial can begin at once; begins what it has to wait for.

        Args:
            job: the trial.
            alone: no other trial is running, so that the fork server may be replaced.

        Raises:
            UsageError: the user insists on forking where that is not safe.
        """
        while self._forks and not job.fresh:
            try:
                # While it imports it grows as it should.
                if (
                    alone
                    and self._fork_server
                    and not self.is_busy
                    and self._fork_server.has_grown()
                ):
                    self.close()
                if self._fork_server is None:
                    self._fork_server = ForkServer(self._python, self._variables, self._selector)
                    if any(self._warmth):
                        self._fork_server.warm(*self._warmth)
                return self._fork_server.is_ready()
            except ForkServerError as error:
                self._renounce(error)
        return True

    @property
    def is_busy(self) -> bool:
        """Whether the fork server imports or compiles something, which would disturb a timing."""
        return self._fork_server is not None and self._fork_server.is_busy

    def start(self, child: Child) -> bool:
        """Start a trial's processes; :meth:`is_ready` has said that it can.

        Args:
            child: the trial; its ``supervisor`` and ``pidfd`` are filled in.

        Returns:
            False if the fork server has died meanwhile: the trial is to be tried again.

        Raises:
            UsageError: the user insists on forking where that is not safe.
            OSError: no process can be started.
        """
        if not self._forks or child.job.fresh or self._fork_server is None:
            self._spawn(child)
            return True
        try:
            self._fork_server.fork(child)
        except ForkServerError as error:
            self._renounce(error)
        return child.forked

    def warm(self, modules: Sequence[str], toolchain: Path | None) -> None:
        """Import these modules, and prepare this toolchain, in the process that trials come from.

        Args:
            modules: by name; none: those that it knows already.
            toolchain: where what every compiler cache starts with is to be; None: as it was.
        """
        self._warmth = (modules or self._warmth[0], toolchain or self._warmth[1])
        if self._fork_server is not None:
            try:
                self._fork_server.warm(modules, toolchain)
            except ForkServerError as error:
                self._renounce(error)

    def close(self) -> None:
        """End the fork server; the next trial is forked from a new one."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None

    def _renounce(self, error: ForkServerError) -> None:
        """Do without the target's imports, or without the fork server.

        Raises:
            UsageError: the user insists on forking.
        """
        self.close()
        self._deaths += not error.is_unfit
        if not error.is_unfit and self._deaths <= _MOST_DEATHS:
            return  # it was killed from outside, say: a new one does
        if any(self._warmth):
            self._warmth = ((), None)
            self._tell(f"trials are forked without the target's imports: {error}")
            return
        self._forks = False
        if self._insists:
            raise UsageError(f"trials cannot be forked here: {error}", hint="--isolation spawn")
        self._tell(f"each trial starts its own interpreter, which is slower: {error}")

    def _spawn(self, child: Child) -> None:
        results, output, control = child.pipes.theirs
        theirs = child.arguments
        command = [self._python, "-m", "autocompile.trial", theirs["folder"]]
        options = {"channel": results, "control": control, "parent": os.getpid()}
        options |= {"nonce": theirs["nonce"], "cgroup": theirs["cgroup"]}
        options |= {"fork_server": int(self._forks)}
        child.process = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(results, control),
            start_new_session=True,
            env={**os.environ, **self._variables, **theirs["environment"]},
        )
        child.supervisor = child.process.pid
        with contextlib.suppress(OSError, AttributeError):
            child.pidfd = os.pidfd_open(child.supervisor)
