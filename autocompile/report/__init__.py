"""Screens and documents: what a run looks like while it goes on and when it is over."""
