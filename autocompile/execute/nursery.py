"""The nursery: brings trials into the world, by a fork of the zygote or in a fresh interpreter."""

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
from autocompile.execute.zygote import Zygote, ZygoteError

__all__ = ["Isolation", "Nursery"]

Isolation = Literal["auto", "fork", "spawn"]

_MOST_DEATHS = 2  # of zygotes that nobody had asked to end


class Nursery:
    """Starts the processes of trials.

    Args:
        python: the interpreter.
        isolation: ``fork`` takes trials from a warm process, ``spawn`` starts an interpreter for
            each, ``auto`` forks where that is safe.
        tell: is told, once, when it does otherwise than it began.
        selector: wakes whoever waits when a zygote says something.
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
            raise UsageError(f"isolation {isolation!r} is none of auto, fork, spawn")
        self._python, self._tell, self._variables = python, tell, dict(variables or {})
        self._selector = selector
        self._insists = isolation == "fork"
        self._forks = isolation != "spawn" and sys.platform == "linux"
        if self._insists and not self._forks:
            raise UsageError("trials are forked on Linux only", hint="--isolation spawn")
        self._zygote: Zygote | None = None
        self._warmth: tuple[Sequence[str], Path | None] = ((), None)
        self._deaths = 0

    def is_ready(self, job: Job, alone: bool) -> bool:
        """Whether a trial can begin at once; begins what it has to wait for.

        Args:
            job: the trial.
            alone: no other trial is running, so that the zygote may be replaced.

        Raises:
            UsageError: the user insists on forking where that is not safe.
        """
        while self._forks and not job.fresh:
            try:
                # While it imports it grows as it should.
                if alone and self._zygote and not self.is_busy and self._zygote.has_grown():
                    self.close()
                if self._zygote is None:
                    self._zygote = Zygote(self._python, self._variables, self._selector)
                    if any(self._warmth):
                        self._zygote.warm(*self._warmth)
                return self._zygote.is_ready()
            except ZygoteError as error:
                self._renounce(error)
        return True

    @property
    def is_busy(self) -> bool:
        """Whether the zygote imports or compiles something, which would disturb a timing."""
        return self._zygote is not None and self._zygote.is_busy

    def bear(self, child: Child) -> bool:
        """Start a trial's processes; :meth:`is_ready` has said that it can.

        Args:
            child: the trial; its ``warden`` and ``pidfd`` are filled in.

        Returns:
            False if the zygote has died meanwhile: the trial is to be tried again.

        Raises:
            UsageError: the user insists on forking where that is not safe.
            OSError: no process can be started.
        """
        if not self._forks or child.job.fresh or self._zygote is None:
            self._spawn(child)
            return True
        try:
            self._zygote.fork(child)
        except ZygoteError as error:
            self._renounce(error)
        return child.forked

    def warm(self, modules: Sequence[str], toolchain: Path | None) -> None:
        """Import these modules, and prepare this toolchain, in the process that trials come from.

        Args:
            modules: by name; none: those that it knows already.
            toolchain: where what every compiler cache starts with is to be; None: as it was.
        """
        self._warmth = (modules or self._warmth[0], toolchain or self._warmth[1])
        if self._zygote is not None:
            try:
                self._zygote.warm(modules, toolchain)
            except ZygoteError as error:
                self._renounce(error)

    def close(self) -> None:
        """End the zygote; the next trial is forked from a new one."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _renounce(self, error: ZygoteError) -> None:
        """Do without what makes the zygote unfit: first the target's imports, then the zygote.

        Raises:
            UsageError: the user insists on forking.
        """
        self.close()
        self._deaths += not error.is_unfit
        if not error.is_unfit and self._deaths <= _MOST_DEATHS:
            return  # it was killed from outside, say: a new one does
        if any(self._warmth):
            self._warmth = ((), None)
            self._tell(f"trials are forked without what the target imports: {error}")
            return
        self._forks = False
        if self._insists:
            raise UsageError(f"trials cannot be forked here: {error}", hint="--isolation spawn")
        self._tell(f"each trial starts an interpreter of its own, which is slower: {error}")

    def _spawn(self, child: Child) -> None:
        results, output, control = child.pipes.theirs
        theirs = child.arguments
        command = [self._python, "-m", "autocompile.trial", theirs["folder"]]
        options = {"channel": results, "control": control, "parent": os.getpid()}
        options |= {"nonce": theirs["nonce"], "cage": theirs["cage"]}
        options |= {"zygote": int(self._forks)}
        child.process = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(results, control),
            start_new_session=True,
            env={**os.environ, **self._variables, **theirs["environment"]},
        )
        child.warden = child.process.pid
        with contextlib.suppress(OSError, AttributeError):
            child.pidfd = os.pidfd_open(child.warden)
