"""The user's ``check(expected, actual)``, which replaces the comparison of outputs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autocompile.trial.verify.outputs import copy_view

__all__ = ["Check", "refusal"]

Check = Callable[[Any, Any], Any]

_LONGEST = 300  # characters of its error message


def refusal(check: Check, expected: Any, actual: Any) -> str | None:
    """Why ``check`` rejects ``actual``; None if it accepts.

    Args:
        check: raises or returns False to reject, returns None or True to accept.
        expected: eager's outputs of a call, as the model returned them.
        actual: the compiled side's outputs of the same call.
    """
    # Copies, since check() may change its arguments, which are compared again later.
    pair = [copy_view({"outputs": outputs})["outputs"] for outputs in (expected, actual)]
    try:
        with torch.no_grad():
            answer = check(*pair)
    except Exception as error:
        return f"check() rejects: {_words(error)}"
    is_tensor = isinstance(answer, torch.Tensor) and answer.dtype is torch.bool
    if not isinstance(answer, (bool, np.bool_, type(None))) and not (
        is_tensor and answer.numel() == 1
    ):
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
