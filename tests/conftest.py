"""What tests share."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autocompile.execute.executor import Ended, Ending, Event, Told
from autocompile.execute.job import JobFactory
from autocompile.execute.local import LocalExecutor
from autocompile.protocol.requests import (
    Header,
    Side,
    TimingLimits,
    TrialRequest,
    request_of,
)
from autocompile.request import Isolation
from autocompile.settings.config import CompileConfig
from autocompile.store.record import RunFolder

if TYPE_CHECKING:
    from in_process import Try

PATIENCE_S = 200.0  # with a trial that is not to be stopped: the machine may be slow
SHORT = TimingLimits(half_width=0.5, max_s=0.1, front_s=0.1, block_s=0.002)
TARGETS = Path(__file__).parent / "targets"
ROOT = Path(__file__).parent.parent
# All that these tests start carries it, so that an autocompile of somebody else's is left out.
OURS = f"AUTOCOMPILE_TESTS={secrets.token_hex(8)}"
os.environ.update([OURS.split("=")])
if (
    "PYTEST_XDIST_WORKER" not in os.environ
):  # one toolchain is prepared for all workers, not ours
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="autocompile-tests-")
# A worker's commands hold the machine against one another, not against other workers' or people's.
os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(
    prefix="ac-"
)  # Ray's sockets: short
# Two workers share the cores: threads of one that wait by spinning would keep the other from them.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
gc.disable()  # until all tests are collected: what is imported for them is no garbage

# Folders whose tests start processes, compile or import Ray, those with the longest files first:
# they begin first, so that no worker ends with a long file alone. All others take seconds.
_LONG = (
    "trial trial/verify trial/tasks trial/measure trial/model rllib runtime life search execute . "
    "export cli commands cluster suite"
).split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of long folders first."""
    gc.enable()
    tests = Path(__file__).parent
    order = {tests / folder: number for number, folder in enumerate(_LONG)}
    if gone := [str(folder) for folder in order if not folder.is_dir()]:
        raise pytest.UsageError(f"_LONG of tests/conftest.py: no {', '.join(gone)}")
    items.sort(key=lambda item: order.get(item.path.parent, len(order)))


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What this process writes is not waited for until it is on the disk.

    That is half the time of a study with a scripted executor, and shows only when the power fails.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def connected(connection: Any, _: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", connected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
    event.remove(Engine, "connect", connected)


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """What is imported stays: torch collects garbage in each compile, which else takes half a
    second of going through all of it.
    """
    gc.collect()
    gc.freeze()


def _alive_with(text: str) -> list[int]:
    """Processes of these tests whose environment or command line holds a text.

    Those that trials are forked from are left out, which live as long as their executors, and what
    one runs in its own session, such as its look for a C++ compiler: how long that takes is a matter
    of what else the machine does. A trial has sessions of its own.
    """
    sessions, fork_servers = dict[int, int](), set[int]()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            state, parent, session = stat[0], int(stat[1]), int(stat[3])
            command = (entry / "cmdline").read_bytes()
            seen = (entry / "environ").read_bytes() + command
            if parent == os.getpid() and b"trial.fork_server" in command:
                fork_servers.add(int(entry.name))
            if text.encode() in seen and OURS.encode() in seen and state != "Z":
                sessions[int(entry.name)] = session
    left_out = {os.getpid(), *fork_servers}
    return [
        pid
        for pid, session in sessions.items()
        if pid not in left_out and session not in fork_servers
    ]


def assert_nothing_left(text: str, within_s: float = 60.0) -> None:
    """No process that holds the text is alive after a while; what tests leave stays ten minutes."""
    deadline = time.monotonic() + within_s
    while _alive_with(text) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _alive_with(text) == []


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def target(work: Path) -> Path:
    """A file for trials that a fake executor runs."""
    path = work / "net.py"
    path.write_text("never run: the executor is a fake")
    return path


@pytest.fixture(scope="session")
def _onnx_translations() -> Iterator[None]:
    """Torch looks for its ONNX translations and for all of its operators anew in every export,
    which is most of what one takes: here once.
    """
    from torch._export import utils
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = functools.cache(vars(ONNXRegistry)["from_torchlib"].__func__)
    look = functools.cache(utils._materialize_cpp_cia_ops)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", classmethod(read))
        patch.setattr(utils, "_materialize_cpp_cia_ops", look)
        ONNXRegistry.from_torchlib()
        gc.collect()
        gc.freeze()  # else each export goes through all of them once or twice
        yield


@pytest.fixture
def _dynamo_as_it_was() -> Iterator[None]:
    """Backends that a test registers and what it compiles are gone after it."""
    import torch
    import torch._dynamo
    from torch._dynamo.backends.registry import _COMPILER_FNS

    random_state = torch.get_rng_state()
    torch._dynamo.list_backends(None)  # registers torch's own
    # An entry point brings onnxrt once in a process, maybe within the test.
    before = {*_COMPILER_FNS, "onnxrt"}
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):
        yield
    for name in set(_COMPILER_FNS) - before:
        del _COMPILER_FNS[name]
    torch._dynamo.reset()
    torch.set_rng_state(random_state)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Torch has one thread: nets of tests gain nothing by more, and two workers share the cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _fresh_dynamo() -> Iterator[None]:
    """Nothing is compiled, and no gradients are recorded."""
    import torch
    import torch._dynamo

    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def _newer_switches() -> Iterator[None]:
    """Torch's newer switches of precision are used: it does not tell the one of the older name."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new"):
        torch.get_float32_matmul_precision()
    yield
    matmul.fp32_precision = before


class Clock:
    """Stands in for ``time``: it moves only when somebody works, so that times are exact."""

    def __init__(self) -> None:
        self.now_ns = 0

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    __call__ = monotonic

    def sleep(self, seconds: float) -> None:
        self.work(seconds)

    def work(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class Bench:
    """Real trials on a real executor, without a study around them, which would cost seconds more.

    Attributes:
        told: what the executor had to say about itself.
        took_s: of each trial that has ended, from its start to its end, whatever happened between.
    """

    def __init__(
        self,
        folder: Path,
        isolation: Isolation = "auto",
        jobs: int = 2,
        executor: LocalExecutor | None = None,
    ) -> None:
        self.executor = executor or LocalExecutor(isolation=isolation, jobs=jobs)
        run = RunFolder(folder)
        run.create()
        self.job_factory = JobFactory(run, Header(), PATIENCE_S, None)
        self.told: list[str] = []
        self.took_s: dict[int, float] = {}
        self._began: dict[int, float] = {}
        self._endings: dict[int, Ending] = {}
        self._events: list[Event] = []

    def start(
        self,
        target: str | Path,
        backend: str = "eager",
        timeout_s: float = PATIENCE_S,
        device: str = "cpu",
    ) -> int:
        """Begin a short trial of a target's forward; its number."""
        header, config = Header(str(target), device), CompileConfig(backend=backend)
        request = TrialRequest(
            header=header,
            phase="forward",
            sides=(Side(config),),
            batch_size=4,
            limits=SHORT,
        )
        return self.begin(request.to_dict(), timeout_s)

    def begin(self, request: dict[str, Any], timeout_s: float = PATIENCE_S) -> int:
        """Begin what a request asks for, as JSON; its number."""
        number = self.job_factory.next_number()
        job = self.job_factory.job(request_of({**request, "number": number}))
        self._began[number] = time.monotonic()
        self.executor.start(dataclasses.replace(job, timeout_s=timeout_s))
        return number

    def end(self, number: int) -> Ending:
        """Wait for a trial."""
        self.until(lambda: number in self._endings)
        return self._endings.pop(number)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let the trials work until something is so."""
        while not condition():
            for event in self.executor.wait(0.2):
                self._events.append(event)
                if isinstance(event, Ended):
                    self._endings[event.number] = event.ending
                    self.took_s[event.number] = (
                        time.monotonic() - self._began[event.number]
                    )
                elif isinstance(event, Told):
                    self.told.append(event.text)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[Event]]:
        """The events that come meanwhile."""
        self._events = []
        yield self._events

    def run(self, target: str | Path, backend: str = "eager", **limits: Any) -> Ending:
        """Begin a trial and wait for it."""
        return self.end(self.start(target, backend, **limits))

    def log(self, number: int) -> Path:
        """What a trial printed."""
        return self.job_factory.folder.trial(number) / "log.txt"


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Trials that are forked from one warm process, as a study's are."""
    bench = Bench(tmp_path_factory.mktemp("bench"))
    yield bench
    bench.executor.close()


class _Lasting:
    """Stands in for ``LocalExecutor``: the bench's, whose warm process outlives who closes it.

    A failure is final: for a second try a new interpreter would import torch.
    """

    def __init__(self, executor: LocalExecutor) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def wait(self, timeout_s: float) -> list[Event]:
        return [
            Ended(e.number, dataclasses.replace(e.ending, doubts=()))
            if isinstance(e, Ended)
            else e
            for e in self._executor.wait(timeout_s)
        ]

    def close(self) -> None:
        """End the trials, and have their target forgotten."""
        for number in list(self._executor._children):
            self._executor.cancel(number)
        while self._executor._children or self._executor._events:
            self._executor.wait(0.2)
        for starter in self._executor._starters.values():
            starter.forget()


@pytest.fixture(scope="module")
def _warm(bench: Bench) -> Iterator[None]:
    """Whatever starts trials in this process takes them from the bench's warm one."""
    with pytest.MonkeyPatch.context() as patch:
        for place in ("api", "commands.bench"):
            patch.setattr(
                f"autocompile.{place}.LocalExecutor",
                lambda **_: _Lasting(bench.executor),
            )
        yield


@pytest.fixture
def typed(
    _warm: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line in this process: no seconds for new interpreters."""
    from autocompile.cli import commands as cli

    monkeypatch.setattr("autocompile.commands.diagnose._LIMITS", SHORT)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["autocompile", *args])
        monkeypatch.setattr("autocompile.cli.BEGAN", time.monotonic())
        before, code = signal.getsignal(signal.SIGTERM), 0
        capsys.readouterr()
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            signal.signal(signal.SIGTERM, before)
        return subprocess.CompletedProcess(args, code, *capsys.readouterr())

    return run


@pytest.fixture
def try_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Try]:
    """Runs a trial of a target in this process and gives its result."""
    from in_process import trials  # which imports torch

    with trials(tmp_path, capsys) as run:
        yield run


@pytest.fixture
def built(_ray: None, _dynamo_as_it_was: None) -> Iterator[Callable[[Any], Any]]:
    """Builds algorithms that are stopped after the test."""
    made: list[Any] = []

    def build(config: Any) -> Any:
        made.append(config.build_algo())
        return made[-1]

    yield build
    for algorithm in made:
        algorithm.stop()


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    """RLlib's own home, for the tests of a file."""
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
