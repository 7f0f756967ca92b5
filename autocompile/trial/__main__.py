"""Run one trial: ``python -m autocompile.trial RUN/trials/0007`` (also by hand)."""

from __future__ import annotations

import os
import sys

if sys.path[0] in ("", os.getcwd()):
    del sys.path[0]  # a types.py where the user stands must not pass for Python's own

import argparse
import ctypes
import faulthandler
import signal

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Ask Linux to kill this process when the parent dies; elsewhere the parent's sweep does."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)


def _volunteer_for_the_oom_killer() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("900")
    except OSError:
        pass


def main() -> None:
    """Read the request, run it, send the result, leave."""
    parser = argparse.ArgumentParser(prog="python -m autocompile.trial")
    parser.add_argument("folder", help="the trial's folder: it holds request.json")
    parser.add_argument("--channel", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--nonce", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.channel is not None:
        _die_with_parent()
        _volunteer_for_the_oom_killer()
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    from autocompile.trial.worker import run

    run(args.folder, args.channel, args.nonce)


if __name__ == "__main__":
    main()
