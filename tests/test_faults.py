"""A real study over backends that go wrong in every way; slow only because each is a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import assert_nothing_left

import autocompile
from autocompile.record import Record


def trial(result: autocompile.Result, backend: str) -> Record:
    return next(r for r in result.trials if r.config.backend == backend and r.role == "search")


@pytest.mark.parametrize(
    ("backend", "outcome", "step", "words"),
    [
        ("honest", "ok", "exit", ""),
        ("aot_eager", "ok", "exit", ""),
        ("zeros", "wrong_output", "verify", "off by"),
        ("nan", "wrong_output", "verify", "NaN"),
        ("slightly_off", "wrong_output", "verify", "off by 0.01"),
        ("remembers", "wrong_output", "verify", "call 2"),
        ("stale", "stale_weights", "verify", "in-place update"),
        ("raises", "compile_error", "compile", "ValueError: this backend cannot do it"),
        ("needs_a_package", "unsupported", "compile", "a_package_that_is_not_there"),
        ("segfaults", "crashed", "compile", "SIGSEGV in compile"),
        ("leaves", "crashed", "compile", "exited with code 0"),
        ("exits", "compile_error", "compile", "SystemExit: gone"),
        ("hangs", "timeout", "compile", "still in compile after 20 s"),
        ("eats_memory", "out_of_memory", "compile", "3.0 GiB"),
        ("shouts", "ok", "exit", ""),
        ("forges", "crashed", "compile", "result channel"),
        ("closes_descriptors", "crashed", "compile", "exited with code"),
    ],
)
def test_each_fault_has_its_outcome_step_and_words(
    faulty: autocompile.Result, backend: str, outcome: str, step: str, words: str
) -> None:
    record = trial(faulty, backend)
    assert (record.outcome.value, record.step.value) == (outcome, step), record.message
    assert words in record.message
    assert "\n" not in record.message


def test_a_hang_leaves_its_stack_in_the_log(faulty: autocompile.Result) -> None:
    number = trial(faulty, "hangs").number
    log = (Path(faulty.run_dir) / f"trials/{number:04d}/log.txt").read_text("utf-8", "replace")
    assert "in hangs" in log


def test_a_hundred_megabytes_of_output_are_capped(faulty: autocompile.Result) -> None:
    number = trial(faulty, "shouts").number
    log = Path(faulty.run_dir) / f"trials/{number:04d}/log.txt"
    assert log.stat().st_size < 2**20
    assert b"bytes left out" in log.read_bytes()


def test_nothing_of_a_faulty_trial_is_alive(faulty: autocompile.Result) -> None:
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


def test_a_wrong_setting_is_never_best(faulty: autocompile.Result) -> None:
    assert faulty.config["forward"].backend in (
        "eager",
        "honest",
        "aot_eager",
        "shouts",
        "inductor",
    )
    ranked = faulty.to_dict()["phases"]["forward"]["by_batch_size"][0]["number"]
    assert next(r for r in faulty.trials if r.number == ranked).outcome.value == "ok"


def test_failures_are_grouped_in_the_report(faulty: autocompile.Result) -> None:
    groups = faulty.to_dict()["phases"]["forward"]["failures"]
    assert {g["outcome"] for g in groups} >= {"crashed", "timeout", "wrong_output", "unsupported"}
    assert all(g["count"] == len(g["numbers"]) for g in groups)
