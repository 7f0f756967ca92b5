"""Runs that are interrupted, killed, resumed and loaded, their folders and their databases."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from fakes import FakeExecutor, measured, probed
from scripts import (
    SPACE,
    Listener,
    Script,
    is_best,
    is_compiled,
    script,
    searched,
    target_with,
    tune,
    tuned,
    where,
)

import autocompile
from autocompile.api import load
from autocompile.errors import RunError, UsageError
from autocompile.execute.executor import Ending, Event
from autocompile.search import optuna_study
from autocompile.settings.config import CompileConfig
from autocompile.settings.searchspace import SearchSpace
from autocompile.settings.tuned import Choice, Tuned
from autocompile.store.record import RunFolder


def studies(run: str | Path) -> optuna.Study:
    storage = f"sqlite:///{Path(run).resolve()}/study.db"
    return optuna.load_study(study_name="autocompile", storage=storage)


def resumed(target: Path, script: Script | FakeExecutor = script, **more: Any) -> Any:
    return tuned(target, script, resume=True, **{"space": None, **more})


# Ctrl-C ------------------------------------------------------------------------------------------


class PressesCtrlC(FakeExecutor):
    """Ctrl-C while the trial runs that is started after so many others."""

    def __init__(self, after: int, script: Script = script) -> None:
        super().__init__(script)
        self.after: int | None = after

    def wait(self, timeout_s: float) -> list[Event]:
        if self.after is not None and len(self.requests) - 1 >= self.after:
            self.after = None
            raise KeyboardInterrupt
        return super().wait(timeout_s)


def near(request: Mapping[str, Any]) -> Ending:
    """The default is hardly faster than eager."""
    is_default = is_compiled(request) and not is_best(request)
    return measured(1.02, noise=0.03) if is_default else script(request)


@pytest.mark.parametrize("repeats", [0, 1, 3, 5])
def test_ctrl_c_in_the_race_reports_the_best_as_not_confirmed_where_it_was_not(
    target: Path, repeats: int
) -> None:
    undisturbed = FakeExecutor(near)
    tuned(target, undisturbed)
    stopped = tuned(target, PressesCtrlC(len(searched(undisturbed)) + repeats, near))
    assert stopped.interrupted
    answer = stopped.report.phases["forward"].answer
    if repeats < 3:  # the first set has not ended, and with it the later checks
        assert stopped.verdict == {"forward": "unknown"} and answer.best is None
        assert "1.50x in its first trial and has not passed all checks" in answer.reason
        assert "--resume" in answer.command
        return
    assert stopped.verdict == {"forward": "faster"}
    assert stopped.config["forward"].mode == "max-autotune"
    best = stopped.to_dict()["phases"]["forward"]["answer"]["best"]
    if best["confirmed_processes"] < 2:
        assert not stopped.is_faster_by(1.1, "forward")


@pytest.mark.parametrize("at", [0, 1, 2])  # a baseline, and twice the search
def test_after_ctrl_c_there_is_a_report_and_resume_repeats_nothing(
    target: Path, at: int
) -> None:
    stopped = tuned(target, PressesCtrlC(at))
    assert stopped.interrupted
    assert (Path(stopped.run_dir) / "report.json").exists()
    if not at:  # nothing to conclude from
        assert stopped.verdict == {"forward": "unknown"}
        reason = stopped.report.phases["forward"].answer.reason
        assert "eager mode did not end" in reason
    result = resumed(target)
    assert not result.interrupted
    assert result.run_dir == stopped.run_dir
    undisturbed = tuned(target)

    def finished(r: autocompile.Result) -> list[tuple[str, str, int | None]]:
        kept = [t for t in r.trials if t.outcome.value != "interrupted"]
        return sorted((t.role, t.config.label(), t.duplicate_of and -1) for t in kept)

    assert finished(result) == finished(undisturbed)
    assert result.config == undisturbed.config


# What can be resumed -----------------------------------------------------------------------------


def of(sha256: str) -> FakeExecutor:
    return FakeExecutor(script, target_with(sha256=sha256))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"space": SearchSpace(batch_sizes=(8,))},
            UsageError,
            "it has --batch-size 4, now --batch-size 8 was asked for",
        ),
        ({"effort": "full"}, UsageError, "other options"),
        (
            {"effort": "normal"},
            UsageError,
            "other options",
        ),  # what a new run would have
        ({"objective": "throughput"}, UsageError, "--objective"),
        ({"seed": 0}, UsageError, "--seed"),
        ({"tolerance": 0.1}, UsageError, "--tolerance"),
        ({"script": of("two")}, RunError, "has changed since"),
    ],
)
def test_another_request_or_target_is_not_resumed(
    target: Path, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    asked = {"tolerance": 0.05, "effort": "quick", "objective": "latency", "seed": 1}
    tuned(target, of("one"), trials=2, **asked)
    resumed(target, of("one"), trials=2, **asked)
    with pytest.raises(error, match=said):
        resumed(target, **{"script": of("one"), **options})


def test_a_run_that_found_its_device_takes_the_name_of_that_device(
    target: Path,
) -> None:
    tuned(target, of("one"), trials=2)
    resumed(target, of("one"), trials=2, device="cpu")
    with pytest.raises(UsageError, match="now --device cuda was asked for"):
        resumed(target, of("one"), trials=2, device="cuda")


def test_a_run_whose_model_imports_what_has_changed_is_not_resumed(
    target: Path,
) -> None:
    (target.parent / "lib").mkdir()
    layers = target.parent / "lib" / "layers.py"
    layers.write_text("sizes = 4")
    target.write_text("from lib.layers import sizes")
    tuned(target, trials=2)
    resumed(target)
    layers.write_text("sizes = 8")
    with pytest.raises(RunError, match=r"^lib/layers\.py has changed since runs"):
        resumed(target)
    layers.unlink()
    with pytest.raises(RunError, match=r"^lib/layers\.py has changed since runs"):
        resumed(target)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {"threads": 2}, "another threads"),
        ({"device": "cuda:0", "driver": "570"}, {"driver": "580"}, "another driver"),
        ({"device": "cuda:0", "cuda": "12.8"}, {"cuda": "13.0"}, "another cuda"),
        ({}, {"cpu_capability": "AVX2"}, ""),  # of a run that did not note it
        ({"device": "cuda:0"}, {"device": "cuda:1", "threads": 2}, ""),  # an equal one
    ],
)
def test_a_run_of_another_machine_is_not_resumed(
    target: Path, before: dict[str, Any], now: dict[str, Any], said: str
) -> None:
    def on(facts: Mapping[str, Any]) -> FakeExecutor:
        machine = {**probed().payload["environment"], **facts}
        return FakeExecutor(script, probed(environment=machine))

    tuned(target, on(before), trials=2)
    resumed(target, on(before))
    with pytest.raises(RunError, match=said) if said else contextlib.nullcontext():
        resumed(target, on({**before, **now}))


def test_the_command_that_goes_on_has_the_options_that_the_run_was_made_with(
    target: Path,
) -> None:
    options = {
        "timeout_s": 90.5,
        "memory_limit_bytes": 2**31,
        "jobs": 3,
        "isolation": "spawn",
        "sampler": "random",
    }
    result = tuned(target, PressesCtrlC(3), **options)
    command = autocompile.load("last").report.phases["forward"].answer.command
    assert command == result.report.phases["forward"].answer.command
    words = command.split()
    assert words[:6] == [
        "autocompile",
        "tune",
        str(target),
        "--resume",
        "--budget",
        "5m",
    ]
    given = dict(zip(words[6::2], words[7::2], strict=True))
    place = given.pop("--run-dir")
    assert Path(place).samefile(result.run_dir)
    assert given == {
        "--timeout": "90.5",
        "--memory-limit": str(2**31),
        "--jobs": "3",
        "--isolation": "spawn",
        "--sampler": "random",
    }
    again = resumed(target, PressesCtrlC(0)).report.phases["forward"].answer
    # Options of the last time that it went on.
    usual = f"autocompile tune {target} --resume --budget 5m --run-dir {place}"
    assert again.command == usual


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"sampler": "gp"},
            "sampler is 'gp', and takes one of portfolio, tpe, random",
        ),
        ({"isolation": "thread"}, "isolation is 'thread'"),
        ({"trials": 0}, "trials is 0, and takes a whole number above 0"),
        ({"jobs": -1}, "jobs is -1"),
        ({"budget_s": 0.0}, "budget_s is 0.0"),
        ({"budget_s": "2m"}, "budget_s is '2m'"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes is 0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_started(
    target: Path, options: dict[str, Any], said: str
) -> None:
    class Untouched(FakeExecutor):
        def start(self, job: Any) -> None:
            raise AssertionError("a probe was started")

    with pytest.raises(UsageError, match=said):
        tuned(target, Untouched(script), **options)
    assert not Path("runs").exists()


def test_settings_that_are_tried_again_say_all_that_is_tried(target: Path) -> None:
    settings = Tuned({"forward": (Choice(CompileConfig(), 4),)}, {})
    executor = FakeExecutor(script)
    tune(target, executor, only=settings, space=SPACE, phases=("optimizer_step",))
    assert {request["phase"] for request in executor.requests} == {"forward"}


def test_a_tolerance_is_in_each_request_and_kept(target: Path) -> None:
    executor = FakeExecutor(script)
    result = tuned(target, executor, tolerance=0.05, run_dir="mine", trials=3)
    assert {request["tolerance"] for request in executor.requests} == {0.05}
    assert result.to_dict()["tolerance"] == 0.05
    assert json.loads(Path("mine/run.json").read_text())["request"]["tolerance"] == 0.05
    for senseless in (0.0, 1.0, float("nan")):
        with pytest.raises(UsageError, match="takes a number between 0 and 1"):
            tuned(target, tolerance=senseless)


def test_a_run_with_settings_that_are_not_listed_any_more_is_resumed(
    target: Path,
) -> None:
    space = SearchSpace(batch_sizes=(4,), dynamic=(None, False))
    tuned(target, space=space, run_dir="mine", trials=4)
    file = Path("mine/run.json")
    run = json.loads(file.read_text())
    run["request"]["space"]["dynamic"] = [
        None
    ]  # as an autocompile lists it that tries less
    file.write_text(json.dumps(run))
    assert resumed(target, run_dir="mine").config["forward"].mode == "max-autotune"


def test_a_run_is_loaded_as_it_was(target: Path) -> None:
    result = tuned(target)
    assert load("last").to_dict() == result.to_dict()
    assert load(Path(result.run_dir).name).config == result.config
    assert (
        json.loads((Path(result.run_dir) / "report.json").read_text())
        == result.to_dict()
    )


# Folders -----------------------------------------------------------------------------------------


def test_a_folder_that_is_not_free_is_left_alone(target: Path) -> None:
    tuned(target, trials=2, run_dir="mine")
    with pytest.raises(RunError, match="already holds a run"):
        tuned(target, run_dir="mine")
    precious = Path("project/cache/precious.txt")
    precious.parent.mkdir(parents=True)
    precious.write_text("keep me")
    with pytest.raises(RunError, match="not empty and holds no run"):
        tuned(target, run_dir="project")
    assert precious.read_text() == "keep me"


# Databases ---------------------------------------------------------------------------------------


def test_a_tuner_that_was_killed_is_repaired_on_resume(target: Path) -> None:
    result = tuned(target, trials=4)
    folder = RunFolder(result.run_dir)
    lost = max(r.number for r in result.trials if r.role == "search")
    with sqlite3.connect(
        folder.study_db
    ) as database:  # a record that Optuna never heard of
        ids = "SELECT trial_id FROM trial_user_attributes WHERE key='number' AND value_json=?"
        (row,) = database.execute(ids, (str(lost),)).fetchone()
        for table in (
            "trial_user_attributes",
            "trial_params",
            "trial_values",
            "trials",
        ):
            database.execute(f"DELETE FROM {table} WHERE trial_id=?", (row,))
    resumed(target, run_dir=result.run_dir)
    rows = studies(folder.path).get_trials()
    numbers = [r.user_attrs["number"] for r in rows]
    assert lost in numbers
    assert len(numbers) == len(set(numbers))


def test_a_torn_database_is_made_anew_from_the_records(target: Path) -> None:
    result = tuned(target, trials=4, run_dir="mine")
    Path("mine/study.db").write_bytes(b"this is no database" * 100)
    again = resumed(target, run_dir="mine")
    assert {r.number for r in result.trials} <= {r.number for r in again.trials}
    numbers = {r.user_attrs.get("number") for r in studies("mine").get_trials()}
    assert {r.number for r in again.trials if r.role == "search"} == numbers


def test_a_database_that_breaks_on_the_way_costs_no_trial(target: Path) -> None:
    def spoil(request: Mapping[str, Any]) -> Ending:
        with sqlite3.connect("mine/study.db") as database:
            database.execute("DROP TABLE IF EXISTS trials")
        return script(request)

    show = Listener()
    result = tuned(target, where(is_best, spoil), run_dir="mine", progress=show)
    assert result.config["forward"].mode == "max-autotune"
    (said,) = show.warnings
    assert "--resume adds the missing rows" in said


def test_a_locked_database_is_a_warning_and_gets_its_rows_later(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna_study, "_LOCK_PATIENCE_S", 0.05)
    show = Listener()
    options: dict[str, Any] = {"run_dir": "mine", "progress": show}
    with contextlib.ExitStack() as stack:

        def locking(request: Mapping[str, Any]) -> Ending:
            if not show.warnings:
                other = sqlite3.connect("mine/study.db", isolation_level=None)
                stack.enter_context(contextlib.closing(other)).execute(
                    "BEGIN EXCLUSIVE"
                )
            return script(request)

        result = tuned(target, where(is_best, locking), **options)
        (warning,) = show.warnings
        assert "locked" in warning
        assert "--resume adds" in warning
    assert result.verdict == {"forward": "faster"}
    resumed(target, **options)
    assert len(show.warnings) == 1
    numbers = [row.user_attrs["number"] for row in studies("mine").get_trials()]
    assert sorted(numbers) == sorted(
        r.number for r in result.trials if r.role == "search"
    )


# Compiler caches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [None, 3])
def test_a_run_keeps_the_caches_that_a_resumed_one_would_race(
    target: Path, trials: int | None
) -> None:
    """Once all is known there is nothing to race; else one that is no finalist's goes."""
    of_another = Path("runs/of_it/cache/0099")

    def work(request: Mapping[str, Any]) -> Ending:
        of_another.mkdir(exist_ok=True)
        return script(request)

    result = tuned(target, work, trials=trials, run_dir="runs/of_it")
    kept = {path.name for path in of_another.parent.glob("[0-9]*")}
    phases = result.to_dict()["phases"].values()
    best = {f"{phase['answer']['best']['number']:04d}" for phase in phases}
    assert not kept if trials is None else best <= kept
    assert of_another.name not in kept
