"""The table of batch sizes: what stands in a row, and whether it may decide anything."""

from __future__ import annotations

from typing import Any

from autocompile.calm import Calm
from autocompile.config import EAGER, CompileConfig
from autocompile.ranking import Candidate
from autocompile.record import Measurement, Outcome, Record, Step
from autocompile.report.sizes import by_batch_size, elsewhere
from autocompile.stats import Interval


def candidate(
    number: int, speed: float, size: int = 1, mode: str = "default", **more: Any
) -> Candidate:
    config = EAGER if number == 0 else CompileConfig(mode=mode)
    measurement = Measurement((1e-3,) * 8, (1e-3 / speed,) * 8)
    record = Record(number, "forward", config, size, Outcome.OK, Step.EXIT, measurement=measurement)
    speedup = Interval(speed, speed * 0.99, speed * 1.01)
    return Candidate(record, speedup, speedup, 1e-3, more.pop("confirmed", 3), None, **more)


def row(*found: Candidate) -> tuple[int, bool]:
    (only,) = by_batch_size([candidate(0, 1.0), *found], "throughput")
    return only["number"], only["proven"]


def test_what_slowed_eager_down_gives_way_to_the_next() -> None:
    spinning = candidate(1, 3.0, flags=("eager_slowed",))
    assert row(spinning, candidate(2, 1.2, mode="lite")) == (2, True)
    assert row(spinning) == (1, False)


def test_what_was_not_measured_again_proves_nothing_where_others_were() -> None:
    alone = candidate(1, 2.0, confirmed=0)
    assert row(alone) == (1, True)  # nothing was: an interrupted run
    rows = by_batch_size([alone, candidate(2, 1.2, 4)], "throughput")
    assert [(r["number"], r["proven"]) for r in rows] == [(1, False), (2, True)]


def test_what_was_never_seen_undisturbed_comes_after_what_was() -> None:
    hidden = candidate(1, 2.0, calm=Calm.NONE)
    assert row(hidden, candidate(2, 1.2, mode="lite")) == (2, True)
    assert row(hidden) == (1, True)  # where nothing was calm, what there is decides


def test_no_note_is_made_of_a_speed_that_is_not_proven() -> None:
    rows = by_batch_size([candidate(1, 2.0, confirmed=0), candidate(2, 1.2, 4)], "throughput")
    (note,) = elsewhere(rows, [], {})
    assert note.startswith("at batch size 4 trial 2 is faster than eager")
