"""Suites: their lists, budgets and endings, and the table that they give."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeExecutor, failed, measured, probed
from made_records import Run, run_of
from recorded_runs import said
from scripts import is_eager, is_raced

from autocompile.api import Parts
from autocompile.errors import (
    AnotherMachine,
    NothingWorked,
    RunError,
    TargetError,
    UsageError,
)
from autocompile.estimate.intervals import Interval
from autocompile.execute.executor import Job
from autocompile.protocol.requests import read_request
from autocompile.report.build import build_report
from autocompile.request import Request
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.settings.option import Kept, kept_names
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.record import Outcome, Record, RunFolder
from autocompile.store.report import Report, Tried
from autocompile.suite.members import members_of
from autocompile.suite.rows import Member, Row, Suite, rows_of
from autocompile.suite.runner import Runner, latest, run_suite
from autocompile.suite.tables import (
    differences,
    is_comparable,
    suite_document,
    to_csv,
    to_markdown,
)

MODEL = "import torch\ndef get_model(): return torch.nn.Linear(4, 4)\n"
MODEL += "def get_inputs(batch_size): return torch.randn(batch_size, 4)\n"
LITE = CompileConfig(mode="lite")
MODES = ("default", "max-autotune")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = Path("models")
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(MODEL)
    (folder / "helper.py").write_text("X = 1\n")
    return folder


# Which models -------------------------------------------------------------------------------------


def test_a_folder_gives_its_targets(models: Path) -> None:
    found = members_of(str(models), ("forward",), None)
    assert [(m.target, m.folder) for m in found] == [
        ("models/one.py", "one.forward"),
        ("models/two.py", "two.forward"),
    ]
    assert all(m.batch_sizes is None for m in found)  # its own


def test_a_list_gives_sizes_and_phases_for_all_and_for_one(models: Path) -> None:
    (models / "list.toml").write_text(
        'batch_sizes = [2]\nmodels = ["timm:resnet18", "models/one.py",\n'
        '{ target = "models/one.py", phases = ["forward"], batch_sizes = [1, 4] }]\n'
    )
    found = members_of(str(models / "list.toml"), None, None)
    assert [(m.folder, m.phases, m.batch_sizes) for m in found] == [
        ("resnet18.forward", ("forward",), (2,)),
        ("resnet18.train_step", ("train_step",), (2,)),
        ("one", None, (2,)),
        ("one.forward", ("forward",), (1, 4)),
    ]


def test_a_model_that_is_there_twice_has_two_folders(models: Path) -> None:
    (models / "list.toml").write_text('models = ["models/one.py", "./models/one.py"]\n')
    folders = [m.folder for m in members_of(str(models / "list.toml"), None, None)]
    assert folders == ["one", "one+1"]


@pytest.mark.parametrize("name", ["timm", "transformers", "diffusers"])
def test_the_lists_that_come_with_it_are_of_that_library(name: str) -> None:
    found = members_of(name, None, None)
    assert all(m.target.startswith(f"{name}:") for m in found)
    assert len({m.folder for m in found}) == len(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no suite"),
        ("models = ", "is not TOML"),
        ("models = []", "is no list of models"),
        ('models = ["a.py"]\nsize = 3', "is no list of models"),
        ("models = [3]", "3 is no model"),
        ('models = [{ target = "a.py", size = 3 }]', "is no model"),
        ('models = [{ target = "a.py", phases = "forward" }]', "is no model"),
        ('models = [{ target = "a.py", batch_sizes = ["4"] }]', "is no model"),
    ],
)
def test_what_is_no_suite_is_one_paragraph(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "list.toml" if text is not None else Path("nothing")
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=words) as raised:
        members_of(str(path), None, None)
    assert raised.value.hint or raised.value.details or "TOML" in words


def test_a_folder_without_targets_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file in"):
        members_of(str(tmp_path), None, None)


# When and how long --------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Runs:
    """Stands for ``tune``: takes some of the time that it is given, and leaves settings untried."""

    def __init__(
        self, folder: Path, report: Report, likely: Mapping[str, float]
    ) -> None:
        self.folder, self.report, self.likely = folder, report, {**likely}
        self.clock = Clock()
        self.given: list[tuple[str, float]] = []
        self.raises: dict[str, BaseException] = {}
        self.always = False  # there is as much to win after more time
        self.share_taken, self.waits_s = 0.5, 0.0

    def __call__(
        self, member: Member, resume: bool, **more: Any
    ) -> Mapping[str, Report]:
        if error := self.raises.get(member.folder):
            raise error
        self.given.append((member.folder, more["budget_s"]))
        self.clock.now += self.waits_s
        more["waited"](self.waits_s)
        taken = 1.0 if resume else self.share_taken
        self.clock.now += taken * more["budget_s"]
        more["run_dir"].mkdir(parents=True, exist_ok=True)
        get = self.likely.get if self.always else self.likely.pop
        rest = [
            {
                "likely": get(member.folder, 0.0),
                "most": 1.0,
                "config": {"backend": "inductor"},
            }
        ]
        run = {"schema": 1, "phases": ["forward"]}
        run |= {"environment": {"device": "cpu"}, "target": {"kind": "functions"}}
        run["request"] = {"target": member.target, "budget_s": more["budget_s"]}
        run["spaces"] = {"forward": {"rest": rest}}
        (more["run_dir"] / "run.json").write_text(json.dumps(run))
        return {"": self.report}


@pytest.fixture
def runner(models: Path) -> Callable[..., tuple[Runner, Runs]]:
    def made(names: str, budget_s: float, **likely: float) -> tuple[Runner, Runs]:
        report = said("show", str(recorded()), "--json")
        runs = Runs(Path("suite"), Report.read(json.loads(report), "it"), likely)
        members = tuple(
            Member(target=f"{n}.py", folder=n, phases=("forward",)) for n in names
        )
        suite = Suite(name="list", members=members)
        quiet: Any = {"say": lambda _: None, "note": lambda _: None}
        return Runner(
            Path("suite"), suite, budget_s, runs, clock=runs.clock, **quiet
        ), runs

    return made


def recorded() -> Path:
    return Path(__file__).parents[1] / "data" / "report.json"


def test_what_one_model_does_not_use_is_for_the_others(runner: Any) -> None:
    one, runs = runner("abc", 1000.0)
    one.run()
    shares = [share for _, share in runs.given]
    assert shares[0] == pytest.approx(700 / 3)
    assert shares[0] < shares[1] < shares[2]


def test_no_share_is_more_than_is_left(runner: Any) -> None:
    one, runs = runner("ab", 70.0)
    runs.share_taken = 1.0
    one.run()
    assert [share for _, share in runs.given] == [45.0, 25.0]
    assert one.clock() == pytest.approx(70.0)


def test_waiting_for_another_command_takes_nothing_of_the_budget(runner: Any) -> None:
    shares = {}
    for waits_s in (0.0, 600.0):
        one, runs = runner("abc", 1000.0)
        runs.waits_s = waits_s
        one.run()
        shares[waits_s] = [share for _, share in runs.given]
        shutil.rmtree("suite")
    assert shares[600.0] == pytest.approx(shares[0.0])


def test_the_rest_of_the_budget_goes_where_most_may_be_won(runner: Any) -> None:
    one, runs = runner("abc", 1000.0, a=0.005, b=0.2, c=0.1)
    suite = one.run()
    assert [name for name, _ in runs.given[3:]] == ["b", "c"]
    assert not suite.interrupted
    assert suite.wall_s <= 1000.0


def test_a_models_error_is_a_row_and_no_end(runner: Any) -> None:
    one, runs = runner("abc", 1000.0)
    runs.raises["b"] = TargetError("the model of b.py cannot be built")
    suite = one.run()
    assert [name for name, _ in runs.given] == ["a", "c"]
    (row,) = [row for row in suite.rows if row.target == "b.py"]
    assert row.message == "the model of b.py cannot be built"
    assert row.verdict == "failed"
    assert Suite.read(Path("suite")).to_dict() == suite.to_dict()


def test_an_error_of_the_request_ends_it(runner: Any) -> None:
    one, runs = runner("ab", 1000.0)
    runs.raises["a"] = UsageError("no phase")
    with pytest.raises(UsageError):
        one.run()


@pytest.mark.parametrize(
    "error", [UsageError("no such size"), RunError("b.py has changed")]
)
def test_an_error_of_one_model_is_a_row(runner: Any, error: Exception) -> None:
    one, runs = runner("abc", 1000.0)
    runs.raises["b"] = error
    suite = one.run()
    assert [row.message for row in suite.rows if row.target == "b.py"] == [str(error)]
    assert [name for name, _ in runs.given] == ["a", "c"]


@pytest.mark.parametrize("member", "ab")
@pytest.mark.parametrize(
    "error",
    [
        TargetError("the inputs of it have batch size 4"),
        ValueError("Out of range float values are not JSON compliant"),
        OSError(28, "No space left on device"),
    ],
)
def test_whatever_one_model_raises_is_a_row_also_of_the_first(
    runner: Any, member: str, error: Exception
) -> None:
    one, runs = runner("abc", 1000.0)
    runs.raises[member] = error
    suite = one.run()
    (row,) = [row for row in suite.rows if row.target == f"{member}.py"]
    assert row.verdict == "failed" and str(error).splitlines()[0] in row.message
    assert {name for name, _ in runs.given} == {*"abc"} - {member}


def test_each_gets_of_the_rest_before_one_gets_more(runner: Any) -> None:
    one, runs = runner("abc", 2000.0, b=0.5, c=0.1)
    runs.always = True
    one.run()
    again = [name for name, _ in runs.given[3:]]
    assert again[:2] == ["b", "c"]
    assert abs(again.count("b") - again.count("c")) <= 1


@pytest.mark.parametrize("ended", [0, 3])
def test_a_run_in_which_no_compile_has_ended_gets_more_than_it_had(
    runner: Any, ended: int
) -> None:
    one, runs = runner("abcdefgh", 1000.0, **dict.fromkeys("abcdefgh", 0.5))
    phases = {
        n: replace(p, compiled_listed=9, compiled_tried=ended)
        for n, p in runs.report.phases.items()
    }
    runs.report = replace(runs.report, phases=phases)
    one.run()
    had, again = dict(runs.given[:8]), runs.given[8:]
    assert (len(again) == 8) is bool(ended), again
    name, share = again[0]
    assert share < had[name] if ended else share == pytest.approx(1.5 * had[name])
    assert one.clock() <= 1000.0


def test_where_less_is_left_than_a_run_needs_it_gets_that(runner: Any) -> None:
    one, runs = runner("ab", 300.0, a=0.5, b=0.4)
    phases = {
        n: replace(p, compiled_listed=9, compiled_tried=0)
        for n, p in runs.report.phases.items()
    }
    runs.report = replace(runs.report, phases=phases)
    one.run()
    assert one.clock() == pytest.approx(300.0)


def test_a_run_without_any_result_gets_more_time_once(runner: Any) -> None:
    one, runs = runner("abc", 2000.0, c=0.1)
    runs.raises["b"] = NothingWorked("in 400 s nothing worked")
    runs.raises["a"] = TargetError("it cannot be built")
    before = runs.given
    one.note = before.append
    one.run()
    assert [
        each.partition(".py")[0] for each in before if "once more" in str(each)
    ] == [
        "once more: b",
        "once more: c",
    ]


def test_an_error_after_ctrl_c_ends_nothing(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of before, which Ctrl-C ended, is no Ctrl-C of now."""
    one, runs = runner("abc", 1000.0)
    folder = Path("suite/b")
    folder.mkdir(parents=True)
    (folder / "report.json").write_text("{}")
    stopped = SimpleNamespace(report=replace(runs.report, interrupted=True))
    monkeypatch.setattr("autocompile.api.load", lambda path: stopped)
    runs(one.suite.members[1], False, budget_s=0.0, run_dir=folder, waited=one.waited)
    runs.given.clear()
    runs.raises["b"] = RunError("b.py has changed")
    suite = one.run()
    assert [name for name, _ in runs.given] == ["a", "c"]
    assert [row.message for row in suite.rows if row.target == "b.py"] == [
        "b.py has changed"
    ]
    again = Runner(Path("suite"), suite, 30.0, runs, one.say, one.note, clock=Clock())
    assert "b.py has changed" in [row.message for row in again.run().rows]


def test_what_the_budget_does_not_reach_is_a_row(runner: Any) -> None:
    one, _ = runner("abc", 60.0)
    suite = one.run()
    (row,) = [row for row in suite.rows if row.target == "c.py"]
    assert (row.verdict, row.message) == ("not_run", "not begun")
    assert (
        "1 run of 3 models and phases has no result yet" in suite_document(suite).status
    )
    assert suite.share_right(best=True) == 1.0
    assert "not_run" in to_csv(suite).splitlines()[-1]


def test_ctrl_c_keeps_what_there_is(runner: Any) -> None:
    one, runs = runner("abc", 1000.0)
    runs.raises["b"] = KeyboardInterrupt()
    suite = one.run()
    assert suite.interrupted
    assert {row.target for row in suite.rows if row.best} == {"a.py"}
    assert (
        "2 runs of 3 models and phases have no result yet"
        in suite_document(suite).status
    )
    assert Suite.read(Path("suite")).interrupted


# A whole suite ------------------------------------------------------------------------------------


def scripted(request: Mapping[str, Any]) -> Any:
    if is_eager(request):
        return measured(1.0)
    if request["config"]["backend"] == "cudagraphs":
        return failed(Outcome.UNSUPPORTED, message="no GPU")
    return measured(1.5 if request["config"]["mode"] == MODES[1] else 1.2)


def test_given_settings_are_timed_and_nothing_else(models: Path) -> None:
    space = SearchSpace(backends=("inductor",), modes=MODES, batch_sizes=(1, 4))
    quiet: Any = {"say": lambda _: None, "note": lambda _: None}
    parts = Parts(FakeExecutor(scripted))
    request = Request("", phases=("forward",), space=space)
    folder, suite = run_suite(str(models), request, parts, fixed=True, **quiet)
    assert folder == Path("runs/models-0001")
    assert [(row.target, row.batch_size) for row in suite.rows] == [
        ("models/one.py", 1),
        ("models/one.py", 4),
        ("models/two.py", 1),
        ("models/two.py", 4),
    ]
    for row in suite.rows:
        assert [t.config.mode for t in row.settings] == [*MODES]
        assert row.plain and row.plain.speedup
        assert row.plain.speedup.value == pytest.approx(1.2, rel=0.01)
        assert row.best and row.best.config.mode == MODES[1]
    assert suite.share_right(best=False) == 1.0
    assert suite.geometric_mean(best=False) == pytest.approx(1.2, rel=0.01)
    one_for_all = suite.best_for_all()
    assert one_for_all and one_for_all[0].mode == MODES[1]
    text = to_markdown(suite_document(suite))
    assert "no compile throughput | compiled throughput | speedup" in text
    lines = [*csv.DictReader(io.StringIO(to_csv(suite)))]
    assert [line["setting"] for line in lines[:2]] == [
        "plain torch.compile()",
        "inductor max-autotune",
    ]
    _, again = run_suite(None, Request("", resume=True), parts, **quiet)
    assert again.rows == suite.rows
    (folder / "one.forward/report.json").unlink()  # as if it had been killed
    _, again = run_suite(None, Request("", resume=True), parts, **quiet)
    assert [replace(r, settings=()) for r in again.rows] == [
        replace(r, settings=()) for r in suite.rows
    ]
    with pytest.raises(RunError, match="there is no suite of timm"):
        run_suite("timm", Request("", resume=True), parts)
    with pytest.raises(UsageError, match="is of the suite"):
        run_suite("timm", Request("", resume=True, run_dir=str(folder)), parts)


class ByTarget(FakeExecutor):
    """The probe of each target finds what is known of it."""

    def __init__(self, facts: Mapping[str, Mapping[str, Any]], **more: Any) -> None:
        super().__init__(scripted, probed(**more))
        self._facts, self._usual = facts, self._probe

    def start(self, job: Job) -> None:
        request = read_request(job.folder)
        known = self._facts.get(Path(request.header.target).stem, {})
        target = {**self._usual.payload["target"], **known}
        payload = {**self._usual.payload, "target": target}
        self._probe = replace(self._usual, payload=payload)
        super().start(job)


QUIET: Any = {"say": lambda _: None, "note": lambda _: None}


def test_a_first_model_with_inputs_of_one_size_ends_no_suite(models: Path) -> None:
    parts = Parts(ByTarget({"one": {"fixed_batch_size": 4}}))
    space = SearchSpace(backends=("inductor",), modes=("default",), batch_sizes=(8,))
    request = Request("", phases=("forward",), space=space)
    _, suite = run_suite(str(models), request, parts, fixed=True, **QUIET)
    assert [(row.target, row.verdict) for row in suite.rows] == [
        ("models/one.py", "failed"),
        ("models/two.py", "faster"),
    ]
    assert "have batch size 4" in suite.rows[0].message


@pytest.mark.parametrize("ray", [None, "head:6379"])
def test_a_suite_that_goes_on_keeps_its_options(
    models: Path, monkeypatch: pytest.MonkeyPatch, ray: str | None
) -> None:
    given: list[Request] = []

    def stops(request: Request, *_: Any) -> Any:
        given.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr("autocompile.api.tune_with", stops)
    monkeypatch.setattr("autocompile.cluster.tune_all.tune_all", stops)
    kept: Any = {"timeout_s": 1200.0, "jobs": 2, "memory_limit_bytes": 2**30}
    kept |= {"seed": 3, "tolerance": 0.1, "device": "cpu", "ray": ray}
    asked = Request("", phases=("forward",), budget_s=600.0, **kept)
    run_suite(str(models), asked, Parts(FakeExecutor(scripted)), **QUIET)
    again = Request("", resume=True, budget_s=600.0)
    run_suite(None, again, Parts(FakeExecutor(scripted)), **QUIET)
    assert len(given) == 2
    for name in kept_names(Request, Kept.SUITE):
        assert getattr(given[0], name) == getattr(given[1], name), name
    assert {name: getattr(given[1], name) for name in kept} == kept


def test_how_trials_run_may_change_when_a_suite_goes_on_and_where_may_not(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Request] = []

    def stops(request: Request, *_: Any) -> Any:
        given.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr("autocompile.api.tune_with", stops)
    parts = Parts(FakeExecutor(scripted))
    run_suite(str(models), Request("", timeout_s=100.0), parts, **QUIET)
    run_suite(None, Request("", resume=True, timeout_s=900.0), parts, **QUIET)
    assert given[-1].timeout_s == 900.0
    for more in ({"ray": "auto"}, {"seed": 1}, {"effort": "full"}):
        again: Any = {"resume": True, **more}
        with pytest.raises(UsageError, match="goes on with what it was begun with"):
            run_suite(None, Request("", **again), parts, **QUIET)


def test_rows_of_two_machines_never_stand_in_one_table(models: Path) -> None:
    space = SearchSpace(backends=("inductor",), modes=("default",), batch_sizes=(4,))
    request = Request("", phases=("forward",), space=space)
    folder, _ = run_suite(
        str(models), request, Parts(ByTarget({})), fixed=True, **QUIET
    )
    before = (folder / "suite.json").read_text()
    shutil.rmtree(folder / "two.forward")  # as if it had not been begun
    newer = {**probed().payload["environment"], "torch": "2.14.0"}
    moved = Parts(ByTarget({}, environment=newer))
    with pytest.raises(AnotherMachine, match="another torch") as caught:
        run_suite(None, Request("", resume=True), moved, **QUIET)
    assert "2.13.0 then, 2.14.0 now" in caught.value.text()
    assert not (folder / "two.forward").exists()
    _, suite = run_suite(None, Request("", resume=True), Parts(ByTarget({})), **QUIET)
    rows = json.loads(before)["rows"]
    assert [row.verdict for row in suite.rows] == [row["verdict"] for row in rows]


def test_where_every_setting_is_wrong_eager_mode_is_the_answer(models: Path) -> None:
    """And a process that was killed from outside is nothing against a setting."""
    killed: list[str] = []

    def wrong(request: Mapping[str, Any]) -> Any:
        if is_eager(request):
            return measured(1.0)
        return failed(Outcome.WRONG_OUTPUT, message="off by 2")

    def disturbed(request: Mapping[str, Any]) -> Any:
        if is_raced(request) and not is_eager(request) and not killed:
            killed.append("once")
            return failed(Outcome.INFRASTRUCTURE, message="killed from outside")
        return measured(1.0 if is_eager(request) else 1.5)

    def rows(script: Any) -> tuple[Row, ...]:
        space = SearchSpace(backends=("inductor",), batch_sizes=(4,))
        _, suite = run_suite(
            str(models),
            Request("", phases=("forward",), space=space),
            Parts(FakeExecutor(script)),
            fixed=True,
            say=lambda _: None,
            note=lambda _: None,
        )
        return suite.rows

    for row in rows(wrong):
        assert row.verdict == "keep_eager"
        assert row.best
        assert row.best.config.backend == "eager"
        assert row.plain
        assert row.plain.outcome is Outcome.WRONG_OUTPUT
    assert {row.verdict for row in rows(disturbed)} == {"faster"}
    assert killed


def reported(*runs: Run) -> Report:
    """The report of a run at several batch sizes."""
    records: list[Record] = []
    for run in runs:
        first = len(records)
        for r in run.records:
            again = None if r.repeats is None else r.repeats + first
            records.append(replace(r, number=r.number + first, repeats=again))
    about = {
        "request": {
            "target": "m.py",
            "effort": "quick",
            "objective": "throughput",
            "seed": 0,
        },
        "target": {},
        "environment": {"device": "cpu"},
        "phases": ["forward"],
    }
    return build_report(run_of(about), records, "m")


def rows_by_size(report: Report) -> dict[int | None, Row]:
    member = Member(target="m.py", folder="m")
    return {row.batch_size: row for row in rows_of(member, "m", report)}


def test_a_size_at_which_only_eager_mode_was_tried_has_no_answer_of_another_size() -> (
    None
):
    known = Run(batch_size=4)
    known.race(known.search(LITE, 1.5), 1.5, 1.5, 1.5)
    row = rows_by_size(reported(known, Run(batch_size=99)))[99]
    assert (row.verdict, row.best, row.is_known) == ("unknown", None, False)
    assert "ended before any compiled setting was tried" in row.message
    lost = Run(batch_size=99)
    lost.records.clear()
    lost.add(EAGER, failed("out_of_memory", "eager", "8 GiB"))
    row = rows_by_size(reported(known, lost))[99]
    assert (row.verdict, row.message) == ("failed", "eager mode itself fails: 8 GiB")
    assert row.is_known


def test_a_suite_counts_the_same_sets_as_the_run() -> None:
    """A set in which the host was slower is left out of each setting's figure as well."""
    run = Run(batch_size=4)
    plain = run.plain(1.2)
    for number, (speedup, slow_s) in enumerate(
        [(1.2, 1.0), (1.2, 1.0), (1.2, 1.0), (3.0, 1.5), (3.0, 1.5)], 1
    ):
        run.side(plain, measured(speedup, reference_s=slow_s), race=number)
    report = reported(run)
    row = rows_by_size(report)[4]
    answer = report.phases["forward"].answer
    assert row.plain is not None and row.plain.speedup is not None
    assert row.plain.speedup.value == pytest.approx(1.2, rel=0.01)
    assert answer.best is not None and row.plain.speedup == answer.best.speedup


def test_a_suite_of_a_library_that_is_not_there_says_so(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="timm is not installed"):
        run_suite("timm", Request(""), Parts())


def test_a_run_that_was_killed_before_it_began_is_begun_anew(models: Path) -> None:
    folder = Path("runs/of_a_suite/one")
    (folder / "probe").mkdir(parents=True)
    (folder / "probe" / "request.json").write_text("{}")
    (folder / "study.db").write_text("")
    assert not RunFolder(folder).holds_something_else()


def test_without_a_suite_there_is_nothing_to_resume(models: Path) -> None:
    with pytest.raises(RunError, match="no suite"):
        run_suite(None, Request("", resume=True), Parts())
    with pytest.raises(UsageError, match="no suite is named"):
        run_suite(None, Request(""), Parts())


# Rows ---------------------------------------------------------------------------------------------


def tried(value: float, config: CompileConfig = DEFAULT_INDUCTOR, **more: Any) -> Tried:
    known = {
        "outcome": Outcome.OK,
        "speedup": Interval(value, 0.97 * value, 1.03 * value),
    }
    return Tried(config=config, **{**known, "call_s": 0.01 / value, **more})


def row(name: str, plain: Tried, best: Tried | None = None) -> Row:
    settings = (plain, *((best,) if best else ()))
    fields = {
        "eager_call_s": 0.01,
        "plain": plain,
        "best": best or plain,
        "settings": settings,
    }
    return Row(
        target=name, run=name, phase="forward", batch_size=8, verdict="faster", **fields
    )


def suite_of(*rows: Row) -> Suite:
    members = tuple(Member(target=r.target, folder=r.target) for r in rows)
    return Suite(name="list", members=members, rows=rows, environment={"device": "cpu"})


WRONG = tried(1.0, outcome=Outcome.WRONG_OUTPUT, speedup=None, message="off by 2")


def test_what_fails_counts_as_eager_mode() -> None:
    suite = suite_of(row("a", tried(2.0)), row("b", WRONG, tried(1.5, LITE)))
    assert suite.share_right(best=False) == 0.5
    assert suite.geometric_mean(best=False) == pytest.approx(2.0**0.5)
    assert suite.share_right(best=True) == 1.0
    assert suite.geometric_mean(best=True) == pytest.approx(3.0**0.5)
    nothing = suite_of(Row(target="a", run="a", message="no weights"))
    assert (nothing.share_right(best=True), nothing.geometric_mean(best=True)) == (
        0.0,
        None,
    )


def test_one_setting_for_all_counts_as_eager_where_it_fails() -> None:
    wrong_lite = replace(WRONG, config=LITE)
    a, b = row("a", tried(1.3), tried(2.0, LITE)), row("b", tried(1.3), wrong_lite)
    both, plain = LITE, DEFAULT_INDUCTOR
    again = replace(a, target="c")
    assert suite_of(a, b, again).best_for_all() == (both, pytest.approx(4.0 ** (1 / 3)))
    assert suite_of(a, b).best_for_all() == (
        plain,
        pytest.approx(1.3),
    )  # right in half only
    assert suite_of(row("a", tried(1.3)), b).best_for_all() == (
        plain,
        pytest.approx(1.3),
    )
    slow = row("a", tried(0.5))
    assert suite_of(slow, slow).best_for_all() is None


def test_what_became_slower_broke_or_works_now() -> None:
    before = suite_of(
        row("same", tried(1.5)),
        row("slow", tried(1.5)),
        row("lost", tried(1.5)),
        row("won", WRONG),
    )
    now = suite_of(
        row("same", tried(1.48)),
        row("slow", tried(1.2)),
        row("lost", WRONG),
        row("won", tried(2)),
    )
    found = differences(now, before)
    assert [x.split(",")[0] for x in found["slower"]] == [
        "slow",
        "slow",
    ]  # plain, and the best
    assert "1.50× → 1.20×" in found["slower"][0]
    assert [x.split(",")[0] for x in found["broke"]] == ["lost", "lost"]
    assert "wrong_output: off by 2" in found["broke"][0]
    assert [x.split(",")[0] for x in found["works now"]] == ["won", "won"]
    assert found["faster"] == []


def test_csv_has_the_columns_of_dynamos_runner() -> None:
    memory = {"peak_memory_bytes": 2 * 10**9, "compile_s": 12.5, "graph_breaks": 1}
    one = replace(row("a", tried(2.0, **memory)), eager_peak_memory_bytes=3 * 10**9)
    rows = [*csv.DictReader(io.StringIO(to_csv(suite_of(one, row("b", WRONG)))))]
    assert list(rows[0])[:9] == [
        *("dev", "name", "batch_size", "speedup", "abs_latency", "compilation_latency"),
        *("compression_ratio", "eager_peak_mem", "dynamo_peak_mem"),
    ]
    plain, _, wrong, _ = rows
    assert (plain["speedup"], plain["abs_latency"], plain["accuracy"]) == (
        "2.0000",
        "5.0000",
        "pass",
    )
    assert (plain["compression_ratio"], plain["dynamo_peak_mem"]) == (
        "1.5000",
        "2.0000",
    )
    assert (wrong["speedup"], wrong["accuracy"]) == ("0.0", "fail_wrong_output")


def test_nothing_of_a_run_is_markup_in_markdown() -> None:
    hostile = replace(WRONG, message="<b>x</b> | y\n# z")
    text = to_markdown(suite_document(suite_of(row("a|<i>", hostile))))
    assert "<b>" not in text
    assert "<i>" not in text
    assert not any(line.startswith("# z") for line in text.splitlines())


def test_what_has_no_result_any_more_is_missing() -> None:
    before = suite_of(row("a", tried(1.5)), row("b", tried(1.5)))
    assert differences(suite_of(row("a", tried(1.5))), before)["missing"] == [
        "b, forward, batch size 8"
    ]
    lost = Row(target="b", run="b", phase="forward", batch_size=8, message="no weights")
    not_reached = replace(lost, verdict="not_run")
    now = suite_of(row("a", tried(1.5)), not_reached)
    assert differences(now, before)["missing"] == ["b, forward, batch size 8"]
    back = differences(before, now)
    assert not back["works now"]
    whole = differences(
        suite_of(replace(lost, phase="", batch_size=None)), suite_of(before.rows[1])
    )
    assert whole["broke"] == ["b, forward, batch size 8: no weights"]
    broke = differences(suite_of(row("a", tried(1.5)), lost), before)["broke"]
    assert len(broke) == 1
    assert "b, forward, batch size 8, the best" in broke[0]
    assert "no weights" in broke[0]


def test_no_spreadsheet_takes_a_name_for_a_formula() -> None:
    text = to_csv(suite_of(row("=HYPERLINK(1)", replace(WRONG, message="@x"))))
    rows = [*csv.DictReader(io.StringIO(text))]
    assert rows[0]["name"] == "'=HYPERLINK(1)"
    assert rows[0]["reason"] == "'@x"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["rows"][0]["plain"]["speedup"].update(low=0.0),
        lambda data: data["rows"][0]["plain"]["speedup"].update(value=-1.0),
        lambda data: data["rows"][0]["plain"].update(call_s=0),
        lambda data: data["members"][0].update(folder="../elsewhere"),
        lambda data: data["members"][0].update(folder=".."),
        lambda data: data.update(rows=3),
    ],
)
def test_a_hostile_file_is_one_paragraph(tmp_path: Path, change: Any) -> None:
    data = json.loads(json.dumps(suite_of(row("a", tried(1.5))).to_dict()))
    change(data)
    (tmp_path / "suite.json").write_text(json.dumps(data))
    with pytest.raises(RunError, match="damaged"):
        Suite.read(tmp_path)


@pytest.mark.parametrize("config", [{"backend": []}, {"of_tomorrow": 3}])
def test_a_setting_that_cannot_be_read_is_one_paragraph(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    data = json.loads(json.dumps(suite_of(row("a", tried(1.5))).to_dict()))
    data["rows"][0]["settings"][0]["config"] = config
    (tmp_path / "suite.json").write_text(json.dumps(data))
    with pytest.raises(RunError, match="holds a setting that cannot be read") as raised:
        Suite.read(tmp_path)
    assert raised.value.hint is not None and "newer autocompile" in raised.value.hint


def test_what_was_tried_before_and_is_not_there_is_missing() -> None:
    """Of a backend that is not installed there is no row of its own."""
    before = replace(suite_of(row("a", tried(1.3), tried(2.0, LITE))), fixed=True)
    now = replace(suite_of(row("a", tried(1.3))), fixed=True)
    (lost,) = differences(now, before)["missing"]
    assert lost.endswith(LITE.label())


def test_a_suite_that_had_no_result_is_nothing_to_compare_with() -> None:
    now = suite_of(row("a", tried(1.5)))
    empty = suite_of(Row(target="a", run="a", verdict="not_run"))
    assert is_comparable(now, now)
    assert not is_comparable(now, empty)


def test_a_folder_that_is_not_empty_is_no_place_for_a_suite(models: Path) -> None:
    with pytest.raises(RunError, match="is not empty"):
        run_suite(str(models), Request("", run_dir=models), Parts())


def test_a_file_is_no_place_for_a_suite(models: Path) -> None:
    Path("a_file").write_text("")
    with pytest.raises(RunError, match="cannot create the folder a_file"):
        run_suite(str(models), Request("", run_dir="a_file"), Parts())


def test_the_last_suite_of_a_name_is_not_the_last_of_all(models: Path) -> None:
    for number, name in enumerate(("list", "timm")):
        folder = Path("runs") / name
        folder.mkdir(parents=True)
        suite = replace(suite_of(row("a", tried(1.5))), name=name)
        (folder / "suite.json").write_text(json.dumps(suite.to_dict()))
        os.utime(folder / "suite.json", (number, number))
    assert latest().name == "timm"
    assert latest("list").name == "list"
    with pytest.raises(RunError, match="no suite of other under"):
        latest("other")


@pytest.mark.parametrize(
    ("folder", "place"),
    [("runs/a-0001", "--budget 1h goes"), ("else/b c", "1h --run-dir 'else/b c' goes")],
)
def test_the_command_that_goes_on_names_its_suite(folder: str, place: str) -> None:
    suite = suite_of(Row(target="a", run="a", verdict="not_run"))
    status = suite_document(suite, folder=Path(folder)).status
    assert f"autocompile suite {suite.name} --resume" in status
    assert place in status


def test_options_beside_resume_are_not_ignored(models: Path) -> None:
    suite = suite_of(row("a", tried(1.5)))
    folder = Path("runs/list-0001")
    folder.mkdir(parents=True)
    (folder / "suite.json").write_text(json.dumps(suite.to_dict()))
    request = Request("", resume=True, phases=("train_step",))
    with pytest.raises(UsageError, match="goes on with what it was begun with"):
        run_suite(None, request, Parts())


def test_a_damaged_file_is_one_paragraph(tmp_path: Path) -> None:
    for text, words in (
        ("{", "damaged"),
        ("[]", "suite"),
        ('{"schema": 99}', "has schema 99"),
    ):
        (tmp_path / "suite.json").write_text(text)
        with pytest.raises((RunError, UsageError), match=words):
            Suite.read(tmp_path)
    with pytest.raises(RunError, match="cannot read"):
        Suite.read(tmp_path / "none")


# The command --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_warm")
def test_the_command_compares_and_gates(models: Path) -> None:
    """A real one: eager mode, a compiler that needs no compiler, and a model that is wrong."""
    lie = "torch.nn.functional.linear(x, self.weight) + 0.1 * torch.compiler.is_compiling()"
    text = f"import torch\nclass Net(torch.nn.Linear):\n    def forward(self, x): return {lie}\n"
    one = models / "one.py"
    args = [
        "suite",
        "models",
        "--fixed",
        "--backend",
        "aot_eager",
        "--phase",
        "forward",
    ]
    args += ["--batch-size", "4", "--progress", "none"]
    first = json.loads(said(*args, "--json", "--run-dir", "first"))
    assert [r["verdict"] for r in first["rows"]] != ["failed", "failed"]
    one.write_text(
        text + "def get_model(): return Net(4, 4)\n" + MODEL.splitlines()[-1]
    )
    gate = ["--compare", "first", "--require", "no-regression", "--run-dir", "second"]
    shown = said(*args, *gate)
    assert "Broke" in shown
    assert "wrong_output" in shown


# A suite that was made before: what the command writes, prints and ends with is real.
_ENDED = """
import sys
from dataclasses import replace
from pathlib import Path
from autocompile.cli.commands import main
from autocompile.suite import runner
from autocompile.suite.rows import Suite

found = replace(Suite.read(Path("second")), interrupted=False)
runner.run_suite = lambda *args, **more: (Path("second"), found)
main()
"""


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_reader_that_stops_loses_no_file_and_no_gate(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    rows = [row(f"model_{number}", tried(1.5)) for number in range(2000)]
    for name, some in (("first", rows), ("second", rows[1:])):
        (tmp_path / name).mkdir()
        text = json.dumps(suite_of(*some).to_dict())
        (tmp_path / name / "suite.json").write_text(text)
    gate = ["--compare", "first", "--require", "no-regression", "--csv", "t.csv"]
    program = subprocess.Popen(
        [sys.executable, "-c", _ENDED, "suite", "models", *gate, *more],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout
    program.stdout.readline()
    program.stdout.close()  # as head does
    assert program.stderr
    errors = program.stderr.read()
    assert program.wait(60) == 1, errors
    assert "gate: model_0" in errors
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 1 + 2 * 1999
    assert (tmp_path / "second" / "suite.html").exists()
