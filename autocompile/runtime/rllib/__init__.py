"""Settings in RLlib's own runners and learners."""
