"""Whether an interpreter that a user names can run trials, told before it is asked to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from autocompile.errors import UsageError

__all__ = ["demand_torch"]


def demand_torch(python: str, timeout_s: float) -> None:
    """Start it once and import what a trial needs.

    Args:
        python: its path.
        timeout_s: how long that may take.

    Raises:
        UsageError: it does not start, does not end in time, or has no torch.
    """
    try:
        process = subprocess.Popen(
            [python, "-c", "import numpy, torch; print(__name__, torch.__version__)"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"the interpreter {python} does not start: {error.strerror}") from None
    try:
        version, said = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"the interpreter {python} did not import torch within {timeout_s:.0f} s",
            hint="a longer --timeout, if it only needs more time",
        ) from None
    finally:
        # It may be a script whose children would stay.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Not the first line: who sets up an environment may greet.
    if process.returncode == 0 and b"\n__main__ " in b"\n" + version:
        return
    if process.returncode == 0:
        raise UsageError(
            f"{python} is no Python: it was told to import torch, and did not say its version"
        )
    lines = said.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1][:200] if lines else f"exit code {process.returncode}"
    if last.startswith("ModuleNotFoundError"):
        raise UsageError(
            f"the interpreter {python} lacks what a trial imports: {last.partition(': ')[2]}",
            hint=f"{python} -m pip install torch numpy",
        )
    raise UsageError(f"the interpreter {python} cannot import torch: {last}")
