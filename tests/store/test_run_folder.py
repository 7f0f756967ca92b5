"""A run's folder: nothing of a user's is removed, and several runs do not get into each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

from autocompile.api import load, tune
from autocompile.errors import RunError, TargetError, UsageError
from autocompile.execute.executor import Ending, Job
from autocompile.execute.job import JobFactory, locked
from autocompile.protocol.requests import Header, ProbeRequest, TraceRequest, read_request
from autocompile.space.space import SearchSpace
from autocompile.store.record import Outcome, RunFolder, Step
from autocompile.testing import FakeExecutor, measured

BROKEN = Ending(Outcome.RUNTIME_ERROR, Step.BUILD, "ValueError: no")
SPACE = SearchSpace(backends=("inductor",), batch_sizes=(4,))


def script(request: Mapping[str, Any]) -> Ending:
    return measured(1.0 if request["config"]["backend"] == "eager" else 1.5, noise=0.005)


def test_a_users_folder_of_the_same_names_is_refused_and_left_alone(target: Path) -> None:
    precious = Path("exp/trials/precious/a.csv")
    precious.parent.mkdir(parents=True)
    precious.write_text("data")
    with pytest.raises(RunError, match="not empty and holds no run"):
        tune(target, executor=FakeExecutor(script, probe=BROKEN), run_dir="exp")
    assert precious.read_text() == "data"


def test_a_target_that_fails_leaves_an_empty_folder_of_the_users_as_it_was(target: Path) -> None:
    Path("mine").mkdir()
    for folder in ("mine", "new"):
        with pytest.raises(TargetError):
            tune(target, executor=FakeExecutor(script, probe=BROKEN), run_dir=folder)
    assert Path("mine").is_dir() and not any(Path("mine").iterdir())
    assert not Path("new").exists()


class Fails(FakeExecutor):
    """Breaks down when it is to start the probe."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(script)
        self._error = error

    def start(self, job: Job) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RunError("cannot write"),
        UsageError("trials cannot be forked here"),
        ZeroDivisionError("a defect"),
        KeyboardInterrupt(),
        SystemExit(1),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_run_that_never_began_leaves_no_folder_behind(target: Path, error: BaseException) -> None:
    for folder in (None, "deep/er/new"):
        with pytest.raises(type(error)):
            tune(target, executor=Fails(error), run_dir=folder)
    assert [p.name for p in Path().iterdir()] == ["net.py"]


@pytest.mark.parametrize("options", [{"jobs": 0}, {"isolation": "thread"}, {"effort": "none"}])
def test_a_wrong_request_leaves_no_folder_behind(target: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        tune(target, **options)
    assert [p.name for p in Path().iterdir()] == ["net.py"]


def test_a_folder_with_a_log_that_the_error_points_to_stays(target: Path) -> None:
    crash = Ending(Outcome.CRASHED, Step.IMPORT, "SIGSEGV in import")
    with pytest.raises(TargetError, match="log: new") as caught:
        tune(target, executor=FakeExecutor(script, probe=crash), run_dir="new")
    assert Path("new").is_dir(), caught.value
    tune(target, executor=FakeExecutor(script), space=SPACE, run_dir="new")


def test_a_folder_in_which_another_tuner_begins_is_left_to_it(target: Path) -> None:
    mine = RunFolder("mine")
    mine.create()
    (mine.cache / "toolchain").mkdir(parents=True)
    (mine.path / "probe").mkdir()
    (mine.path / "probe" / "request.json").write_text("{}")
    with locked(mine), pytest.raises(RunError, match="another autocompile is at work"):
        tune(target, executor=FakeExecutor(script), run_dir="mine")
    assert (mine.cache / "toolchain").is_dir() and (mine.path / "probe").is_dir()


def test_what_appears_beside_a_run_that_never_began_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    (folder.path / "notes.txt").write_text("mine")
    (folder.trials / "mine").mkdir()
    folder.remove()
    assert {p.name for p in folder.path.iterdir()} == {"notes.txt", "trials"}


def test_runs_of_the_same_name_do_not_share_a_study(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{target.parent}/all.db"
    for place, sizes in (("a", (4,)), ("b", (8, 16))):
        Path(place).mkdir()
        monkeypatch.chdir(place)
        space = SearchSpace(backends=("inductor",), batch_sizes=sizes)
        tune(target, executor=FakeExecutor(script), space=space, storage=url)
        monkeypatch.chdir("..")
    found = optuna.get_all_study_summaries(url)
    tried = set()
    for summary in found:
        study = optuna.load_study(study_name=summary.study_name, storage=url)
        tried.add(frozenset(t.user_attrs["batch_size"] for t in study.trials))
    assert tried == {frozenset({4}), frozenset({8, 16})}
    assert {s.study_name.split("-")[0] for s in found} == {"net"}


def test_a_resumed_run_goes_on_in_its_own_study(target: Path) -> None:
    url = f"sqlite:///{target.parent}/all.db"
    result = tune(target, executor=FakeExecutor(script), space=SPACE, storage=url)
    for _ in range(3):
        tune(target, executor=FakeExecutor(script), run_dir=result.run_dir, resume=True)
    assert len(optuna.get_all_study_summaries(url)) == 1


def test_a_live_run_is_shown_as_running(target: Path) -> None:
    seen = []

    def looking(request: Mapping[str, Any]) -> Ending:
        shown = load("last").to_dict()
        seen.append((shown["running"], shown["interrupted"]))
        return script(request)

    tune(target, executor=FakeExecutor(looking), space=SPACE)
    assert set(seen) == {(True, True)}
    shown = load("last").to_dict()
    assert (shown["running"], shown["interrupted"]) == (False, False)


def test_only_what_runs_alone_gets_all_of_the_memory(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    shop = JobFactory(folder, Header("net.py"), 10.0, 1000, 16000)
    first, second = (
        TraceRequest(header=shop.header, number=number, phases=("forward",), batch_size=4)
        for number in (0, 1)
    )
    assert shop.job(first).memory_limit_bytes == 1000
    assert shop.job(second, alone=True).memory_limit_bytes == 16000
    probe = ProbeRequest(header=shop.header, batch_size=4)
    assert shop.probe_job(probe, compiles=False).memory_limit_bytes == 16000
    assert read_request(folder.trial(1)) == second
