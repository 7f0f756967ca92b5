"""The phases: units of work that are timed."""
