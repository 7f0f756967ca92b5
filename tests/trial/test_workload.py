"""The reference work beside what is timed, and which processes it leaves out."""

from __future__ import annotations

import pytest
import torch

from autocompile.estimate.host import SLOWER, left_out
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome, Record, Step
from autocompile.trial.measure.workload import ReferenceWork

CPU = torch.device("cpu")


def test_a_sample_takes_about_a_millisecond() -> None:
    work = ReferenceWork(CPU)
    for _ in range(5):
        work.sample()
    assert 1e-5 < work.median_s < 0.5


def test_a_sample_is_the_better_of_two_and_the_median_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([9.0, 9.0, 1.0, 1.2, 8.0, 5.0, 5.0])  # the first warms
    monkeypatch.setattr(ReferenceWork, "_once", lambda self: next(times))
    work = ReferenceWork(CPU)
    assert work.median_s == 0.0, "nothing was sampled"
    for _ in range(3):
        work.sample()
    assert work.median_s == 1.2


def test_beside_a_gpu_no_state_of_the_cpu_is_the_right_one() -> None:
    work = ReferenceWork(torch.device("cuda"))
    work.sample()
    assert work.median_s == 0.0


def test_the_work_is_the_same_whatever_a_target_has_set() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        work = ReferenceWork(CPU)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    for tensor in (work._left, work._right, work._out, work._small):
        assert (tensor.dtype, tensor.device) == (torch.float32, CPU)


def test_no_random_numbers_are_drawn_and_nothing_grows_without_bound() -> None:
    before = torch.get_rng_state()
    work = ReferenceWork(CPU)
    work.sample()
    assert torch.equal(torch.get_rng_state(), before)
    assert work._out.isfinite().all() and not work._out.requires_grad


# --- states of the host --------------------------------------------------------------------------


def raced(*reference_s: float | None) -> list[Record]:
    """A setting in sets 1, 2, 3, ... with these times of the reference work."""
    return [
        Record(
            number, "forward", CompileConfig(), 4, Outcome.OK, Step.EXIT,
            role="confirm", race=number, detail={"reference_s": seconds},
        )
        for number, seconds in enumerate(reference_s, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reference_s", "out"),
    [
        ((), set()),
        ((1e-3,), set()),
        ((1e-3, 1.4e-3, 1.05e-3), {2}),
        ((1e-3, 1e-3 * SLOWER * 0.99, 1e-3), set()),
        ((1e-3, 1.4e-3, 1.4e-3), {2, 3}),  # also where they are the more
        ((1e-3, 1.4e-3), {2}),
        ((1e-3, 1.4e-3, 1e-3, 1.5e-3, 1e-3), {2, 4}),
        ((None, 1e-3, 1.4e-3, 1e-3), {3}),  # one that was not measured is not judged
        ((None, 0.0), set()),
    ],
)
def test_processes_of_a_slow_spell_are_left_out(
    reference_s: tuple[float | None, ...], out: set[int]
) -> None:
    assert left_out(raced(*reference_s)) == out
