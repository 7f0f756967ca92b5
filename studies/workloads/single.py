"""The encoder of ``encoder.py`` at the length that is most frequent, as a tune of one shape."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from encoder import batch, get_model

__all__ = ["get_inputs", "get_model"]


def get_inputs() -> object:
    return batch(32)
