"""Checks how much a lower precision that the user requested changes the outputs."""

from __future__ import annotations

import torch

from autocompile.store.record import Outcome
from autocompile.trial.phases.side import Side
from autocompile.trial.process.failures import Failed
from autocompile.trial.verify.check import refusal
from autocompile.trial.verify.compare import mismatch_scale
from autocompile.trial.verify.outputs import View, copy_view
from autocompile.trial.verify.tree import comparable, paths
from autocompile.trial.verify.verifier import Verifier

__all__ = ["demand_close"]

_RESULTS = ("outputs", "loss")


def demand_close(verifier: Verifier, plain: Side, notes: list[str]) -> None:
    """Compare eager mode at the requested precision with the unchanged model.

    The user's check judges the outputs if there is one, otherwise the tolerance; without a
    tolerance any finite change is allowed. A note says how large the change is.

    Args:
        verifier: has eager mode at the requested precision.
        plain: eager mode without that change; ready to be timed afterwards.
        notes: gets the sentence.

    Raises:
        Failed: ``wrong_output``: the change exceeds the tolerance or is not finite.
    """
    own, changed = copy_view(plain.view(verifier.seeded_call(plain, 0))), verifier.expected
    plain.keep()
    # Without gradients and updates: noise among them differs at every precision.
    results = [{n: v for n, v in view.items() if n in _RESULTS} for view in (own, changed)]
    change = mismatch_scale(results[0], results[1])
    theirs = _tensors(changed)
    for path, x in _tensors(own).items():
        y = theirs.get(path)
        if y is None or x.shape != y.shape:
            continue
        if bool((x.isfinite() & ~y.isfinite()).any()):
            what = f"{path} overflows in eager mode too at the requested precision"
            raise Failed(Outcome.WRONG_OUTPUT, what)
        is_whole = not x.is_floating_point() and not x.is_complex()
        if is_whole and x.numel() and path.startswith(("['outputs']", "['loss']")):
            change = max(change, float((x != y).float().mean()))  # such as labels
    notes.append(f"at the requested precision, outputs change by {change:.1g}")
    if verifier.check:
        if problem := refusal(verifier.check, own["outputs"], changed["outputs"]):
            raise Failed(Outcome.WRONG_OUTPUT, f"{problem} (at the requested precision)")
    elif verifier.tolerance is not None and change > verifier.tolerance:
        limit = f"tolerance {verifier.tolerance:g}"
        what = f"outputs change by {change:.2g} (relative RMS; {limit})"
        raise Failed(Outcome.WRONG_OUTPUT, what)


def _tensors(view: View) -> dict[str, torch.Tensor]:
    found = paths(comparable(dict(view)))
    return {path: x for path, x in found if isinstance(x, torch.Tensor)}
