"""``python -m autocompile``."""

from autocompile.cli.commands import main

main()
