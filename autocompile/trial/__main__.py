"""Run one trial: ``python -m autocompile.trial RUN/trials/0007`` (also by hand)."""

from __future__ import annotations

import os
import sys

if sys.path[0] in ("", os.getcwd()):
    del sys.path[0]  # a types.py where the user stands must not pass for Python's own

import argparse
from pathlib import Path

from autocompile.trial.supervisor import guard, ranks_asked


def main() -> None:
    """Read the request, run it, send the result, leave."""
    parser = argparse.ArgumentParser(prog="python -m autocompile.trial")
    parser.add_argument("folder", help="the trial's folder: it holds request.json")
    for name in ("--channel", "--control", "--parent", "--fork_server"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--nonce", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()

    def work(rank: int = 0) -> None:
        from autocompile.trial.worker import run

        has_server = bool(args.fork_server)
        run(args.folder, args.channel, args.nonce, args.control, has_server, rank)

    folder = Path(args.folder)
    if args.channel is None and ranks_asked(folder) == 1:
        work()
    else:
        by_hand = args.channel is None  # several ranks, whose events go to stdout
        args.channel = os.dup(1) if by_hand else args.channel
        parent = os.getppid() if by_hand else args.parent
        guard(work, args.channel, args.nonce, parent, folder)


if __name__ == "__main__":
    main()
