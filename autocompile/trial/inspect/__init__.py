"""Inspects the installed torch and what it compiled."""
