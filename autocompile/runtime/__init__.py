"""Applies settings, in trials and in the user's own program. Imports torch."""
