"""Runs trials on the machines of a Ray cluster. Ray is imported in ``links.py`` only, when used."""
