"""Numbers that are changed by intention: by how much, and whether that may be."""

from __future__ import annotations

from autocompile.record import Outcome
from autocompile.trial.judge import Failed, Judge
from autocompile.trial.phases import Side
from autocompile.trial.verify import mismatch_scale
from autocompile.trial.view import View, copy_view, has_nan

__all__ = ["demand_close"]


def demand_close(judge: Judge, plain: Side, notes: list[str], tolerance: float | None) -> None:
    """Compare eager at the precision that was asked for with the model as it stands.

    Args:
        judge: of that precision.
        plain: eager without any such change; it is ready to be timed afterwards.
        notes: gets a sentence that says by how much outputs change.
        tolerance: the user's own; None allows any finite change, since it was asked for.

    Raises:
        Failed: ``wrong_output``: the change is more than that, or not finite.
    """
    own = copy_view(plain.view(judge.seeded_call(plain, 0)))
    plain.keep()
    if has_nan(judge.expected) and not has_nan(own):
        what = "eager mode itself gives NaN at the precision that was asked for"
        raise Failed(Outcome.WRONG_OUTPUT, what)
    # Of gradients and updates some are noise, which is another at every precision.
    change = mismatch_scale(_results(own), _results(judge.expected))
    notes.append(f"at the precision that was asked for, outputs change by {change:.1g}")
    if tolerance is not None and change > tolerance:
        what = f"outputs change by {change:.2g} (relative RMS; tolerance {tolerance:g})"
        raise Failed(Outcome.WRONG_OUTPUT, what)


def _results(view: View) -> View:
    return {name: part for name, part in view.items() if name in ("outputs", "loss")}
