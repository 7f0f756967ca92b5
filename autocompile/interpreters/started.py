"""Other interpreters run trials: they need torch, and this package without its neighbours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import autocompile
from autocompile.errors import UsageError


def lent_package() -> tuple[tempfile.TemporaryDirectory[str], dict[str, str]]:
    """Make this package importable in another interpreter; a folder, and variables that name it.

    It gets a folder of its own, since site-packages here may hold another torch.
    """
    library = tempfile.TemporaryDirectory(prefix="autocompile-lib-")
    package = Path(autocompile.__file__).parent
    (Path(library.name) / "autocompile").symlink_to(package)
    paths = [library.name, os.environ.get("PYTHONPATH", "")]
    return library, {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def demand_torch(python: str, timeout_s: float) -> None:
    """Start the interpreter once and import torch and numpy.

    Raises:
        UsageError: it does not start, does not exit within ``timeout_s``, has no torch, or is a
            script that stays between this process and Python.
    """
    try:
        process = subprocess.Popen(
            [python, "-c", "import os, numpy, torch; print(__name__, os.getpid())"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(
            f"the interpreter {python} does not start: {error.strerror}"
        ) from None
    try:
        version, said = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"the interpreter {python} did not import torch within {timeout_s:.0f} s",
            hint="a longer --timeout, if it only needs more time",
        ) from None
    finally:
        # It may be a wrapper script whose children would outlive it.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Any line, not the first: scripts that set up an environment may print a banner.
    _, _, after = (b"\n" + version).partition(b"\n__main__ ")
    if process.returncode == 0 and after.split()[:1] == [b"%d" % process.pid]:
        return
    if process.returncode == 0 and after:
        raise UsageError(
            f"{python} starts Python as a process below it, which trials cannot be watched through",
            hint=f'exec ... "$@" as the last line of {python}',
        )
    if process.returncode == 0:
        raise UsageError(
            f"{python} is not a Python interpreter: it does not run what it is given"
        )
    lines = said.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1][:200] if lines else f"exit code {process.returncode}"
    if last.startswith("ModuleNotFoundError"):
        raise UsageError(
            f"the interpreter {python} lacks a package that trials need: {last.partition(': ')[2]}",
            hint=f"{python} -m pip install torch numpy",
        )
    raise UsageError(f"the interpreter {python} cannot import torch: {last}")
