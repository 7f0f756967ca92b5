"""A trial: settings of one phase, each verified and timed beside eager mode, in one process.

A search tries one setting in a process, with all checks. A race times several that have been
verified before, with the rest of the checks; one that fails is dropped there, and the others go on.
"""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

from autocompile.errors import first_words
from autocompile.protocol.requests import TrialRequest, TrialResult
from autocompile.store.record import Measurement, Outcome, Record, Step
from autocompile.trial.channel import Channel
from autocompile.trial.failures import Failed
from autocompile.trial.measure import telemetry
from autocompile.trial.model.calls import Calls
from autocompile.trial.tasks.closer import (
    check_new_weights,
    look_closer,
    prove_compiled,
    seconds_of_kinds,
)
from autocompile.trial.tasks.session import Entrant, Session
from autocompile.trial.verify.side_checks import (
    draws,
    eagers_draws,
    first_calls,
    last_call,
    weights,
    whole_pass,
)


def new_result(request: TrialRequest) -> TrialResult:
    """The result of a trial that has not begun: a record of each side, which nothing has ended."""
    phase, size = request.phase, request.batch_size
    records = [
        Record(request.number_of(side), phase, side.config, size)
        for side in request.sides
    ]
    return TrialResult(sides=records)


def trial(request: TrialRequest, channel: Channel, result: TrialResult) -> None:
    """Verify and time settings beside eager mode: the stages of every trial, in their order."""
    session = Session(request, channel)  # load, build, eager: nothing is compiled yet
    with contextlib.ExitStack() as held:
        for asked, record in zip(request.sides, result.sides, strict=True):
            with session.turn(record):
                entrant = session.compile(asked, record)
                if request.checks == "all":  # sides of a race take turns with others
                    held.enter_context(session.exclusive_on_cpu())
                check_first_calls(session, entrant)
        session.end_compiling()
        for entrant, measurement in session.timed():
            with session.turn(entrant.record):
                note_times(session, entrant, measurement)
                check_last_calls(session, entrant, measurement)
    for entrant in session.running if request.checks == "all" else ():
        with session.turn(entrant.record):
            check_at_leisure(session, entrant, result)


def check_first_calls(session: Session, entrant: Entrant) -> None:
    """Compare the first calls with the reference's, and see that something has compiled."""
    reference, subject, record = session.reference, entrant.subject, entrant.record
    with (
        reference.comparable_random_numbers(subject.side),
        session.apart(record),
        session.exclusive_on_cpu(),
    ):
        session.channel.step(Step.VERIFY)
        first_calls(reference, subject)
        whole_pass(reference, subject)
        entrant.clock.stop()
        if session.request.checks == "again":
            return
        if not subject.side.is_eager:
            prove_compiled(record, session.home)
        draws(reference, subject)
        if not subject.side.config.bakes_weights:
            before = telemetry.compilations()
            live = weights(reference, subject)
            # What was compiled for the check says nothing of the program that is timed.
            record.weights_live = live if telemetry.compilations() == before else None


def note_times(session: Session, entrant: Entrant, measurement: Measurement) -> None:
    """Put into the record what calls of each kind take, and compiling."""
    record, side, asked = entrant.record, entrant.side, entrant.asked
    record.reference_s = session.work.median_s
    of_shape: dict[Any, float] = {}
    if session.request.checks == "all" and isinstance(session.workload, Calls):
        with session.channel.exclusive():
            found = seconds_of_kinds(session.baseline, side, session.timer)
        record.kinds, of_shape = found
    # In a race without a whole cache, some of the code is compiled and some is read.
    is_known = asked.repeats is None or asked.is_warm
    if is_known and not side.is_eager:
        steady_s = measurement.compiled_pass_s
        record.compile_s = entrant.clock.compile_s(steady_s, of_shape)
        # The parent takes out the time for which it held us.
        record.compile_window = entrant.clock.window


def check_last_calls(
    session: Session, entrant: Entrant, measurement: Measurement
) -> None:
    """Compare a call after the timing; only what is right then has a measurement."""
    reference, side, record = session.reference, entrant.side, entrant.record
    session.channel.step(Step.VERIFY)
    with reference.comparable_random_numbers(side), session.exclusive_on_cpu():
        last_call(reference, entrant.subject)
        if session.request.checks == "all" and side.config.bakes_weights:
            check_new_weights(session, entrant, measurement)
    record.measurement, record.outcome, record.step = measurement, Outcome.OK, Step.EXIT


def check_at_leisure(session: Session, entrant: Entrant, result: TrialResult) -> None:
    """Look closer at what is measured already, while other trials go on."""
    reference = session.reference
    if not reference.draws_otherwise(entrant.side):  # else it is not verified yet
        session.channel.measured(result)
    try:
        look_closer(session, entrant)
    except Failed:
        raise
    except Exception as error:
        traceback.print_exc()
        entrant.record.notes.append(f"after its measurement: {first_words(error)}")
    eagers_draws(reference, entrant.subject)
