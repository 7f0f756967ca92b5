"""Ctrl-C and SIGTERM end what runs, and never what is written about it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeExecutor, measured
from scripts import script, tuned

from autocompile import api
from autocompile.execute.executor import Event
from autocompile.progress import Progress
from autocompile.search.jobs import Interrupts, Jobs, without_interrupts
from autocompile.search.study import Study

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _as_the_command_line_has_them() -> Iterator[None]:
    """Both raise KeyboardInterrupt, also where a shell's background job ignores Ctrl-C."""
    before = [signal.signal(number, signal.default_int_handler) for number in BOTH]
    yield
    for number, handler in zip(BOTH, before, strict=True):
        signal.signal(number, handler)


class Presses(FakeExecutor):
    """Sends a signal so often while the third trial runs."""

    def __init__(self, number: int, times: int = 1) -> None:
        super().__init__(script)
        self._number, self._times = number, times

    def wait(self, timeout_s: float) -> list[Event]:
        if len(self.requests) >= 3 and self._times:
            self._times -= 1
            signal.raise_signal(self._number)
        return super().wait(timeout_s)


def signalling(then: Callable[..., Any], *numbers: int) -> Callable[..., Any]:
    """``then``, during which these signals come."""

    def changed(*args: Any, **more: Any) -> Any:
        for number in numbers:
            signal.raise_signal(number)
        return then(*args, **more)

    return changed


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_ends_the_search_and_there_is_a_report(
    target: Path, number: int
) -> None:
    result = tuned(target, Presses(number))
    assert result.interrupted and result.verdict["forward"]
    assert (Path(result.run_dir) / "report.json").exists()


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_while_the_report_is_written_loses_nothing(
    target: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        api, "write_result", signalling(api.write_result, number, number)
    )
    result = tuned(target)
    assert result.verdict == {"forward": "faster"} and not result.interrupted
    assert (Path(result.run_dir) / "report.json").exists()


@pytest.mark.parametrize("name", ["rest", "unseen"])
def test_further_signals_between_the_end_of_the_search_and_the_report_lose_nothing(
    target: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = signalling(getattr(Study, name), *BOTH)
    monkeypatch.setattr(Study, name, changed)
    result = tuned(target, Presses(signal.SIGINT))
    assert result.interrupted
    assert (Path(result.run_dir) / "report.json").exists()


def test_a_second_ctrl_c_does_not_wait_for_what_will_not_end(target: Path) -> None:
    class Stubborn(Presses):
        def cancel(self, number: int) -> None:
            """It does not end."""
            self._events.clear()

    result = tuned(target, Stubborn(signal.SIGINT, times=2))
    assert result.interrupted
    assert (Path(result.run_dir) / "report.json").exists()


def test_afterwards_signals_are_as_they_were(target: Path) -> None:
    tuned(target, Presses(signal.SIGINT))
    for number in BOTH:
        assert signal.getsignal(number) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_outside_of_a_run_jobs_raise_what_has_interrupted_them() -> None:
    jobs = Jobs(FakeExecutor(lambda _: measured(1.0)), Progress())
    with pytest.raises(KeyboardInterrupt), jobs:
        signal.raise_signal(signal.SIGINT)
    assert jobs.interrupted


@pytest.mark.parametrize("number", BOTH)
def test_neither_signal_cuts_off_what_takes_a_moment(number: int) -> None:
    before = signal.getsignal(number)
    with without_interrupts():
        signal.raise_signal(number)
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_only_whoever_waits_for_jobs_is_interrupted_by_a_second_one() -> None:
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert interrupts.seen
        with pytest.raises(KeyboardInterrupt), interrupts.impatient():
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_a_first_ctrl_c_while_jobs_are_waited_for_is_not_raised() -> None:
    with Interrupts() as interrupts, interrupts.impatient():
        signal.raise_signal(signal.SIGINT)
    assert interrupts.seen
