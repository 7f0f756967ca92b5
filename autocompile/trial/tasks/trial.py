"""A trial: settings of one phase, each verified and timed beside eager mode, in one process.

A search tries one setting in a process, with the checks of its first calls. A race times several
again, with the later checks of those that have not passed them; one that fails is dropped there,
and the others go on.
"""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

from autocompile.errors import first_words
from autocompile.protocol.requests import TrialRequest, TrialResult
from autocompile.runtime.ranks import here
from autocompile.store.record import Checks, Measurement, Outcome, Record, Step
from autocompile.trial.channel import Channel
from autocompile.trial.failures import Failed
from autocompile.trial.model.calls import Calls
from autocompile.trial.tasks.closer import (
    look_closer,
    prove_compiled,
    seconds_of_kinds,
)
from autocompile.trial.tasks.later import check_later
from autocompile.trial.tasks.session import Entrant, Session
from autocompile.trial.verify.side_checks import (
    first_calls,
    last_call,
    repeated_draws,
    whole_pass,
)

_APART = 0.1  # of the time that ranks take: a larger difference is said


def new_result(request: TrialRequest) -> TrialResult:
    """The result of a trial that has not begun: a record of each side, which nothing has ended."""
    phase, size = request.phase, request.batch_size
    records = [
        Record(
            request.number_of(side),
            phase,
            side.config,
            size,
            ranks=request.header.ranks,
            checks=Checks.FIRST,
        )
        for side in request.sides
    ]
    return TrialResult(sides=records)


def trial(request: TrialRequest, channel: Channel, result: TrialResult) -> None:
    """Verify and time settings beside eager mode: the stages of every trial, in their order."""
    session = Session(request, channel)  # load, build, eager: nothing is compiled yet
    if request.profiles:
        result.sides[0].detail["eager_call"] = session.eager_call()
    with contextlib.ExitStack() as held:
        for asked, record in zip(request.sides, result.sides, strict=True):
            with session.turn(record):
                entrant = session.compile(asked, record)
                if not request.is_race:  # sides of a race take turns with others
                    held.enter_context(session.exclusive_on_cpu())
                check_first_calls(session, entrant)
        session.end_compiling()
        for entrant, measurement in session.timed():
            with session.turn(entrant.record):
                note_times(session, entrant, measurement)
                check_last_calls(session, entrant, measurement)
    if session.running:  # from here on, what ends the process costs no figure
        channel.measured(result)
    for entrant in session.running if not request.is_race else ():
        with session.turn(entrant.record):
            look_closer_unless_it_fails(session, entrant)
            if entrant.is_reference and here().are_several:
                entrant.record.alone_s = session.one_rank_alone_s()
        if len(session.running) > 1:
            channel.measured(result)
    check_later(session)


def check_first_calls(session: Session, entrant: Entrant) -> None:
    """Compare the first calls with the reference's, and see that something has compiled."""
    reference, subject, record = session.reference, entrant.subject, entrant.record
    with (
        reference.comparable_random_numbers(subject.side),
        session.apart(record),
        session.exclusive_on_cpu(),
    ):
        session.channel.step(Step.VERIFY)
        if not entrant.is_reference:
            first_calls(reference, subject)
        elif why := reference.why_incomparable():  # so no other trial need begin
            raise Failed(Outcome.WRONG_OUTPUT, why)
        whole_pass(reference, subject)
        entrant.clock.stop()
        if entrant.asked.checks is Checks.ALL:  # else seen after the timing only
            repeated_draws(reference, subject)
    if not (session.request.is_race or subject.side.is_eager):
        prove_compiled(record, session.home)


def note_times(session: Session, entrant: Entrant, measurement: Measurement) -> None:
    """Put into the record what calls of each kind take, and compiling."""
    record, side, asked = entrant.record, entrant.side, entrant.asked
    record.reference_s = session.work.median_s
    record.device = session.target.device.type
    if side.config.bakes_weights:
        record.calls_per_update = session.request.calls_per_update
    if here().are_several:
        _note_ranks(session, entrant)
    of_shape: dict[Any, float] = {}
    if not session.request.is_race and isinstance(session.workload, Calls):
        with session.channel.exclusive():
            found = seconds_of_kinds(session.baseline, side, session.timer)
        record.kinds, of_shape = found
    # In a race without a whole cache, some of the code is compiled and some is read.
    is_known = asked.repeats is None or asked.is_warm
    if is_known and not side.is_eager:
        steady_s = measurement.compiled_pass_s
        own_s = entrant.clock.compile_s(steady_s, of_shape)
        record.compile_s = here().agree(own_s, max)
        # The parent takes out the time for which it held us.
        record.compile_window = entrant.clock.window


def _note_ranks(session: Session, entrant: Entrant) -> None:
    """Say how far ranks are apart."""
    record = entrant.record
    if (apart := session.timer.apart) > _APART:
        record.notes.append(
            f"the slowest rank takes {apart:.0%} longer than the fastest, and its time counts"
        )


def check_last_calls(
    session: Session, entrant: Entrant, measurement: Measurement
) -> None:
    """Compare a call after the timing; only what is right then has a measurement."""
    reference, side, record = session.reference, entrant.side, entrant.record
    session.channel.step(Step.VERIFY)
    with reference.comparable_random_numbers(side), session.exclusive_on_cpu():
        if not entrant.is_reference:
            last_call(reference, entrant.subject)
    record.measurement, record.outcome, record.step = measurement, Outcome.OK, Step.EXIT


def look_closer_unless_it_fails(session: Session, entrant: Entrant) -> None:
    """Look closer at what is measured already, while other trials go on."""
    try:
        look_closer(session, entrant)
    except Failed:
        raise
    except Exception as error:
        here().end_all(error)
        traceback.print_exc()
        entrant.record.notes.append(f"after its measurement: {first_words(error)}")
