"""The user's own ``check(expected, actual)``, in place of our comparison of outputs."""

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

_LONGEST = 300  # characters of what it says


class Limits(NamedTuple):
    """As :func:`autocompile.trial.verify.compare.compare` takes them."""

    noise: Mapping[str, float]
    reference: Callable[[], View | None] | None
    tolerance: float | None


def difference(want: View, got: View, limits: Limits, check: Check | None) -> str | None:
    """What is wrong with ``got``; of outputs the user's own check decides, where there is one."""
    reference = ask = limits.reference
    if check:
        if problem := refusal(check, want["outputs"], got["outputs"]):
            return problem
        got, want = without_outputs(got), without_outputs(want)
        reference = ask and (lambda: (view := ask()) and without_outputs(view))
    return compare(want, got, noise=limits.noise, reference=reference, tolerance=limits.tolerance)


def refusal(check: Check, expected: Any, actual: Any) -> str | None:
    """What ``check`` has against ``actual``; None if it accepts.

    Args:
        check: raises or returns False to refuse, returns None or True to accept.
        expected: eager's outputs of a call, as the model returned them.
        actual: the compiled side's outputs of the same call.
    """
    # It gets copies, since it may change them: what we hold is compared again later.
    pair = [copy_view({"outputs": outputs})["outputs"] for outputs in (expected, actual)]
    try:
        with torch.no_grad():
            answer = check(*pair)
    except Exception as error:
        return f"check() refuses: {_words(error)}"
    if answer is None or _truth(answer) is True:
        return None
    if _truth(answer) is False:
        return "check() refuses: it returned False"
    return f"check() returned a {type(answer).__name__} instead of True, False or None"


def demand_steady(check: Check, first: Any, second: Any) -> None:
    """Two eager runs of the same call must pass.

    Raises:
        TargetError: they do not, so that no compiled setting could.
    """
    if problem := refusal(check, first, second):
        raise TargetError(
            "the target's check() rejects a second run of eager mode",
            problem,
            "check(expected, actual) gets the outputs of the same call",
        )


def _truth(answer: Any) -> bool | None:
    """An answer as True or False; None if it is neither."""
    if isinstance(answer, torch.Tensor) and answer.dtype is torch.bool and answer.numel() == 1:
        return bool(answer)
    return bool(answer) if isinstance(answer, (bool, np.bool_)) else None


def _words(error: Exception) -> str:
    """The error's own text on one line; the line of code of an assertion that has none."""
    text = " ".join(str(error).split())
    if not isinstance(error, AssertionError):
        text = f"{type(error).__name__}: {text}"
    elif not text:
        frames = traceback.extract_tb(error.__traceback__)
        text = (frames[-1].line if frames else None) or "AssertionError"
    return text[:_LONGEST]
