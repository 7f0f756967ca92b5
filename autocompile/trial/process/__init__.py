"""The processes of a trial."""
