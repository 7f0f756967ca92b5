"""Runs trials in processes and reports how they ended. Must not import torch."""
