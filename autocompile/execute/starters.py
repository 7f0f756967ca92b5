"""A starter for each interpreter that trials run under."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from selectors import BaseSelector

import autocompile
from autocompile.execute.starter import Isolation, ProcessStarter

__all__ = ["ProcessStarters"]


class ProcessStarters:
    """Makes the starter of an interpreter when it is first asked for.

    Args:
        python: the interpreter of jobs that name none.
        isolation: how trials begin; see :class:`ProcessStarter`.
        tell: is told when one does otherwise than it began.
        selector: wakes whoever waits when a fork server says something.

    Raises:
        UsageError: no such isolation, or none on this system.
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
        """The starter of an interpreter; of the usual one for None."""
        name = python or self._python
        if name not in self._made:
            self._made[name] = ProcessStarter(
                name, self._isolation, self._tell, self._selector, self._lend()
            )
        return self._made[name]

    @property
    def are_busy(self) -> bool:
        """Whether a fork server imports or compiles something, which would disturb a timing."""
        return any(starter.is_busy for starter in self._made.values())

    def close(self) -> None:
        """End all of them."""
        for starter in self._made.values():
            starter.close()
        if self._library is not None:
            self._library.cleanup()
            self._library = None

    def _lend(self) -> dict[str, str]:
        """Environment variables by which another interpreter finds this package and nothing else.

        The folder that it lies in may hold all that is installed here, another torch too.
        """
        if self._library is None:
            self._library = tempfile.TemporaryDirectory(prefix="autocompile-lib-")
            package = Path(autocompile.__file__).parent
            (Path(self._library.name) / "autocompile").symlink_to(package)
        paths = [self._library.name, os.environ.get("PYTHONPATH", "")]
        return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
