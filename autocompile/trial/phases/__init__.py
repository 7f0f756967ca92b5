"""The units of work that are timed."""
