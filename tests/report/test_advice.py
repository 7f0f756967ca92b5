"""What would help beside settings: memory that calls keep, layers that Dynamo may take."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from autocompile.report.build import advice
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.store.record import Measurement, Outcome, Record, Step
from autocompile.trial.measure.memory import page_faults


def trial(faults: Any, **more: Any) -> Record:
    timed = Measurement((8e-3,) * 8, (7e-3,) * 8)
    return Record(
        0, "forward", DEFAULT_INDUCTOR, 4, outcome=Outcome.OK, step=Step.EXIT,
        measurement=timed, page_faults=faults, **more,
    )  # fmt: skip


def test_memory_that_is_taken_anew_in_each_call_is_told() -> None:
    hit, spared = trial([1600, 700]), trial([0, 0])
    (said,) = advice([hit, spared, trial([0, 1500]), hit])
    assert said.startswith("in 2 of 4 processes")
    assert "1600 page faults" in said
    assert "MALLOC_TRIM_THRESHOLD_" in said


@pytest.mark.parametrize("faults", [[0, 0], [20, 0], None, [None, None], "x", [], {}])
def test_where_it_costs_nothing_or_nothing_is_known_nothing_is_said(faults: Any) -> None:
    assert not list(advice([trial(faults), trial([1600, 1600], duplicate_of=0)]))


def test_pages_are_counted_as_the_kernel_hands_them_out() -> None:
    """A tensor of 64 MiB is too large for glibc to keep: each call maps it anew."""
    pages = 64 * 2**20 // 4096
    fresh = page_faults(lambda: torch.ones(16 * 2**20))
    kept = torch.ones(16 * 2**20)
    same = page_faults(lambda: kept.fill_(1.0))
    assert fresh is not None
    assert same is not None
    # With huge pages of 2 MiB there are fewer.
    assert pages / 600 < fresh < 1.1 * pages
    assert same < fresh / 10


def test_layers_that_dynamo_takes_only_when_told_are_named() -> None:
    reason = "Attempted to wrap RNN, GRU, or LSTM"
    broken = Record(
        3, "forward", DEFAULT_INDUCTOR, 4, outcome=Outcome.NOT_COMPILED, step=Step.VERIFY,
        message=f"Dynamo captured no graph: everything ran in eager mode: {reason}",
    )  # fmt: skip
    (said,) = advice([trial(None), broken])
    assert "trial 3" in said and "torch._dynamo.config.allow_rnn = True" in said
    # Where the rest of the model was compiled, it is one break among others.
    beside = dataclasses.replace(trial(None), number=5, detail={"break_reasons": [reason]})
    (said,) = advice([beside])
    assert "trial 5" in said
    assert not list(advice([trial(None)]))
