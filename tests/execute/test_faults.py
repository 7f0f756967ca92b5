"""Backends that go wrong in every way, in real trials: each fault has its outcome, nothing of it
stays alive, and what comes after it is fine. `pytest -m slow` has those that take long.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, SHORT, TARGETS, Bench, _Lasting, assert_nothing_left
from scripts import tune

import autocompile
from autocompile.execute.executor import Ending, Event, Job
from autocompile.execute.job import JobFactory
from autocompile.protocol.requests import Request, TrialRequest
from autocompile.search.records import of_only_side, to_record
from autocompile.settings.config import CompileConfig, Setting
from autocompile.store.record import Outcome, Record

PROCESSES = TARGETS / "faulty_processes.py"
pytestmark = pytest.mark.timeout(900)  # the study of all of them, on a slow machine


def trial(result: autocompile.Result, backend: str) -> Record:
    return next(
        r for r in result.trials if r.config.backend == backend and r.role == "search"
    )


# --- one study over backends that go wrong by themselves ----------------------------------------


@pytest.fixture(scope="module")
def faulty(_warm: None, tmp_path_factory: pytest.TempPathFactory) -> autocompile.Result:
    """One study over every faulty backend; the tests look at what became of each."""
    job = JobFactory.job

    def soon_over(self: JobFactory, request: Request, *args: Any, **more: Any) -> Job:
        if not isinstance(request, TrialRequest) or request.is_race:
            return job(self, request, *args, **more)
        request = dataclasses.replace(request, limits=SHORT)
        made = job(self, request, *args, **more)
        # Not for each: beside other tests, memory is not eaten as fast.
        is_endless = request.sides[0].config.backend == "hangs"
        return dataclasses.replace(made, compile_timeout_s=5.0) if is_endless else made

    backends = (
        "honest zeros nan slightly_off remembers stale raises needs_a_package segfaults leaves "
        "exits hangs eats_memory wears_out does_nothing shouts forges closes_descriptors aot_eager"
    ).split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobFactory, "job", soon_over)
        return autocompile.tune(
            TARGETS / "faulty_backends.py",
            phases=("forward",),
            space=autocompile.SearchSpace(backends=tuple(backends), batch_sizes=(4,)),
            effort="quick",
            timeout_s=PATIENCE_S,
            memory_limit_bytes=3 * 2**29,
            run_dir=tmp_path_factory.mktemp("faulty") / "run",
        )


@pytest.mark.parametrize(
    ("backend", "outcome", "step", "words"),
    [
        ("honest", "ok", "exit", ""),
        ("aot_eager", "ok", "exit", ""),
        ("zeros", "wrong_output", "verify", "off by"),
        ("nan", "wrong_output", "verify", "NaN"),
        ("slightly_off", "wrong_output", "verify", "off by 0.01"),
        ("remembers", "wrong_output", "verify", "call 2"),
        ("wears_out", "wrong_output", "verify", "after the timing"),
        ("does_nothing", "wrong_output", "verify", "call 1"),
        ("stale", "ok", "exit", ""),  # found in a race: test_later.py
        ("raises", "compile_error", "compile", "ValueError: this backend cannot do it"),
        ("needs_a_package", "unsupported", "compile", "a_package_that_is_not_there"),
        ("segfaults", "crashed", "compile", "SIGSEGV in compile"),
        ("leaves", "crashed", "compile", "exited with code 0"),
        ("exits", "compile_error", "compile", "SystemExit: gone"),
        ("hangs", "timeout", "compile", "still in compile after 5 s"),
        ("eats_memory", "out_of_memory", "compile", "1.5 GiB"),
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


@pytest.mark.parametrize(
    ("backend", "said"), [("hangs", b"in hangs"), ("shouts", b"bytes left out")]
)
def test_a_hang_leaves_its_stack_in_the_log_and_a_lot_of_output_is_capped(
    faulty: autocompile.Result, backend: str, said: bytes
) -> None:
    log = Path(faulty.run_dir) / f"trials/{trial(faulty, backend).number:04d}/log.txt"
    assert log.stat().st_size < 2**20
    assert said in log.read_bytes()


def test_a_wrong_setting_is_never_best_and_nothing_of_it_is_alive(
    faulty: autocompile.Result,
) -> None:
    assert_nothing_left("AUTOCOMPILE_TRIAL=")
    right = ("eager", "honest", "aot_eager", "shouts", "inductor")
    assert faulty.config["forward"].backend in right
    answer = faulty.report.phases["forward"].answer
    ranked = [one.number for one in (answer.best, answer.next) if one]
    assert ranked
    assert all(r.ok for r in faulty.trials if r.number in ranked)


def test_failures_are_grouped_in_the_report(faulty: autocompile.Result) -> None:
    groups = faulty.to_dict()["phases"]["forward"]["failures"]
    assert {g["outcome"] for g in groups} >= {
        "crashed",
        "timeout",
        "wrong_output",
        "unsupported",
    }
    assert all(g["count"] == len(g["numbers"]) for g in groups)


def test_a_study_of_faults_is_resumed_without_repeating_any(
    faulty: autocompile.Result,
) -> None:
    run = Path(faulty.run_dir)
    before = {p: p.read_bytes() for p in run.glob("trials/*/result.json")}
    again = autocompile.tune(TARGETS / "faulty_backends.py", run_dir=run, resume=True)
    assert not again.interrupted
    assert {p: p.read_bytes() for p in run.glob("trials/*/result.json")} == before
    assert again.verdict == faulty.verdict


class _Doubting(_Lasting):
    """The bench's executor with the doubts of its endings, so that there are second tries."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.executor)
        self.started: list[Job] = []

    def start(self, job: Job) -> None:
        self.started.append(job)
        self._executor.start(job)

    def wait(self, timeout_s: float) -> list[Event]:
        return self._executor.wait(timeout_s)


def test_a_forked_trial_that_crashes_is_tried_again_in_a_fresh_interpreter(
    bench: Bench, tmp_path: Path
) -> None:
    executor = _Doubting(bench)
    result = tune(
        TARGETS / "faulty_backends.py",
        phases=("forward",),
        space=autocompile.SearchSpace(
            backends=("segfaults",), fullgraph=(False,), batch_sizes=(4,)
        ),
        executor=executor,
        run_dir=tmp_path / "run",
    )
    record = trial(result, "segfaults")
    assert (record.outcome, record.step.value) == (Outcome.CRASHED, "compile")
    assert [job.fresh for job in executor.started if job.number == record.number] == [
        False,
        True,
    ]
    assert any(
        "the first ended with crashed in compile" in note for note in record.notes
    ), record.notes
    logs = tmp_path / f"run/trials/{record.number:04d}"
    assert {p.name for p in logs.glob("log*.txt")} == {"log.txt", "log.first.txt"}


# --- processes, descriptors and the channel -----------------------------------------------------


PROCESS_FAULTS = [
    ("segfaults_in_a_thread", "crashed", "compile", "SIGSEGV in compile"),
    ("kills_itself", "crashed", "compile", "SIGKILL in compile"),
    ("kills_its_supervisor", "infrastructure", "compile", "killed from outside"),
    ("kills_the_compiler", "compile_error", "compile", "CppCompileError"),
    ("loses_a_compile_worker", "compile_error", "compile", "BrokenProcessPool"),
    ("does_not_tidy_up", "ok", "exit", ""),
    ("sends_an_endless_line", "crashed", "compile", "line of more than 8388608 bytes"),
    ("sends_no_utf8", "crashed", "compile", "wrote to the result channel: no JSON"),
    ("sends_no_nonce", "crashed", "compile", "a message with the wrong nonce"),
    ("sends_a_deep_line", "crashed", "compile", "wrote to the result channel: no JSON"),
]


@pytest.mark.parametrize(("backend", "outcome", "step", "words"), PROCESS_FAULTS)
def test_a_trial_that_harms_its_own_processes_harms_nobody_else(
    bench: Bench, backend: str, outcome: str, step: str, words: str
) -> None:
    ending = bench.run(PROCESSES, backend)
    assert (ending.outcome.value, ending.step.value) == (outcome, step), ending.message
    assert words in ending.message
    if backend in ("segfaults_in_a_thread", "kills_itself", "kills_its_supervisor"):
        assert "forked" in ending.doubts, "forking may have caused such a death"
    assert_nothing_left(
        "AUTOCOMPILE_TRIAL="
    )  # that the next one works the next test shows


def test_after_all_of_them_a_trial_works_beside_a_busy_neighbour_too(
    bench: Bench,
) -> None:
    ending = bench.run(PROCESSES, "shares_its_core")
    assert ending.outcome is Outcome.OK, ending.message
    assert ending.payload["sides"][0]["reference_s"] > 0
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


HANGS = {
    "hangs_with_the_lock": "in hangs_with_the_lock (faulty_processes.py:",
    "hangs_in_a_regex": "in match (__init__.py:",
    "hangs_while_autotuning": "in <lambda> (faulty_processes.py:",
    "hangs_and_hides": "in hangs_and_hides (faulty_processes.py:",
}


@pytest.fixture(scope="module")
def side_by_side(
    tmp_path_factory: pytest.TempPathFactory, bench: Bench
) -> tuple[dict[str, Ending], float]:
    """All that hang, and one that compiles all that time; the one in a benchmark has the others
    stopped. Their endings, and how long the one that does not hang was there in all.
    """
    folder = tmp_path_factory.mktemp("side-by-side")
    shutil.copy(TARGETS / "sleeper.py", folder)
    (folder / "sleep").write_text("compile 0")
    beside = bench.start(folder / "sleeper.py", "one")
    bench.until((folder / "asleep").exists)
    numbers = {name: bench.start(PROCESSES, name, timeout_s=4.0) for name in HANGS}
    endings = {name: bench.end(number) for name, number in numbers.items()}
    (folder / "sleep").unlink()
    endings["beside"] = bench.end(beside)
    return endings, bench.took_s[beside]


@pytest.mark.parametrize(("backend", "place"), HANGS.items())
def test_a_hang_ends_at_its_deadline_and_says_where_it_was(
    side_by_side: tuple[dict[str, Ending], float], backend: str, place: str
) -> None:
    ending = side_by_side[0][backend]
    assert (ending.outcome.value, ending.step.value) == ("timeout", "compile"), (
        ending.message
    )
    assert ending.message.startswith("still in compile after 4 s, ")
    assert place in ending.message
    assert set(ending.doubts) == {"forked", "beside other trials"}


def test_a_trial_beside_hangs_works_and_is_not_charged_for_standing_still(
    side_by_side: tuple[dict[str, Ending], float],
) -> None:
    endings, took_s = side_by_side
    ending = endings["beside"]
    assert ending.outcome is Outcome.OK, ending.message
    stood_s = sum(end - begin for begin, end in ending.pauses)
    assert stood_s > 1, "it was not stopped while the other was in its benchmark"
    assert ending.wall_s <= took_s - stood_s
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


# --- slow ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_gigabytes_of_output_are_capped(bench: Bench) -> None:
    number = bench.start(PROCESSES, "shouts_two_gigabytes")
    ending = bench.end(number)
    assert ending.outcome is Outcome.OK, ending.message
    assert bench.log(number).stat().st_size < 2**20
    assert b"bytes left out" in bench.log(number).read_bytes()
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


@pytest.mark.slow
def test_a_result_counts_although_its_process_does_not_end(bench: Bench) -> None:
    ending = bench.run(PROCESSES, "cannot_leave")
    assert (ending.outcome, ending.step.value) == (Outcome.OK, "exit"), ending.message
    assert ending.payload["sides"][0]["measurement"]
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory) -> autocompile.Result:
    """A study of the same faults in which each trial has an interpreter of its own."""
    backends = (*(row[0] for row in PROCESS_FAULTS), *HANGS)
    return autocompile.tune(
        PROCESSES,
        phases=("forward",),
        space=autocompile.SearchSpace(backends=backends, batch_sizes=(4,)),
        effort="quick",
        timeout_s=15.0,
        isolation="spawn",
        run_dir=tmp_path_factory.mktemp("spawned") / "run",
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "outcome", "step", "words"),
    [
        *PROCESS_FAULTS,
        *((name, "timeout", "compile", place) for name, place in HANGS.items()),
    ],
)
def test_faults_are_the_same_where_each_trial_has_an_interpreter_of_its_own(
    spawned: autocompile.Result, backend: str, outcome: str, step: str, words: str
) -> None:
    record = trial(spawned, backend)
    assert (record.outcome.value, record.step.value) == (outcome, step), record.message
    assert words in record.message
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


AFTERWARDS = """
import os, time
import torch
from autocompile.trial.measure import footprint

def get_model():
    return torch.nn.Linear(8, 4)

def get_inputs(batch_size):
    return torch.ones(batch_size, 8)

def crash(*args, **kwargs):
    {code}

footprint.peak_bytes = crash
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("os.abort()", "SIGABRT in verify"),
        ("raise RuntimeError('no more')", "RuntimeError: no more"),
        ("time.sleep(1000)", "still in verify after 10 s"),
    ],
)
def test_what_fails_after_the_measurement_does_not_lose_it(
    bench: Bench, tmp_path: Path, code: str, said: str
) -> None:
    target = tmp_path / "model.py"
    target.write_text(AFTERWARDS.format(code=code))
    ending = bench.run(
        target, "aot_eager", **({"timeout_s": 10.0} if "sleep" in code else {})
    )
    assert ending.outcome is Outcome.OK, ending.message
    payload = of_only_side(ending.payload)
    assert payload["measurement"]["compiled_s"] and payload["compile_s"]
    setting = Setting(CompileConfig("aot_eager"), 4)
    record = to_record(0, setting, dataclasses.replace(ending, payload=payload))
    assert record.ok and not record.message
    (note,) = (n for n in record.notes if n.startswith("after its measurement"))
    assert said in note
