"""Verifies a side that draws other random numbers than eager, as Inductor's own generator does.

Its own numbers must follow the seed, and what they do not touch must equal eager's. How they are
distributed is not checked. The program is verified once more with ``fallback_random``, which draws
eager's numbers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome
from autocompile.trial.inspect import telemetry
from autocompile.trial.phases.side import Side, random_states
from autocompile.trial.process.failures import Failed
from autocompile.trial.verify.compare import differences, mismatch_scale
from autocompile.trial.verify.outputs import copy_view, without

if TYPE_CHECKING:
    from autocompile.trial.verify.verifier import Verifier

__all__ = [
    "compare_with_eagers_draws",
    "demand_draws_by_seed",
    "depends_on_seed",
    "drawing_as_eager",
    "draws_itself",
]

_SEEDS, _MOST_S = 20, 10.0  # few draws, as of stochastic depth, may be the same for some


def demand_draws_by_seed(verifier: Verifier, compiled: Side) -> None:
    """Check that own draws repeat with a seed and differ with another; the rest equals eager's."""
    if not verifier.has_own_draws(compiled):
        return
    verifier.demand_repeats(compiled, "when the same seed is set again")
    began, sides = time.monotonic(), (verifier.eager, compiled)
    want, got = (without(verifier.from_kept_state(side), "gradients") for side in sides)
    restless, differ, follows = set[str](), 0, False
    for call in range(2, 2 * _SEEDS, 2):  # even: of the same inputs
        if time.monotonic() - began > _MOST_S:
            break
        views = [without(verifier.from_kept_state(side, call), "gradients") for side in sides]
        ours, theirs = differences(want, views[0]), differences(got, views[1])
        restless |= {path for path, apart in ours.items() if apart}
        differ, follows = differ + any(ours.values()), follows or any(theirs.values())
    else:
        if not follows and differ > _SEEDS / 2:
            what = "its results are the same whatever the seed, where eager's differ"
            raise Failed(Outcome.WRONG_OUTPUT, f"{what} (random numbers)")
        verifier.demand(got, want, "but for random numbers", verifier.accepted, restless=restless)
    verifier.eager.restore()


def compare_with_eagers_draws(verifier: Verifier, compiled: Side, config: CompileConfig) -> None:
    """Compile the setting again so that it draws like eager, and compare it with eager.

    Call last, since it resets Dynamo. Does nothing for a side that draws like eager.
    """
    if not verifier.has_own_draws(compiled):
        return
    telemetry.reset_dynamo(config.backend)
    with drawing_as_eager():
        twin = verifier.another_side(config)
        verifier.first_calls(twin, verifier.seeded_call(twin, 0))
        verifier.weights(twin)


def drawing_as_eager() -> contextlib.AbstractContextManager[Any]:
    """Context in which Inductor compiles and runs code that draws eager's random numbers."""
    import torch._inductor.config

    context: contextlib.AbstractContextManager[Any]
    context = torch._inductor.config.patch(fallback_random=True)
    return context


def draws_itself(side: Side) -> bool:
    """Whether its random numbers may differ from eager's for the same seed."""
    import torch._inductor.config

    return side.config.entry.by_inductor and not torch._inductor.config.fallback_random


def depends_on_seed(side: Side, call: Callable[[Side, int], Any], noise: float) -> bool:
    """Whether a side's results depend on random numbers.

    ``side`` has kept a state, which is restored afterwards; ``call`` makes a call with the seed of
    its number; ``noise`` is the largest difference between two runs with the same seed.
    """
    before = random_states()
    side.run()
    drawn = before != random_states()
    side.restore()
    if not drawn:
        return False
    views = []
    for index in (0, 2):
        views.append(copy_view(side.view(call(side, index))))
        side.restore()
    return mismatch_scale(*views) > max(1e-6, 10 * noise)
