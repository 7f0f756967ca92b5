"""RLlib: ``from autocompile.rllib import NotInEffect, tuned``.

All of RLlib is in this folder. Its modules serve different processes, so importing the folder
imports none of them: neither ray nor torch comes with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autocompile.rllib.algorithm import NotInEffect, tuned

__all__ = ["NotInEffect", "tuned"]


def __getattr__(name: str) -> Any:
    """What users import, on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.algorithm"), name)
