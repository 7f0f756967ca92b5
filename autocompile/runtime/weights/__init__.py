"""Weights that are constants of compiled code, and when they have changed."""
