"""Which calls are compared, where a pass makes many or a step does not step in each."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autocompile.runtime.ranks import here
from autocompile.settings.phases import Phase
from autocompile.trial.model.calls import Calls, Period, Sample, first_call, kinds
from autocompile.trial.model.sides import Side
from autocompile.trial.verify.optimizer import Made, step_problem

if TYPE_CHECKING:
    from autocompile.trial.verify.reference import Reference

_LONGEST_PERIOD = 64  # calls of a step that accumulates, in which it steps twice
_MOST_S = 10.0  # for finding how many these are
# Of calls of a workload: those that are compared many times, each kind being compared twice.
_FEW_KINDS = 3
_MOST_KINDS = 12  # of calls of a workload that are compared in training


def calls_of(phase: Phase, first: Any, second: Any) -> tuple[Any, ...]:
    """What is compared of two batches: of passes, each kind of call and not each call.

    The kinds stand in the order of first use, in which the calls of a pass compile.
    """
    if not isinstance(first, Calls):
        return first, second
    where = [group[0] for group in kinds(first)]
    few = Sample(first[n] for n in where[:_FEW_KINDS])
    if phase.steps:  # each step is compared by its own gradients
        each = tuple(first[n] for n in where[:_MOST_KINDS])
        return each if len(each) > 1 else (*each, first_call(second))
    if phase.is_own:  # what a call computes depends on those before it
        return few, second
    # Most comparisons are of the first batch, so that has few.
    return few, Sample(second[n] for n in where)


def follows_gradients(reference: Reference) -> bool:
    """Whether the gradients that a user's own step leaves are those that its optimizer used.

    Not where it accumulates over calls, steps twice, clears them or changes its learning rate, and
    not where an optimizer does not step in each call.
    """
    side, fresh = reference.another_side(), reference.another_side()
    try:
        return _steps_once_by_its_gradients(reference, side, fresh)
    finally:
        side.drop()
        fresh.drop()


def _steps_once_by_its_gradients(reference: Reference, side: Side, fresh: Side) -> bool:
    steps = _steps_of(side)
    for index in range(2):
        reference.call(side, index)
        if steps != [index + 1] * len(steps):
            return False
        try:
            if step_problem(lambda: fresh, Made.by(side)):
                return False
        except TypeError:  # step() wants a closure
            return False
    return True


def periods(reference: Reference, notes: list[str]) -> tuple[Period, Period]:
    """Calls after which each optimizer has stepped twice, in the order of two batches."""
    side, calls, began = reference.another_side(), 0, time.monotonic()
    steps = _steps_of(side)
    while calls < 2 or (
        min(steps, default=2) < 2
        and calls < _LONGEST_PERIOD
        and here().agree(time.monotonic() - began, max) < _MOST_S
    ):
        reference.call(side, calls)
        calls += 1
    side.drop()
    if min(steps, default=2) < 2:
        what = f"in {calls} calls of its step {steps.count(0) + steps.count(1)}"
        notes.append(f"{what} optimizers do not step twice, which is not compared")
    calls = max(calls, len(reference.batches))
    batches = (reference.batches * (calls + 1))[: calls + 1]
    return Period(batches[:calls]), Period(batches[1:])


def _steps_of(side: Side) -> list[int]:
    """How often each optimizer of an eager side has stepped, which goes on counting."""
    counts = [0] * len(side.optimizers)

    def count(number: int) -> Callable[..., None]:
        def one_more(*_: Any) -> None:
            counts[number] += 1

        return one_more

    for number, optimizer in enumerate(side.optimizers):
        optimizer.register_step_post_hook(count(number))
    return counts
