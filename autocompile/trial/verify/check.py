"""The user's ``check(expected, actual)``, which replaces the comparison of outputs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autocompile.trial.verify.outputs import copy_view

__all__ = ["refusal"]

_LONGEST = 300  # characters of its error message


def refusal(check: Callable[[Any, Any], Any], expected: Any, actual: Any) -> str | None:
    """Why ``check`` rejects the outputs of a call; None if it accepts.

    It raises or returns False to reject, and returns None or True to accept.
    """
    # Copies, since check() may change its arguments, which are compared again later.
    pair = copy_view({"expected": expected}), copy_view({"actual": actual})
    try:
        with torch.no_grad():
            answer = check(pair[0]["expected"], pair[1]["actual"])
    except Exception as error:
        return f"check() rejects: {_words(error)}"
    if isinstance(answer, torch.Tensor) and answer.dtype is torch.bool and answer.numel() == 1:
        answer = bool(answer)
    if not isinstance(answer, (bool, np.bool_, type(None))):
        return f"check() returned a {type(answer).__name__} instead of True, False or None"
    return None if answer is None or answer else "check() rejects: it returned False"


def _words(error: Exception) -> str:
    """The error's message on one line; for an assertion without one, its line of code."""
    text = " ".join(str(error).split())
    if not isinstance(error, AssertionError):
        text = f"{type(error).__name__}: {text}"
    elif not text:
        frames = traceback.extract_tb(error.__traceback__)
        text = (frames[-1].line if frames else None) or "AssertionError"
    return text[:_LONGEST]
