"""Pace: a machine that is slower than it has been is seen, whatever slows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from autocompile.trial import strain as strain_module
from autocompile.trial.pace import Pace
from autocompile.trial.strain import Strain

CPU = torch.device("cpu")


class Machine:
    """How long the two kinds of work take, as somebody else decides."""

    def __init__(self) -> None:
        self.products_s, self.sums_s = 30e-6, 3e-6


def is_slow(pace: Pace) -> bool:
    """Just now."""
    number = pace.sample()
    return pace.slow()[number]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(Pace, "_products", lambda self: made.products_s)
    monkeypatch.setattr(Pace, "_sums", lambda self: made.sums_s)
    return made


@pytest.mark.parametrize("kind", ["products_s", "sums_s"])
def test_what_takes_longer_than_before_is_slow_and_noise_is_not(
    machine: Machine, kind: str
) -> None:
    pace = Pace(CPU)
    usual = getattr(machine, kind)
    assert not is_slow(pace)
    setattr(machine, kind, usual * 1.05)
    assert not is_slow(pace)
    setattr(machine, kind, usual * 1.3)
    assert is_slow(pace)
    setattr(machine, kind, usual)
    assert not is_slow(pace)


def test_a_sample_is_judged_anew_when_the_machine_is_seen_to_be_faster(machine: Machine) -> None:
    machine.products_s = 45e-6
    pace = Pace(CPU)
    assert not is_slow(pace)
    machine.products_s = 30e-6
    assert not is_slow(pace)
    assert pace.slow() == [True, True, False]


def test_what_other_processes_have_reached_counts(machine: Machine) -> None:
    assert not is_slow(Pace(CPU))
    assert is_slow(Pace(CPU, [3e-6, 20e-6]))
    assert not is_slow(Pace(CPU, [1.0]))  # of another kind of device: not comparable
    # It says what it has seen itself: what is usual could only ever become faster otherwise.
    assert Pace(CPU, [3e-6, 20e-6]).best() == [3e-6, 30e-6]


def test_beside_a_gpu_only_dispatch_counts(machine: Machine) -> None:
    pace = Pace(torch.device("cuda"))
    machine.products_s = 1.0
    assert not is_slow(pace)
    assert pace.best() == [3e-6]


def test_a_short_interruption_is_not_what_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted_once() -> Callable[[Pace], float]:
        times = iter([3e-6, 3e-6, 9e-6, 3e-6, 9e-6, 9e-6])
        return lambda self: next(times)

    monkeypatch.setattr(Pace, "_products", lambda self: 30e-6)
    monkeypatch.setattr(Pace, "_sums", interrupted_once())
    pace = Pace(CPU)
    assert not is_slow(pace)
    assert is_slow(pace)


def test_a_round_between_two_slow_moments_is_disturbed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the pace is looked at: other tests that run beside this one make its threads wait.
    monkeypatch.setattr(strain_module, "_waited_s", dict)
    monkeypatch.setattr(Strain, "_held_back_s", lambda self: 0.0)
    strain = Strain(CPU, Pace(CPU))
    assert not strain.disturbed_since(strain.mark())
    mark = strain.mark()
    machine.products_s *= 1.5
    assert strain.disturbed_since(mark)
    mark = strain.mark()
    machine.products_s /= 1.5
    assert strain.disturbed_since(mark)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """With more of them each waits for the others, as long as other tests use the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
def test_the_real_work_takes_microseconds() -> None:
    pace = Pace(CPU)
    for _ in range(50):  # other tests may run beside this one
        pace.sample()
    sums_s, products_s = pace.best()
    assert 1e-7 < sums_s < 1e-3
    assert 1e-6 < products_s < 1e-2
