"""The finite list of settings of a run."""
