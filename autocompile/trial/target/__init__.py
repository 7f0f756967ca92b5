"""The user's target: loaded, built, fed."""
