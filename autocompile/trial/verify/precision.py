"""What a lower precision does to eager mode's own results, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autocompile.store.record import Outcome
from autocompile.trial.failures import Failed
from autocompile.trial.values import tensors_by_path
from autocompile.trial.verify.compare import mismatch_scale
from autocompile.trial.verify.outputs import View, refusal


def demand_close(
    changed: View,
    unchanged: View,
    check: Callable[[Any, Any], Any] | None,
    tolerance: float | None,
) -> str:
    """Compare the view of eager mode at a requested precision with that of the unchanged model.

    The user's ``check`` judges the outputs if there is one, otherwise the ``tolerance``; without a
    tolerance any finite change is allowed. Returns a sentence that says how large the change is.

    Raises:
        Failed: ``wrong_output``.
    """
    change = change_of(changed, unchanged)
    if check:
        if problem := refusal(check, unchanged["outputs"], changed["outputs"]):
            raise Failed(
                Outcome.WRONG_OUTPUT, f"{problem} (at the requested precision)"
            )
    elif tolerance is not None and change > tolerance:
        limit = f"tolerance {tolerance:g}"
        what = f"outputs change by {change:.2g} (relative RMS; {limit})"
        raise Failed(Outcome.WRONG_OUTPUT, what)
    return f"at the requested precision, outputs change by {change:.1g}"


def change_of(changed: View, unchanged: View) -> float:
    """How far results are apart: relative RMS, or the share of integers that differ.

    Raises:
        Failed: ``wrong_output``: one overflows.
    """
    # Without gradients and updates: noise among them differs at every precision.
    results = [
        {n: v for n, v in view.items() if n in ("outputs", "loss")}
        for view in (unchanged, changed)
    ]
    return max(mismatch_scale(*results), _share_of_labels(unchanged, changed))


def _share_of_labels(unchanged: View, changed: View) -> float:
    """The largest share of integers, such as labels, that differ; Failed where one overflows."""
    share, tensors = 0.0, tensors_by_path(changed)
    for path, x in tensors_by_path(unchanged).items():
        y = tensors.get(path)
        if y is None or x.shape != y.shape:
            continue
        if bool((x.isfinite() & ~y.isfinite()).any()):
            what = f"{path} overflows in eager mode too at the requested precision"
            raise Failed(Outcome.WRONG_OUTPUT, what)
        is_whole = not x.is_floating_point() and not x.is_complex()
        if is_whole and x.numel() and path.startswith(("['outputs']", "['loss']")):
            share = max(share, float((x != y).float().mean()))
    return share
