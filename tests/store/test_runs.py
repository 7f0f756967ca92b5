"""Which run is meant: by its target, its folder, or ``last``."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from autocompile.api import load, tune
from autocompile.cli import commands as cli
from autocompile.errors import ExportError, NothingWorked, RunError, UsageError
from autocompile.execute.executor import Ending, Job
from autocompile.space.plan import Plan
from autocompile.space.space import SearchSpace
from autocompile.store.record import RunFolder
from autocompile.store.runs import is_same_target, latest_of
from autocompile.testing import FakeExecutor, failed, measured

SPACE = SearchSpace(backends=("inductor",), batch_sizes=(4,))


def script(request: Mapping[str, Any]) -> Ending:
    return measured(1.0 if request["config"]["backend"] == "eager" else 1.5, noise=0.005)


def made(target: str, **more: Any) -> str:
    return tune(target, executor=FakeExecutor(script), space=SPACE, **more).run_dir


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


def test_resume_finds_the_run_of_the_target_and_not_that_of_its_namesake(two: Path) -> None:
    first, second = made("a/model.py"), made("b/model.py")
    in_order(first, second)
    assert made("a/model.py", resume=True) == first
    in_order(first, second)
    assert made("./b/../b/model.py", resume=True) == second
    assert made(str(two / "a" / "model.py"), resume=True) == first


def test_resume_names_the_runs_of_namesakes_where_the_target_has_none(two: Path) -> None:
    other = made("b/model.py")
    with pytest.raises(RunError, match=r"no run of a/model\.py") as caught:
        made("a/model.py", resume=True)
    assert f"{other} is a run of b/model.py" in caught.value.text()
    assert "without --resume" in caught.value.text()


def test_a_run_in_a_folder_of_another_name_is_found_and_a_broken_one_is_not(two: Path) -> None:
    mine = made("a/model.py", run_dir="runs/mine")
    (two / "runs" / "model-0007").mkdir()
    (two / "runs" / "model-0007" / "run.json").write_text("{")
    assert latest_of("a/model.py").path == Path(mine)
    with pytest.raises(RunError, match="a target that cannot be read"):
        latest_of("b/model.py")


def test_another_target_is_not_resumed(two: Path) -> None:
    run = made("a/model.py")
    with pytest.raises(UsageError, match="made with another target"):
        made("b/model.py", resume=True, run_dir=run)
    earlier = Plan.from_dict(RunFolder(run).read_run()["plan"])
    assert Plan("./a/model.py").resumes(earlier) == earlier


@pytest.mark.parametrize("run", ["last", "net-0001", "runs/net-0001", "./my run"])
def test_use_and_next_name_the_run_as_the_user_gave_it(target: Path, run: str) -> None:
    unsafe = SearchSpace(("inductor",), ("default",), (4,), guards=("skip_all",))

    def fast(request: Mapping[str, Any]) -> Ending:
        return measured(2.0) if request["config"].get("guards") == "skip_all" else script(request)

    tune("net.py", executor=FakeExecutor(fast), space=unsafe)
    shutil.copytree("runs/net-0001", "my run")
    done = CliRunner().invoke(cli.app, ["show", run])
    use, following = done.stdout.splitlines()[-2:]
    assert use.startswith("Use     "), done.stdout
    named = f"autocompile export {shlex.quote(run)} -o tuned.json   "
    assert following.removeprefix("Next    ").startswith(named), done.stdout


def test_a_run_without_a_result_is_named_in_the_error(target: Path) -> None:
    with pytest.raises(NothingWorked):
        tune("net.py", executor=FakeExecutor(lambda _: failed("crashed")), run_dir="mine")
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

    tune("net.py", executor=Probes(script), space=SPACE)
    tune("net.py", executor=Probes(script), space=SPACE, resume=True)
    assert Probes.asked == [None, ["forward"]]
