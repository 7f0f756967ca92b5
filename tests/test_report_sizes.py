"""The table of batch sizes: what stands in a row, and whether it may decide anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autocompile.calm import Calm
from autocompile.config import EAGER, CompileConfig
from autocompile.ranking import Candidate, noise_floor
from autocompile.record import Measurement, Outcome, Record, Step
from autocompile.report.build import _decide
from autocompile.report.sizes import by_batch_size, elsewhere
from autocompile.stats import Interval

NOISY_S = tuple(1e-3 * (1 + 0.018 * (2 * i / 7 - 1)) for i in range(8))


def candidate(
    number: int, speed: float, size: int = 1, mode: str = "default", **more: Any
) -> Candidate:
    config = EAGER if number == 0 else CompileConfig(mode=mode)
    measurement = Measurement((1e-3,) * 8, (1e-3 / speed,) * 8)
    record = Record(number, "forward", config, size, Outcome.OK, Step.EXIT, measurement=measurement)
    speedup = Interval(speed, speed * 0.99, speed * 1.01)
    return Candidate(record, speedup, speedup, 1e-3, more.pop("confirmed", 3), None, **more)


def row(*found: Candidate) -> tuple[int, bool]:
    (only,) = by_batch_size([candidate(0, 1.0), *found], "throughput", [], {})
    return only["number"], only["proven"]


def test_what_slowed_eager_down_gives_way_to_the_next() -> None:
    spinning = candidate(1, 3.0, flags=("eager_slowed",))
    assert row(spinning, candidate(2, 1.2, mode="lite")) == (2, True)
    assert row(spinning) == (1, False)


def test_what_was_not_measured_again_proves_nothing_where_others_were() -> None:
    alone = candidate(1, 2.0, confirmed=0)
    assert row(alone) == (1, True)  # nothing was: an interrupted run
    rows = by_batch_size([alone, candidate(2, 1.2, 4)], "throughput", [], {})
    assert [(r["number"], r["proven"]) for r in rows] == [(1, False), (2, True)]


def test_what_was_never_seen_undisturbed_comes_after_what_was() -> None:
    hidden = candidate(1, 2.0, calm=Calm.NONE)
    assert row(hidden, candidate(2, 1.2, mode="lite")) == (2, True)
    assert row(hidden) == (1, True)  # where nothing was calm, what there is decides


def test_no_note_is_made_of_a_speed_that_is_not_proven() -> None:
    rows = by_batch_size(
        [candidate(1, 2.0, confirmed=0), candidate(2, 1.2, 4)], "throughput", [], {}
    )
    (note,) = elsewhere(rows)
    assert note.startswith("at batch size 4 trial 2 is faster than eager")


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_fresh_processes_refuted_is_no_reason_to_believe_what_none_has_seen(
    interrupted: bool,
) -> None:
    """Ctrl-C: what looks better than those that were confirmed may lead, and nothing else."""
    found = [candidate(0, 1.0), candidate(1, 1.01), candidate(2, 1.018, mode="lite", confirmed=0)]
    eager = replace(found[0].record, measurement=Measurement((1e-3,) * 8, NOISY_S))
    again = replace(found[1].record, number=3, role="confirm", repeats=1)
    records = [eager, found[1].record, found[2].record, again]
    assert 0.01 < noise_floor(records, 1, {}) < 0.018
    best, _, verdict, _ = _decide(found, found, records, {}, "throughput", interrupted)
    assert best is not None
    assert (best.record.number, verdict) == (0, "keep_eager")
    found[2] = candidate(2, 1.05, mode="lite", confirmed=0)
    best, _, verdict, _ = _decide(found, found, records, {}, "throughput", interrupted)
    assert best is not None
    assert (best.record.number, verdict) == ((2, "faster") if interrupted else (0, "keep_eager"))
