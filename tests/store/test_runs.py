"""Which run is meant, and its folder: nothing of a user's is removed, and runs stay apart."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes import FakeExecutor, failed, measured
from scripts import script, tune, tuned
from typer.testing import CliRunner

from autocompile.api import load
from autocompile.cli import commands as cli
from autocompile.errors import (
    ExportError,
    NothingWorked,
    RunError,
    TargetError,
    UsageError,
)
from autocompile.execute.executor import Ending, Job
from autocompile.execute.job import JobFactory, locked
from autocompile.protocol.requests import (
    Header,
    ProbeRequest,
    SaveRequest,
    read_request,
)
from autocompile.request import Request
from autocompile.search.opening import resolved
from autocompile.settings.searchspace import SearchSpace
from autocompile.settings.tuned import Tuned
from autocompile.store.files import write_json
from autocompile.store.record import Outcome, RunFolder, Step
from autocompile.store.resuming import resuming
from autocompile.store.run import Run
from autocompile.store.runs import HERE, ON_CLUSTER, find, latest_of, new_folder, shown
from autocompile.store.targets import is_same_target

# Which run ---------------------------------------------------------------------------------------


def made(target: str, **more: Any) -> str:
    return tuned(Path(target), **more).run_dir


@pytest.fixture
def two(work: Path) -> Path:
    """Two targets whose files have the same name."""
    for name in ("a", "b"):
        (work / name).mkdir()
        (work / name / "model.py").write_text("never run: the executor is a fake")
    return work


def in_order(*paths: str) -> None:
    """Give runs the times at which they were last worked on."""
    for second, path in enumerate(paths):
        os.utime(Path(path) / "run.json", (1000 + second, 1000 + second))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("model.py", "./model.py", True),
        ("sub/../model.py", "model.py", True),
        ("model.py:build", "./model.py:build", True),
        ("model.py:build", "model.py:other", False),
        ("model.py", "sub/model.py", False),
        ("package.module:net", "package.module:net", True),
        ("package.module:net", "package.other:net", False),
    ],
)
def test_a_target_may_be_spelled_in_several_ways(
    work: Path, one: str, other: str, same: bool
) -> None:
    (work / "sub").mkdir()
    assert is_same_target(one, other) is same
    assert is_same_target(str(work / one), other) is (same and ".py" in one)


def test_the_command_that_goes_on_is_about_the_run_that_is_shown(two: Path) -> None:
    """Also where a newer run of the same target is there."""
    every = [made("a/model.py"), made("a/model.py")]
    in_order(*every)
    for run in every:
        words = shlex.split(resuming(Run.read(RunFolder(run)), run))
        place = words[words.index("--run-dir") + 1]
        asked = Request(words[2], resume=True, run_dir=Path(place))
        folder, _ = resolved(asked)
        assert folder.path.samefile(run)


def test_resume_finds_the_run_of_the_target_and_not_that_of_its_namesake(
    two: Path,
) -> None:
    first, second = made("a/model.py"), made("b/model.py")
    in_order(first, second)
    assert made("a/model.py", resume=True) == first
    in_order(first, second)
    assert made("./b/../b/model.py", resume=True) == second
    assert made(str(two / "a" / "model.py"), resume=True) == first


def test_where_the_target_has_no_run_those_of_namesakes_are_not_resumed(
    two: Path,
) -> None:
    other = made("b/model.py")
    with pytest.raises(RunError, match=r"no run of a/model\.py") as caught:
        made("a/model.py", resume=True)
    assert "without --resume" in caught.value.text()
    with pytest.raises(UsageError, match="made with another target"):
        made("a/model.py", resume=True, run_dir=other)
    earlier = Request.from_dict(RunFolder(other).read_run()["request"])
    assert Request("./b/model.py").resumed(earlier) == earlier


def test_a_run_in_a_folder_of_another_name_is_found_and_a_broken_one_is_not(
    two: Path,
) -> None:
    mine = made("a/model.py", run_dir="runs/mine")
    (two / "runs" / "model-0007").mkdir()
    (two / "runs" / "model-0007" / "run.json").write_text("{")
    assert latest_of("a/model.py", HERE) == Path(mine)
    with pytest.raises(RunError, match=r"no run of b/model.py on this machine"):
        latest_of("b/model.py", HERE)


def test_last_is_also_the_last_run_of_a_cluster_and_resume_is_of_this_machine(
    target: Path,
) -> None:
    here, there = made("net.py"), made("net.py", run_dir="runs/net-0002/H100")
    in_order(here, there)
    assert find("last").path == Path(there) and find("net-0002/H100").path == Path(
        there
    )
    assert (shown(there), shown(str(target.parent / here))) == ("last", "net-0001")
    with pytest.raises(RunError, match=r"no run net-0003\n.*: net-0001, net-0002/H100"):
        find("net-0003")
    assert latest_of("net.py", HERE) == Path(here)
    assert latest_of("net.py", ON_CLUSTER) == Path(there)
    in_order(there, here)
    assert shown(there) == "net-0002/H100"


def test_runs_of_a_suite_on_a_cluster_are_listed_and_found(target: Path) -> None:
    """``runs/<suite>/<model>/<type>``."""
    deep = made("net.py", run_dir="runs/timm-0001/model/T4")
    assert shown(deep) == "last"
    assert find("timm-0001/model/T4").path == find("last").path == Path(deep)
    listed = CliRunner().invoke(cli.app, ["list"])
    assert "timm-0001/model/T4" in listed.output


def test_use_and_next_name_the_run_as_the_user_gave_it(target: Path) -> None:
    lower = SearchSpace(
        ("inductor",), ("default",), (4,), autocast=("bfloat16",), freezing=(False,)
    )

    def fast(request: Mapping[str, Any]) -> Ending:
        return (
            measured(2.0)
            if request["config"].get("autocast") == "bfloat16"
            else script(request)
        )

    tuned(Path("net.py"), fast, space=lower)
    shutil.copytree("runs/net-0001", "my run")
    for run in ("last", "net-0001", "runs/net-0001", "./my run"):
        done = CliRunner().invoke(cli.app, ["show", run])
        use, following = done.stdout.splitlines()[-2:]
        assert use.startswith("Use     "), done.stdout
        named = f"autocompile export {shlex.quote(run)} -o tuned.json   "
        assert following.removeprefix("Next    ").startswith(named), done.stdout


def test_a_run_without_a_result_is_named_in_the_error(target: Path) -> None:
    with pytest.raises(NothingWorked):
        tuned(target, lambda _: failed("crashed"), run_dir="mine")
    with pytest.raises(ExportError, match="autocompile show mine"):
        load("mine").export("python")


def test_a_resumed_run_keeps_the_phases_that_it_began_with(target: Path) -> None:
    """Which one of RLlib's training phases is the default depends on a timing."""

    class Probes(FakeExecutor):
        asked: ClassVar[list[Any]] = []

        def start(self, job: Job) -> None:
            request = json.loads((job.folder / "request.json").read_text("utf-8"))
            if request["kind"] == "probe":
                self.asked.append(request.get("phases"))
            super().start(job)

    tuned(target, Probes(script))
    tuned(target, Probes(script), resume=True)
    assert Probes.asked == [None, ["forward"]]


def test_a_live_run_is_shown_as_running(target: Path) -> None:
    seen = []

    def looking(request: Mapping[str, Any]) -> Ending:
        shown = load("last").to_dict()
        seen.append((shown["running"], shown["interrupted"]))
        return script(request)

    tuned(target, looking)
    assert set(seen) == {(True, True)}
    shown = load("last").to_dict()
    assert (shown["running"], shown["interrupted"]) == (False, False)


# Folders -----------------------------------------------------------------------------------------

BROKEN = Ending(Outcome.RUNTIME_ERROR, Step.BUILD, "ValueError: no")


def broken(ending: Ending = BROKEN) -> FakeExecutor:
    """An executor whose probe fails."""
    return FakeExecutor(script, probe=ending)


class Fails(FakeExecutor):
    """Breaks down when it is to start the probe."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(script)
        self.error = error

    def start(self, job: Job) -> None:
        raise self.error


def a_start_that_was_killed(path: str) -> RunFolder:
    folder = RunFolder(path)
    folder.create()
    (folder.cache / "toolchain").mkdir(parents=True)
    (folder.path / "probe").mkdir()
    (folder.path / "probe" / "request.json").write_text("{}")
    return folder


def test_a_target_that_fails_leaves_an_empty_folder_of_the_users_as_it_was(
    target: Path,
) -> None:
    Path("mine").mkdir()
    for folder in ("mine", "new"):
        with pytest.raises(TargetError):
            tuned(target, broken(), run_dir=folder)
    assert Path("mine").is_dir() and not any(Path("mine").iterdir())
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"jobs": 0}, UsageError, "jobs is 0"),
        ({"isolation": "thread"}, UsageError, "takes one of auto, fork, spawn"),
        ({"effort": "none"}, UsageError, "none"),
        ({"executor": Fails(OSError(28, "No space left"))}, OSError, "No space left"),
        ({"executor": Fails(RunError("cannot write"))}, RunError, "cannot write"),
        (
            {"executor": Fails(UsageError("cannot be forked"))},
            UsageError,
            "cannot be forked",
        ),
        (
            {"executor": Fails(ZeroDivisionError("a defect"))},
            ZeroDivisionError,
            "a defect",
        ),
        ({"executor": Fails(KeyboardInterrupt())}, KeyboardInterrupt, "^$"),
        ({"executor": Fails(SystemExit(1))}, SystemExit, "1"),
    ],
)
def test_a_run_that_never_began_leaves_no_folder_behind(
    target: Path, options: dict[str, Any], error: type[BaseException], words: str
) -> None:
    for folder in (None, "deep/er/new"):
        with pytest.raises(error, match=words):
            tune(target, run_dir=folder, **options)
    assert [p.name for p in Path().iterdir()] == ["net.py"]


def test_a_folder_with_a_log_that_the_error_points_to_stays(target: Path) -> None:
    crash = Ending(Outcome.CRASHED, Step.IMPORT, "SIGSEGV in import")
    with pytest.raises(TargetError, match="log: new") as caught:
        tuned(target, broken(crash), run_dir="new")
    assert Path("new").is_dir(), caught.value
    tuned(target, run_dir="new")


def test_a_folder_where_a_run_was_killed_at_its_start_is_used_again(
    tmp_path: Path,
) -> None:
    folder = a_start_that_was_killed(str(tmp_path / "run"))
    assert not folder.holds_something_else()
    (folder.path / "notes.txt").write_text("mine")
    assert folder.holds_something_else()
    (folder.path / "notes.txt").unlink()
    shutil.rmtree(folder.path / "probe")
    assert folder.holds_something_else(), "nothing says that the cache is ours"
    shutil.rmtree(folder.cache)
    assert not folder.holds_something_else()
    (folder.trials / "precious").mkdir()
    assert folder.holds_something_else()


def test_a_folder_in_which_another_tuner_begins_is_left_to_it(target: Path) -> None:
    mine = a_start_that_was_killed("mine")
    with locked(mine), pytest.raises(RunError, match="another autocompile is at work"):
        tuned(target, run_dir="mine")
    assert (mine.cache / "toolchain").is_dir() and (mine.path / "probe").is_dir()


def test_what_appears_beside_a_run_that_never_began_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    (folder.path / "notes.txt").write_text("mine")
    (folder.trials / "mine").mkdir()
    folder.remove()
    assert {p.name for p in folder.path.iterdir()} == {"notes.txt", "trials"}


def test_only_what_runs_alone_gets_all_of_the_memory(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    shop = JobFactory(folder, Header("net.py"), 10.0, 1000, 16000)
    settings = Tuned({}, {}, "net.py")
    first, second = (
        SaveRequest(header=shop.header, number=number, settings=settings, file="code")
        for number in (0, 1)
    )
    assert shop.job(first).memory_limit_bytes == 1000
    assert shop.job(second, alone=True).memory_limit_bytes == 16000
    probe = ProbeRequest(header=shop.header, batch_size=4)
    assert shop.probe_job(probe, compiles=False).memory_limit_bytes == 16000
    assert read_request(folder.trial(1)) == second


def test_two_commands_that_begin_at_once_have_a_folder_each(work: Path) -> None:
    first, second = new_folder("net.py"), new_folder("net.py")
    assert [f.path.name for f in (first, second)] == ["net-0001", "net-0002"]
    for folder in (second, first):
        folder.remove()
    assert not Path("runs").exists()


def test_a_link_in_a_runs_folder_leads_to_no_file_of_the_user(work: Path) -> None:
    precious, folder = work / "precious", RunFolder("shared")
    precious.write_text("mine")
    folder.create()
    (folder.path / "lock").symlink_to(precious)
    (folder.path / f"run.json.{os.getpid()}.tmp").symlink_to(precious)
    with pytest.raises(RunError, match="cannot write in shared"), locked(folder):
        pass
    with pytest.raises(RunError, match="cannot write"):
        write_json(folder.run_json, {})
    assert precious.read_text() == "mine"
