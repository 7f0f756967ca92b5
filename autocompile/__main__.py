"""``python -m autocompile``."""

from autocompile.cli import main

main()
