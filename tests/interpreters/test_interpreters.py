"""Other interpreters as a dimension: found, named, lent this package, probed and compared."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import assert_nothing_left
from fakes import FakeExecutor, measured
from scripts import tune

from autocompile.errors import UsageError
from autocompile.estimate.candidates import candidates
from autocompile.execute.executor import Ending, Job
from autocompile.interpreters.named import found_interpreters
from autocompile.interpreters.started import demand_torch
from autocompile.protocol.requests import TrialRequest, read_request
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.searchspace import SearchSpace
from autocompile.settings.tuned import Choice, Tuned


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """An environment of its own with the packages of this one, but without autocompile."""
    folder = tmp_path / "old-torch"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True
    )
    (packages,) = folder.glob("lib/python*/site-packages")
    import numpy
    import torch

    for module in (torch, numpy):
        place = Path(str(module.__file__)).parent.parent
        # Not as a .pth of all of it: there, autocompile itself may be installed.
        for part in place.iterdir():
            link = packages / part.name
            if not link.exists() and "autocompile" not in part.name:
                link.symlink_to(part)
    return folder / "bin" / "python"


def test_an_environment_is_called_by_its_folder_or_by_its_given_name(
    tmp_path: Path,
) -> None:
    python = tmp_path / "ipex" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert found_interpreters([str(python)]) == (f"ipex={python}",)
    assert found_interpreters([f"old torch={python}"]) == (f"old-torch={python}",)
    with pytest.raises(UsageError, match="two environments are called ipex"):
        found_interpreters([str(python), str(python)])
    text = tmp_path / "text"
    text.write_text("no program")
    for path in (tmp_path / "nowhere", text):
        with pytest.raises(
            UsageError, match=r"there is no interpreter .*, or it may not be run"
        ):
            found_interpreters([str(path)])
    with pytest.raises(UsageError, match="two environments are called default"):
        found_interpreters([f"default={python}"])
    assert os.path.islink(found_interpreters([str(python)])[0].partition("=")[2])


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "cannot import torch: exit code 3"),
        ("sleep 1000", "did not import torch within 1 s"),
        ("echo $*", "is not a Python interpreter: it does not run what it is given"),
        (
            "exec python3 -S -E -c 'import torch'",
            "lacks a package that trials need: No",
        ),
    ],
)
def test_an_interpreter_that_cannot_run_trials_is_named_and_gone(
    script: str, said: str, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(UsageError, match=said):
        demand_torch(str(python), 1.0 if "sleep" in script else 60.0)
    assert time.monotonic() - began < 60
    assert_nothing_left(str(tmp_path))


def test_a_script_that_stays_between_is_told_to_make_way(tmp_path: Path) -> None:
    """The supervisor ends with its parent, which would be the script."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    python.chmod(0o755)
    with pytest.raises(
        UsageError, match="starts Python as a process below it"
    ) as caught:
        demand_torch(str(python), 60.0)
    assert caught.value.hint == f'exec ... "$@" as the last line of {python}'


def test_an_interpreter_may_greet(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "setting up an environment"\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    demand_torch(str(python), 60.0)


def test_what_runs_elsewhere_is_compared_with_eager_here(work: Path) -> None:
    """There, eager is half as fast as here: twice as fast as it is no gain."""
    target = work / "net.py"
    target.write_text("never run: the executor is a fake")

    def script(request: Mapping[str, Any]) -> Ending:
        config = request["config"]
        slow = config["environment"] != "default"
        speedup = {"eager": 1.0, "inductor": 2.0 if slow else 1.2}[config["backend"]]
        return measured(speedup, eager_s=2e-3 if slow else 1e-3)

    result = tune(
        target,
        executor=FakeExecutor(script),
        space=SearchSpace(
            backends=("inductor",),
            modes=("default",),
            batch_sizes=(4,),
            freezing=(False,),
        ),
        effort="full",
        pythons=(f"old={sys.executable}",),
    )
    assert result.config["forward"] == CompileConfig()
    found = {c.record.config: c.speedup.value for c in candidates(result.trials)}
    assert found[EAGER] == 1.0
    assert found[CompileConfig("eager", environment="old")] == pytest.approx(
        0.5, rel=0.01
    )
    assert found[CompileConfig(environment="old")] == pytest.approx(1.0, rel=0.01)


class Watched(FakeExecutor):
    """Notes the interpreter of each trial and race, by the environment that it asks for."""

    def __init__(self) -> None:
        super().__init__(lambda request: measured(1.0))
        self.pythons: set[tuple[str, str | None]] = set()

    def start(self, job: Job) -> None:
        request = read_request(job.folder)
        if isinstance(request, TrialRequest):
            self.pythons |= {
                (side.config.environment, job.python) for side in request.sides
            }
        super().start(job)


def test_settings_that_are_tried_again_run_under_their_own_interpreter(
    target: Path,
) -> None:
    choice = Choice(CompileConfig(environment="old"), 4)
    named = {"old": "/where/they/were", "gone": "/no"}
    found = Tuned({"forward": (choice,)}, {}, interpreters=named)
    executor = Watched()
    tune(target, executor=executor, only=found, pythons=(f"old={sys.executable}",))
    assert executor.pythons == {("default", None), ("old", sys.executable)}


@pytest.mark.parametrize("named", [{"old": "/some/python"}, {}])
def test_an_interpreter_that_only_a_file_names_is_not_started(
    target: Path, named: dict[str, str]
) -> None:
    choice = Choice(CompileConfig(environment="old"), 4)
    found = Tuned({"forward": (choice,)}, {}, interpreters=named)
    executor = Watched()
    with pytest.raises(UsageError, match="only if you name it, too") as caught:
        tune(target, executor=executor, only=found)
    assert caught.value.hint == f"--python old={named.get('old', 'PATH')}"
    assert not executor.pythons


def test_a_break_elsewhere_says_nothing_about_here() -> None:
    from fakes import measured

    from autocompile.search.records import answer, to_record
    from autocompile.settings.config import Setting

    plain = Setting(CompileConfig(), 4)
    known = {plain: to_record(0, plain, measured(1.2, graph_breaks=1))}
    for more, is_answered in (
        ({}, True),
        ({"environment": "old"}, False),
        ({"scope": "regional"}, False),
        ({"mode": "max-autotune"}, False),
    ):
        other = Setting(CompileConfig(fullgraph=True, **more), 4)
        assert (answer(1, other, known) is not None) is is_answered


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_another_interpreter_tries_its_own_settings(work: Path, other: Path) -> None:
    target = work / "net.py"
    target.write_text(
        "import torch\n"
        "def get_model(): return torch.nn.Linear(8, 8)\n"
        "def get_inputs(batch_size): return torch.ones(batch_size, 8)\n"
    )
    result = tune(
        target,
        phases=("forward",),
        space=SearchSpace(backends=("aot_eager",), batch_sizes=(4,)),
        effort="quick",
        pythons=(str(other),),
    )
    ran = {(r.config.environment, r.config.backend) for r in result.trials if r.ok}
    assert ran == {
        (place, backend)
        for place in ("default", "old-torch")
        for backend in ("eager", "aot_eager")
    }
    seen = result.to_dict()["environments"]["old-torch"]
    assert seen["python_path"] == str(other)
