"""For users of RLlib: ``from autocompile.rllib import NotInEffect, tuned``."""

from __future__ import annotations

from autocompile.runtime.rllib.algorithm import NotInEffect, tuned

__all__ = ["NotInEffect", "tuned"]
