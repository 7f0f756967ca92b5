"""What a race still needs, and so what a resumed run could race."""

from __future__ import annotations

import dataclasses

import pytest
from made_records import CHANNELS_LAST, LITE, MAX, Run

from autocompile.estimate.candidates import candidates
from autocompile.estimate.decision import SETS, Decision, decide
from autocompile.estimate.stages import (
    could_go_on,
    is_undecided,
    lacks_counted,
    lacks_tries,
    needing,
)
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome


def decided(run: Run) -> Decision:
    decision = decide(candidates(run.records))
    assert decision is not None
    return decision


def near_and_apart(sets: int) -> Run:
    """Two settings that stay so near to each other that no set tells which is faster."""
    run = Run()
    lite, other = run.search(LITE, 1.20), run.search(MAX, 1.20)
    for setting, values in ((lite, (1.1, 1.3)), (other, (1.3, 1.1))):
        run.race(setting, *[values[n % 2] for n in range(sets)], together=False)
    return run


def names(decision: Decision, stage: object) -> set[CompileConfig]:
    return {c.record.config for c in needing(decision, stage)}  # type: ignore[arg-type]


def test_finalists_have_three_sets_first() -> None:
    run = Run()
    run.search(LITE, 1.5)
    assert names(decided(run), lacks_tries) == {LITE} and could_go_on(decided(run))
    run = Run()
    run.race(run.search(LITE, 1.5), 1.5, 1.5, 1.5)
    assert not could_go_on(decided(run))


def test_what_is_open_gets_more_sets_and_no_more_than_six() -> None:
    some, all_ = decided(near_and_apart(4)), decided(near_and_apart(SETS[1]))
    assert some.open and names(some, is_undecided)
    assert could_go_on(some)
    assert all_.open and not could_go_on(all_), "a resumed run would race nothing"


def test_sets_that_a_slow_host_spoilt_are_made_up_for_until_there_were_six() -> None:
    for sets, goes_on in ((3, True), (SETS[1], False)):
        run = Run()
        run.race(run.search(LITE, 1.5), *[1.5] * sets)
        raced = [r for r in run.records if r.race is not None]
        for n, record in enumerate(raced):
            record.reference_s = 1.0 if n < 2 else 1.5
        decision = decided(run)
        assert (decision.best.sets, decision.best.tries) == (2, sets)
        assert (names(decision, lacks_counted) == {LITE}) is goes_on
        assert could_go_on(decision) is goes_on


def test_sets_that_ended_from_outside_count_as_tries() -> None:
    run = Run()
    run.race(run.search(LITE, 1.5), *[1.5] * SETS[1])
    raced = [r for r in run.records if r.race is not None]
    for record in raced[2:]:
        record.outcome, record.measurement = Outcome.INFRASTRUCTURE, None
    decision = decided(run)
    assert (decision.best.sets, decision.best.tries) == (2, SETS[1])
    assert not could_go_on(decision)


@pytest.mark.parametrize("raced", [0, 3])
def test_where_only_eager_can_be_best_nothing_is_raced(raced: int) -> None:
    run = Run()
    slow = run.search(CHANNELS_LAST, 0.7)
    if raced:
        run.race(slow, *[0.7] * raced)
    assert not could_go_on(decided(run))


def test_the_order_of_the_records_does_not_matter() -> None:
    run = near_and_apart(4)
    turned = dataclasses.replace(decided(run))
    run.records.reverse()
    assert could_go_on(turned) == could_go_on(decided(run))
