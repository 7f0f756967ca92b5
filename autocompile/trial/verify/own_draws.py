"""Verifies a side that draws other random numbers than eager."""

from __future__ import annotations

import time

from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome
from autocompile.trial.inspect import telemetry
from autocompile.trial.phases.phases import Side
from autocompile.trial.verify.compare import compare
from autocompile.trial.verify.outputs import without_outputs
from autocompile.trial.verify.random_draws import Draws, drawing_as_eager, implausible
from autocompile.trial.verify.verifier import Failed, Verifier

__all__ = ["compare_with_eagers_draws", "demand_plausible_draws"]

_MAX_S = 60.0  # for the calls that sample the distribution


def demand_plausible_draws(verifier: Verifier, compiled: Side, notes: list[str]) -> None:
    """Check that a side's random numbers follow the seed and are distributed like eager's.

    Call after ``verifier.first_calls``. Does nothing for a side that draws like eager.

    Raises:
        Failed: ``wrong_output``.
    """
    if not verifier.has_own_draws(compiled):
        return
    verifier.demand_repeats(compiled, "when the same seed is set again")
    began = time.monotonic()
    ours, theirs = _drawn(verifier, verifier.eager, range(1)), _drawn(verifier, compiled, range(1))
    calls = ours.calls_needed
    if (time.monotonic() - began) * calls > _MAX_S:
        notes.append("the distribution of its random numbers was not checked: calls take long")
        calls = 2
    # Different seeds, since the two samples must be independent.
    ours = _drawn(verifier, verifier.eager, range(calls))
    theirs = _drawn(verifier, compiled, range(calls, 2 * calls))
    verifier.eager.restore()
    problem = implausible(ours, theirs, verifier.tolerance)
    if not problem and ours.has_structure_of(theirs):  # leaves that no draw changes equal eager's
        want, got = (draws.steady(ours.restless) for draws in (ours, theirs))
        problem = compare(want, got, noise=verifier.accepted, tolerance=verifier.tolerance)
    if problem:
        raise Failed(Outcome.WRONG_OUTPUT, f"{problem} (random numbers)")


def compare_with_eagers_draws(verifier: Verifier, compiled: Side, config: CompileConfig) -> None:
    """Compile the setting again so that it draws like eager, and compare it with eager.

    Call last, since it resets Dynamo. Does nothing for a side that draws like eager.

    Raises:
        Failed: ``wrong_output`` or ``stale_weights``.
    """
    if not verifier.has_own_draws(compiled):
        return
    telemetry.reset_dynamo(config.backend)
    with drawing_as_eager():
        twin = verifier.another_side(config)
        twin.draws_itself = False
        verifier.first_calls(twin, verifier.seeded_call(twin, 0))
        verifier.weights(twin)


def _drawn(verifier: Verifier, side: Side, calls: range) -> Draws:
    """Results of calls with different seeds, on the same inputs and from the same state."""
    draws = Draws()
    for call in calls:
        view = verifier.from_kept_state(side, 2 * call)  # even calls use the first inputs
        draws.add(without_outputs(view) if verifier.check else view)
    return draws
