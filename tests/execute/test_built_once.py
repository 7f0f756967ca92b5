"""A target is built once, for all trials that are forked, whatever the user's code does."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import PATIENCE_S, SHORT, Bench

from autocompile.execute.executor import Ending
from autocompile.execute.local import LocalExecutor
from autocompile.protocol.requests import Header, ProbeRequest, Side, TrialRequest
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome

USUAL = """
import os, random
import numpy as np
import torch

with open(__file__ + ".pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
print("imported by the user's code")

def get_model():
    print("built by the user's code")
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))

def get_inputs(batch_size):
    return torch.randn(batch_size, 8)
"""


class Run:
    """The probe of a target, and trials after it, as a run makes them."""

    def __init__(self, folder: Path, source: str, executor: LocalExecutor) -> None:
        folder.mkdir()
        self.target = folder / "net.py"
        self.target.write_text(source)
        self.bench = Bench(folder / "run", executor=executor)
        self.header = Header(str(self.target), "cpu", seed=5)

    def probe(self, timeout_s: float = PATIENCE_S) -> Ending:
        request = ProbeRequest(header=self.header, batch_size=4, backends=("eager",))
        job = self.bench.job_factory.probe_job(request, compiles=False)
        self.bench._began[job.number] = time.monotonic()
        self.bench.executor.start(dataclasses.replace(job, timeout_s=timeout_s))
        return self.bench.end(job.number)

    def trial(self) -> Ending:
        sides = (Side(CompileConfig(backend="eager")),)
        about = {"phase": "forward", "sides": sides, "batch_size": 4, "limits": SHORT}
        request = TrialRequest(header=self.header, **about)  # type: ignore[arg-type]
        return self.bench.end(self.bench.begin(request.to_dict()))

    @property
    def imports(self) -> int:
        """How many processes have run the user's file."""
        return len(Path(f"{self.target}.pids").read_text().split())

    def log(self, number: int) -> str:
        return self.bench.log(number).read_text()


Make = Callable[..., Run]


@pytest.fixture(scope="module")
def executors() -> Iterator[dict[str, LocalExecutor]]:
    """One of each isolation: what a target leaves in it the next must not see."""
    made = {name: LocalExecutor(name) for name in ("auto", "spawn")}
    yield made
    for executor in made.values():
        executor.close()


@pytest.fixture
def make(tmp_path: Path, executors: dict[str, LocalExecutor]) -> Make:
    numbers = itertools.count()

    def made(source: str, isolation: str = "auto") -> Run:
        return Run(tmp_path / str(next(numbers)), source, executors[isolation])

    return made


def test_the_users_code_runs_once_and_each_log_has_what_it_printed(make: Make) -> None:
    run = make(USUAL)
    assert run.probe().outcome is Outcome.OK
    for number in range(2):
        assert run.trial().outcome is Outcome.OK
        log = run.log(number)
        assert log.count("imported by the user's code") == 1
        assert log.count("built by the user's code") == 1
    assert run.imports == 1
    assert run.bench.told == []


DRAWS = """
import random
import numpy as np
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn(3))

    def forward(self, x):
        drawn = torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])
        with open(__file__ + ".drawn", "a") as file:
            file.write(f"{self.weight.tolist()} {drawn.tolist()} {torch.get_num_threads()};")
        return x + self.weight

def get_model():
    return Net()

def get_inputs(batch_size):
    torch.set_rng_state(NOW)
    return torch.zeros(batch_size, 3)

net = Net()
NOW = torch.get_rng_state()
"""


def test_weights_draws_and_threads_are_those_of_a_process_of_its_own(
    make: Make,
) -> None:
    seen = []
    for isolation in ("auto", "spawn"):
        run = make(DRAWS, isolation)
        assert run.probe().outcome is Outcome.OK
        drawn = Path(f"{run.target}.drawn")
        drawn.unlink()
        assert run.trial().outcome is Outcome.OK
        seen.append(drawn.read_text().split(";")[0])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("asked", [1, 3])
def test_threads_that_the_users_code_asks_for_hold(asked: int, make: Make) -> None:
    run = make(f"{USUAL}\ntorch.set_num_threads({asked})\n{COUNTS}")
    assert run.probe().outcome is Outcome.OK
    assert run.trial().outcome is Outcome.OK
    assert set(Path(f"{run.target}.threads").read_text().split()) == {str(asked)}
    assert run.imports == 1


COUNTS = """
def get_inputs(batch_size):
    with open(__file__ + ".threads", "a") as file:
        file.write(f"{torch.get_num_threads()} ")
    return torch.randn(batch_size, 8)
"""

# What the fork server cannot have run in it. The file does it only where ``only_once`` is not yet
# there: trials, which build by themselves then, are well.
ONCE = """
import pathlib
once = pathlib.Path(__file__ + ".once")
is_first = not once.exists()
once.touch()
if is_first:
    {action}
"""
ACTIONS = {
    "an error": "raise ValueError('not here')",
    "an exit": "raise SystemExit(3)",
    "an exit without a word": "import os; os._exit(0)",
    "a crash": "import ctypes; ctypes.string_at(0)",
    "a thread": "import threading, time; threading.Thread(target=time.sleep, args=(99,)).start()",
    "a hang": "import time; time.sleep(1000)",
    "a process that stays": "import os, time\n    if os.fork() == 0: time.sleep(99)\n    raise OSError",
}


@pytest.mark.parametrize("what", ACTIONS)
def test_where_it_cannot_be_built_in_advance_each_trial_builds_it(
    what: str, make: Make
) -> None:
    run = make(USUAL + ONCE.format(action=ACTIONS[what]))
    assert run.probe(timeout_s=8.0).outcome is Outcome.OK
    assert run.trial().outcome is Outcome.OK
    assert run.imports == 3
    assert run.log(0).count("imported by the user's code") == 1
    assert run.bench.told == []


def test_what_fails_always_is_told_as_by_a_process_of_its_own(make: Make) -> None:
    endings = []
    for isolation in ("auto", "spawn"):
        run = make("import torch\nraise ValueError('wrong here')", isolation)
        endings.append(run.probe())
    assert [each.outcome for each in endings] == [Outcome.IMPORT_ERROR] * 2
    assert endings[0].message == endings[1].message
    assert endings[0].step is endings[1].step
    assert "wrong here" in endings[0].message


def test_another_target_takes_the_place_of_the_first(make: Make) -> None:
    run, other = make(USUAL), make(USUAL.replace("Linear(8, 8)", "Linear(8, 3)"))
    assert run.probe().outcome is Outcome.OK
    assert other.probe().outcome is Outcome.OK
    assert other.trial().outcome is Outcome.OK
    assert (run.imports, other.imports) == (1, 1)
