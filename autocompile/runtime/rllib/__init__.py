"""Applies settings in RLlib's env runners and learners."""
