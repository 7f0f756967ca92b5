"""Run one trial: ``python -m autocompile.trial RUN/trials/0007`` (also by hand)."""

from __future__ import annotations

import os
import sys

if sys.path[0] in ("", os.getcwd()):
    del sys.path[0]  # a types.py where the user stands must not pass for Python's own

import argparse

from autocompile.trial.supervisor import guard


def main() -> None:
    """Read the request, run it, send the result, leave."""
    parser = argparse.ArgumentParser(prog="python -m autocompile.trial")
    parser.add_argument("folder", help="the trial's folder: it holds request.json")
    for name in ("--channel", "--control", "--parent", "--fork_server"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--nonce", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()

    def work() -> None:
        from autocompile.trial.worker import run

        run(args.folder, args.channel, args.nonce, args.control, bool(args.fork_server))

    if args.channel is None:
        work()
    else:
        guard(work, args.channel, args.nonce, args.parent)


if __name__ == "__main__":
    main()
