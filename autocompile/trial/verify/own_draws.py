"""What is asked of a side whose random numbers are not eager's."""

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

_MAX_S = 60.0  # for the calls that show how the random numbers are distributed


def demand_plausible_draws(verifier: Verifier, compiled: Side, notes: list[str]) -> None:
    """Its random numbers follow the seed and have eager's distribution, as far as that can be told.

    To be called after ``verifier.first_calls``. Does nothing for a side that draws as eager does.

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
        notes.append("how its random numbers are distributed was not looked at: calls take long")
        calls = 2
    # Other seeds than eager's: the two samples must be independent.
    ours = _drawn(verifier, verifier.eager, range(calls))
    theirs = _drawn(verifier, compiled, range(calls, 2 * calls))
    verifier.eager.restore()
    problem = implausible(ours, theirs, verifier.tolerance)
    if not problem and ours.has_structure_of(theirs):  # what no draw touches is what eager gives
        want, got = (draws.steady(ours.restless) for draws in (ours, theirs))
        problem = compare(want, got, noise=verifier.accepted, tolerance=verifier.tolerance)
    if problem:
        raise Failed(Outcome.WRONG_OUTPUT, f"{problem} (random numbers)")


def compare_with_eagers_draws(verifier: Verifier, compiled: Side, config: CompileConfig) -> None:
    """Compile the same once more so that it draws as eager does, and compare it with eager.

    To be called last, since it resets Dynamo. Nothing is done for a side that draws as eager does.

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
    """Calls with a seed each, on the same inputs and from the same state."""
    draws = Draws()
    for call in calls:
        view = verifier.from_kept_state(side, 2 * call)  # an even one is on the first inputs
        draws.add(without_outputs(view) if verifier.check else view)
    return draws
