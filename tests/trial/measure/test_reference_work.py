"""The reference work beside what is timed."""

from __future__ import annotations

import pytest
import torch

from autocompile.trial.measure.timing import ReferenceWork

CPU = torch.device("cpu")


def test_a_sample_takes_about_a_millisecond_draws_nothing_and_does_not_grow() -> None:
    before = torch.get_rng_state()
    work = ReferenceWork(CPU)
    for _ in range(5):
        work.sample()
    assert 1e-5 < work.median_s < 0.5
    assert torch.equal(torch.get_rng_state(), before)
    assert work._out.isfinite().all() and not work._out.requires_grad


def test_the_median_of_the_samples_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9.0, 8.0, 1.0, 1.2])  # the first warms
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
