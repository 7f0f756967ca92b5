"""Checks how much a lower precision that the user requested changes the outputs."""

from __future__ import annotations

from typing import Any

import torch

from autocompile.store.record import Outcome
from autocompile.trial.phases.phases import Side
from autocompile.trial.verify import comparison
from autocompile.trial.verify.compare import mismatch_scale
from autocompile.trial.verify.outputs import View, copy_view
from autocompile.trial.verify.tree import comparable, paths
from autocompile.trial.verify.verifier import Failed, Verifier

__all__ = ["demand_close"]


def demand_close(
    verifier: Verifier,
    plain: Side,
    notes: list[str],
    tolerance: float | None,
    check: comparison.Check | None,
) -> None:
    """Compare eager mode at the requested precision with the unchanged model.

    Args:
        verifier: has eager mode at the requested precision.
        plain: eager mode without that change; ready to be timed afterwards.
        notes: gets a sentence with the size of the change.
        tolerance: the user's; None allows any finite change.
        check: the user's; if given, it judges the outputs.

    Raises:
        Failed: ``wrong_output``: the change exceeds the tolerance or is not finite.
    """
    own, changed = copy_view(plain.view(verifier.seeded_call(plain, 0))), verifier.expected
    plain.keep()
    if place := _overflow(own, changed):
        what = f"{place} overflows in eager mode too at the requested precision"
        raise Failed(Outcome.WRONG_OUTPUT, what)
    # Without gradients and updates: noise among them differs at every precision.
    change = max(mismatch_scale(_results(own), _results(changed)), _flipped(own, changed))
    notes.append(f"at the requested precision, outputs change by {change:.1g}")
    if check and "outputs" in own:
        if problem := comparison.refusal(check, own["outputs"], changed["outputs"]):
            raise Failed(Outcome.WRONG_OUTPUT, f"{problem} (at the requested precision)")
    elif tolerance is not None and change > tolerance:
        what = f"outputs change by {change:.2g} (relative RMS; tolerance {tolerance:g})"
        raise Failed(Outcome.WRONG_OUTPUT, what)


def _results(view: View) -> View:
    return {name: part for name, part in view.items() if name in ("outputs", "loss")}


def _pairs(first: View, second: View) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """(path, tensor, tensor) for each path and shape that two views have in common."""

    def leaves(view: View) -> dict[str, Any]:
        found = paths(comparable(dict(view)))
        return {path: x for path, x in found if isinstance(x, torch.Tensor)}

    ours, theirs = leaves(first), leaves(second)
    both = [(path, x, theirs[path]) for path, x in ours.items() if path in theirs]
    return [(path, x, y) for path, x, y in both if x.shape == y.shape]


def _overflow(own: View, changed: View) -> str:
    """The first path that is finite in ``own`` but not in ``changed``; empty if none."""
    for path, x, y in _pairs(own, changed):
        if bool((x.isfinite() & ~y.isfinite()).any()):
            return path
    return ""


def _flipped(own: View, changed: View) -> float:
    """The largest share of differing elements in integer and boolean results, such as labels."""
    pairs = _pairs(_results(own), _results(changed))
    whole = [(x, y) for _, x, y in pairs if not x.is_floating_point() and not x.is_complex()]
    return max((float((x != y).float().mean()) for x, y in whole if x.numel()), default=0.0)
