"""The ``autocompile`` command, as ``python -m autocompile`` too: a signal is words from its start."""

import signal
import sys

from autocompile.errors import ExitCode


def main() -> None:
    """Import the command line and run it; what it needs takes a second to import."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as by Ctrl-C
    try:
        from autocompile.cli.commands import main as command

        command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
