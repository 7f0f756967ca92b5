"""The child process: everything that runs the user's code. Imports torch, never the parent's side.

Runs under any interpreter that has numpy and torch, whatever else is installed there.
"""
