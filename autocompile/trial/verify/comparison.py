"""The user's ``check(expected, actual)``, which replaces the comparison of outputs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from autocompile.errors import TargetError
from autocompile.trial.verify.compare import compare
from autocompile.trial.verify.outputs import View, copy_view, without_outputs

__all__ = ["Check", "Limits", "demand_steady", "difference", "refusal"]

Check = Callable[[Any, Any], Any]

_LONGEST = 300  # characters of its error message


class Limits(NamedTuple):
    """Arguments of :func:`autocompile.trial.verify.compare.compare`."""

    noise: Mapping[str, float]
    reference: Callable[[], View | None] | None
    tolerance: float | None


def difference(want: View, got: View, limits: Limits, check: Check | None) -> str | None:
    """A description of the error in ``got``, or None; outputs are judged by ``check`` if given."""
    reference = ask = limits.reference
    if check:
        if problem := refusal(check, want["outputs"], got["outputs"]):
            return problem
        got, want = without_outputs(got), without_outputs(want)
        reference = ask and (lambda: (view := ask()) and without_outputs(view))
    return compare(want, got, noise=limits.noise, reference=reference, tolerance=limits.tolerance)


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
    if answer is None or _truth(answer) is True:
        return None
    if _truth(answer) is False:
        return "check() rejects: it returned False"
    return f"check() returned a {type(answer).__name__} instead of True, False or None"


def demand_steady(check: Check, first: Any, second: Any) -> None:
    """Raise a TargetError if ``check`` rejects a second eager run of the same call."""
    if problem := refusal(check, first, second):
        raise TargetError(
            "the target's check() rejects a second run of eager mode",
            problem,
            "check(expected, actual) gets the outputs of the same call",
        )


def _truth(answer: Any) -> bool | None:
    """The answer as a bool; None if it is not one."""
    if isinstance(answer, torch.Tensor) and answer.dtype is torch.bool and answer.numel() == 1:
        return bool(answer)
    return bool(answer) if isinstance(answer, (bool, np.bool_)) else None


def _words(error: Exception) -> str:
    """The error's message on one line; for an assertion without one, its line of code."""
    text = " ".join(str(error).split())
    if not isinstance(error, AssertionError):
        text = f"{type(error).__name__}: {text}"
    elif not text:
        frames = traceback.extract_tb(error.__traceback__)
        text = (frames[-1].line if frames else None) or "AssertionError"
    return text[:_LONGEST]
