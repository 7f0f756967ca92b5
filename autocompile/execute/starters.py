"""One process starter for each interpreter."""

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
