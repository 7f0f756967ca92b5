"""The command line.

A budget is of the whole command: it counts from the first import of this package, which is where
the program begins, and so includes the seconds in which numpy and Optuna are imported.
"""

import time

BEGAN = time.monotonic()
"""When the program began. :func:`autocompile.cli.commands.main` hands it to its command."""
