"""Suites: ``autocompile suite``, a run for each of many models and one table of all.

All of it is in this folder; each run is made by :func:`autocompile.tune`.
"""
