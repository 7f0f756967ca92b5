"""The results of a call: which there are, what a later call overwrites, and the user's own check."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from autocompile.trial.values import TypeName, copy_tree, flatten

_LONGEST = 300  # characters of the error message of a user's check()

View = Mapping[str, Any]
"""Part name to pytree: the results ``outputs``, ``loss`` and ``gradients``, and what a
call may change: ``inputs`` and ``buffers``."""


CHANGES = ("gradients", "updates")  # parts of a view that are as large as the model


def copy_view(view: View) -> View:
    """A copy that later calls cannot overwrite."""
    made: View = copy_tree(dict(view))
    return made


def without(view: View, *parts: str) -> View:
    """The view without these parts."""
    return {name: part for name, part in view.items() if name not in parts}


def _results(view: View) -> list[Any]:
    return [leaf for _, leaf in flatten(without(view, "inputs", "buffers")).leaves]


def opaque_types(view: View) -> set[str]:
    """Names of the result types of which only the type can be compared."""
    return {str(leaf) for leaf in _results(view) if isinstance(leaf, TypeName)}


def has_nan(view: View) -> bool:
    """Whether a floating tensor of the results holds NaN."""
    leaves = (x for x in _results(view) if isinstance(x, torch.Tensor))
    return any(bool(x.isnan().any()) for x in leaves if x.is_floating_point())


def has_tensor(view: View) -> bool:
    """Whether the results hold a tensor."""
    return any(isinstance(leaf, torch.Tensor) for leaf in _results(view))


def has_number(view: View) -> bool:
    """Whether the results hold a tensor or a number, as a step that counts what is right."""
    return any(isinstance(leaf, (torch.Tensor, int, float)) for leaf in _results(view))


class LastResults:
    """The tensors of ``outputs`` and ``loss``, not copied, with copies of their first values.

    Shows outputs that a later call overwrites, so that a caller cannot keep two results.
    """

    def __init__(self, view: View) -> None:
        results = {name: view[name] for name in ("outputs", "loss") if name in view}
        tensors = [
            each
            for each in flatten(results).leaves
            if isinstance(each[1], torch.Tensor)
        ]
        self._tensors = [(path, x, x.detach().clone()) for path, x in tensors]

    def overwritten(self) -> list[str]:
        """Paths of the tensors whose values have changed."""
        return [
            path
            for path, tensor, first in self._tensors
            if not _is_still(tensor, first)
        ]


def _is_still(tensor: torch.Tensor, first: torch.Tensor) -> bool:
    try:
        now = tensor.detach()
        return bool(((now == first) | ((now != now) & (first != first))).all())
    except RuntimeError:  # torch refuses to read what a CUDA graph has overwritten
        return False


def refusal(check: Callable[[Any, Any], Any], expected: Any, actual: Any) -> str | None:
    """Why ``check`` rejects the outputs of a call; None if it accepts.

    It raises or returns False to reject, and returns None or True to accept.
    """
    # Copies, since check() may change its arguments, which are compared again later.
    pair = copy_tree(expected), copy_tree(actual)
    try:
        with torch.no_grad():
            answer = check(*pair)
    except Exception as error:
        return f"check() rejects: {_words(error)}"
    if (
        isinstance(answer, torch.Tensor)
        and answer.dtype is torch.bool
        and answer.numel() == 1
    ):
        answer = bool(answer)
    if not isinstance(answer, (bool, np.bool_, type(None))):
        return (
            f"check() returned a {type(answer).__name__} instead of True, False or None"
        )
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
