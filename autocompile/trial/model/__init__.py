"""Loads and builds the user's target, and makes its inputs."""
