"""The later checks: those that take a compile or many calls, asked of what may be an answer.

They come after the timing, in a process that times the setting anyway: what they compile is no part
of what is timed.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable

from autocompile.errors import first_words
from autocompile.runtime.ranks import here
from autocompile.store.record import Checks, Step
from autocompile.trial.failures import Failed
from autocompile.trial.measure import telemetry
from autocompile.trial.model.calls import Calls, between
from autocompile.trial.tasks.session import Entrant, Session
from autocompile.trial.verify.side_checks import at_a_size_between as check_at_size
from autocompile.trial.verify.side_checks import (
    draws,
    new_weights,
    schedule,
    weights,
)

_LONGEST_COMPILE_S = 5.0  # of a step that another learning rate may compile again


def check_later(session: Session) -> None:
    """Make the later checks of all that are asked for them; who passes has passed all."""
    asked = [e for e in session.running if e.asked.checks is Checks.ALL]
    if not asked:
        return
    session.channel.step(Step.VERIFY)
    for entrant in asked:
        with session.turn(entrant.record), session.apart(entrant.record):
            _check(session, entrant)
            entrant.record.checks = Checks.ALL


def _check(session: Session, entrant: Entrant) -> None:
    """Own random numbers, new weights, another learning rate and sizes between."""
    reference, subject = session.reference, entrant.subject
    subject.notes = entrant.record.notes  # those of a race's first calls repeat others
    with session.exclusive_on_cpu():
        draws(reference, subject)
        with reference.comparable_random_numbers(subject.side):
            _check_weights(session, entrant)
    if not subject.side.config.is_eager:
        with reference.comparable_random_numbers(subject.side):
            _unless_it_fails(session, entrant, _check_schedule)
            _unless_it_fails(session, entrant, _check_between)


def _unless_it_fails(
    session: Session, entrant: Entrant, check: Callable[[Session, Entrant], None]
) -> None:
    """Make a check of rates or inputs that are made up: only a wrong result ends the setting."""
    try:
        check(session, entrant)
    except Failed:
        raise
    except Exception as error:
        if here().are_several:  # the others may be in a collective
            raise
        traceback.print_exc()
        entrant.record.notes.append(f"after its measurement: {first_words(error)}")


# Weights ------------------------------------------------------------------------------------------


def _check_weights(session: Session, entrant: Entrant) -> None:
    """Whether new weights take effect; of a side that holds them as constants what that takes."""
    record = entrant.record
    if entrant.side.config.bakes_weights:
        _check_new_weights(session, entrant)
        return
    before = telemetry.compilations()
    live = weights(session.reference, entrant.subject)
    # What was compiled for the check says nothing of the program that was timed.
    record.weights_live = live if telemetry.compilations() == before else None


def _check_new_weights(session: Session, entrant: Entrant) -> None:
    """Load new weights into a side that holds them as constants, and note what that takes.

    New ones are a compile or a new session there: one refresh shows what several do.
    """
    record, request = entrant.record, session.request
    assert record.measurement is not None
    # Where nothing changes the weights, the seconds of a refresh decide nothing.
    counts = request.calls_per_update is not None
    with session.channel.exclusive() if counts else contextlib.nullcontext():
        is_live, took_s = new_weights(
            session.reference, entrant.subject, session.timer.synchronize
        )
    record.weights_live = is_live
    record.refresh_s = max(0.0, took_s - record.measurement.compiled_pass_s)


# What no call has had -----------------------------------------------------------------------------


def _check_schedule(session: Session, entrant: Entrant) -> None:
    """Whether a schedule of learning rates compiles a step again, if that takes no long time."""
    record, side = entrant.record, entrant.side
    compile_s = here().agree(entrant.asked.compile_s or record.compile_s or 0.0, max)
    if compile_s < _LONGEST_COMPILE_S:
        schedule(session.reference, entrant.subject)
    elif side.optimizers:
        what = "whether a learning-rate schedule recompiles this step was not tried"
        record.notes.append(f"{what}: it takes {compile_s:.0f} s to compile")


def _check_between(session: Session, entrant: Entrant) -> None:
    """Whether a program for several sizes is right at one that no call has had, too.

    These inputs are made up: what goes wrong with them must not cost the figures.
    """
    workload = session.workload
    if not isinstance(workload, Calls) or entrant.side.config.dynamic is False:
        return
    if (inputs := between(workload)) is None:
        return
    # Constants are by now those of the other weights that it was given (_check_new_weights).
    has_others = entrant.side.config.bakes_weights
    reference = session.reference
    with reference.with_other_weights() if has_others else contextlib.nullcontext():
        check_at_size(reference, entrant.subject, inputs)
