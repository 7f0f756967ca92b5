"""A target is built once, for all trials that are forked, if that is certain to change nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from conftest import PATIENCE_S, SHORT, Bench, assert_nothing_left

from autocompile.execute.executor import Ending, Stepped
from autocompile.execute.local import LocalExecutor
from autocompile.execute.starter import shared_fork_servers
from autocompile.protocol.requests import Header, ProbeRequest, Side, TrialRequest
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome, Step
from autocompile.trial import builder

USUAL = """
import os, random, signal, subprocess, sys, threading, time
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

def seen(what):
    with open(SEEN, "a") as file:
        file.write(f"{what};")

SEEN = os.path.abspath(__file__ + ".seen")
"""


class Run:
    """The probe of a target, and trials after it, as a run makes them."""

    def __init__(
        self, folder: Path, source: str, executor: LocalExecutor, name: str = "run"
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.target = folder / "net.py"
        self.target.write_text(source)
        self.bench = Bench(folder / name, executor=executor)
        self.header = Header(str(self.target), "cpu", seed=5)

    def start_probe(
        self, timeout_s: float = PATIENCE_S, memory_bytes: int | None = None
    ) -> int:
        request = ProbeRequest(header=self.header, batch_size=4, backends=("eager",))
        job = self.bench.job_factory.probe_job(request, compiles=False)
        self.bench._began[job.number] = time.monotonic()
        limits = {"timeout_s": timeout_s, "memory_limit_bytes": memory_bytes}
        self.bench.executor.start(dataclasses.replace(job, **limits))  # type: ignore[arg-type]
        return job.number

    def probe(
        self, timeout_s: float = PATIENCE_S, memory_bytes: int | None = None
    ) -> Ending:
        return self.bench.end(self.start_probe(timeout_s, memory_bytes))

    def start(self) -> int:
        sides = (Side(CompileConfig(backend="eager")),)
        about = {"phase": "forward", "sides": sides, "batch_size": 4, "limits": SHORT}
        request = TrialRequest(header=self.header, **about)  # type: ignore[arg-type]
        return self.bench.begin(request.to_dict())

    def trial(self) -> Ending:
        return self.bench.end(self.start())

    @property
    def imports(self) -> int:
        """How many processes have run the user's file."""
        return len(Path(f"{self.target}.pids").read_text().split())

    def seen(self) -> list[str]:
        """What the file has written down since it was asked last."""
        path = Path(f"{self.target}.seen")
        found = path.read_text().split(";")[:-1]
        path.unlink()
        return found

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


def probe_and_trial(run: Run) -> Ending:
    """Both go well; how the probe ended."""
    ending = run.probe()
    assert (ending.outcome, ending.message) == (Outcome.OK, "")
    assert run.trial().outcome is Outcome.OK
    assert run.bench.told == []
    return ending


# --- what is built once ---------------------------------------------------------------------------


def test_the_users_code_runs_once_and_each_log_has_what_it_printed(make: Make) -> None:
    bytes_of_its_own = (
        "os.write(1, b'\\xff\\xfe.'); subprocess.run(['echo', 'a child'])"
    )
    run = make(f"{USUAL}\n{bytes_of_its_own}")
    assert run.probe().not_built == ""
    with run.bench.recorded() as events:
        assert run.trial().outcome is Outcome.OK
        assert run.trial().outcome is Outcome.OK
    probe = run.bench.job_factory.folder.path / "probe" / "log.txt"
    for log in (probe, run.bench.log(0), run.bench.log(1)):
        said = log.read_bytes()
        for words in (b"imported by the", b"built by the", b"\xff\xfe.", b"a child\n"):
            assert said.count(words) == 1, (log, said)
    assert run.imports == 1
    steps = [e.step for e in events if isinstance(e, Stepped) and e.number == 0]
    assert steps[:3] == [Step.IMPORT, Step.BUILD, Step.EAGER]


DRAWS = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn(3))

    def forward(self, x):
        drawn = torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])
        seen(f"{self.weight.tolist()} {x.tolist()} {drawn.tolist()} {torch.get_num_threads()}")
        return x + self.weight

def get_model():
    return Net()

def get_inputs(batch_size):
    torch.set_rng_state(NOW)
    return torch.rand(batch_size, 3)

net = Net()
NOW = torch.get_rng_state()
"""


@pytest.mark.parametrize("more", ["", "torch.manual_seed(11); random.seed(3)"])
def test_weights_inputs_draws_and_threads_are_those_of_a_process_of_its_own(
    more: str, make: Make
) -> None:
    seen = []
    for isolation in ("auto", "spawn"):
        run = make(f"{USUAL}{DRAWS}\n{more}", isolation)
        assert run.probe().outcome is Outcome.OK
        run.seen()
        assert run.trial().outcome is Outcome.OK
        seen.append(run.seen()[0])
        assert run.imports == (1 if isolation == "auto" else 2)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("asked", [1, 3])
def test_threads_that_the_users_code_asks_for_hold_then_and_later(
    asked: int, make: Make
) -> None:
    run = make(
        f"{USUAL}\nfrom torch import set_num_threads\nset_num_threads({asked})\n"
        "seen(torch.get_num_threads())\n"
        "def get_inputs(batch_size):\n"
        "    seen(torch.get_num_threads())\n"
        f"    set_num_threads({asked})\n"
        "    seen(torch.get_num_threads())\n"
        "    return torch.randn(batch_size, 8)\n"
    )
    probe_and_trial(run)
    assert set(run.seen()) == {str(asked)}
    assert run.imports == 1


def test_a_file_may_change_its_folder_and_the_environment(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(
        f"{USUAL}\nhere = os.path.dirname(os.path.abspath(__file__))\n"
        "os.makedirs(f'{here}/data', exist_ok=True)\n"
        "os.chdir(f'{here}/data')\n"
        "open('size', 'w').write('8')\n"
        "os.environ['TRITON_CACHE_DIR'] = 'its own'\n"
        "os.environ.pop('PYTHONFAULTHANDLER', None)\n"
        "def get_inputs(batch_size):\n"
        "    names = 'TRITON_CACHE_DIR', 'PYTHONFAULTHANDLER'\n"
        "    seen([os.getcwd(), *map(os.environ.get, names)])\n"
        "    return torch.randn(batch_size, int(open('size').read()))\n"
    )
    monkeypatch.chdir(run.target.parent)
    run.bench = Bench(Path("relative"), executor=run.bench.executor)
    run.header = dataclasses.replace(run.header, target="net.py")
    probe_and_trial(run)
    assert set(run.seen()) == {str([str(run.target.parent / "data"), "its own", None])}
    assert run.imports == 1


def test_a_file_that_turns_gradients_off_is_built_once(make: Make) -> None:
    run = make(f"{USUAL}\ntorch.set_grad_enabled(False)")
    probe_and_trial(run)
    assert run.imports == 1


def test_a_library_that_starts_threads_when_imported_is_imported_first(
    make: Make,
) -> None:
    """The thread that the file starts once stands for a library's."""
    run = make(
        f"{USUAL}\nfirst = __file__ + '.once'\n"
        "if not os.path.exists(first):\n"
        "    open(first, 'w').close()\n"
        "    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
    )
    assert probe_and_trial(run).not_built == ""
    assert run.imports == 2  # the second time with the library's threads there before


def test_another_target_takes_its_place_once_no_trial_runs(make: Make) -> None:
    wait = (
        "def get_inputs(batch_size):\n    time.sleep(2)\n    return torch.randn(4, 8)"
    )
    run, other = make(f"{USUAL}\n{wait}"), make(USUAL.replace("8, 8)", "8, 3)"))
    assert run.probe().outcome is Outcome.OK
    number = run.start()
    run.bench.until(lambda: number in run.bench.executor._children)
    beside = Bench(other.target.parent / "beside", executor=run.bench.executor)
    beside.job_factory._next = 7  # numbers are of one executor
    other.bench = run.bench
    other.bench.job_factory.header = other.header
    later = other.start()
    assert run.bench.end(number).outcome is Outcome.OK
    assert other.bench.end(later).outcome is Outcome.OK
    assert (run.imports, other.imports) == (1, 1)


def test_a_run_that_follows_another_of_the_same_file_builds_what_the_file_is_by_then(
    tmp_path: Path,
) -> None:
    """As a suite does that tunes its most promising model once more."""
    later = USUAL.replace("built by the", "changed, and built by the")
    imports = []
    with shared_fork_servers():
        for number, source in enumerate((USUAL, f"{later}held = open(__file__)")):
            executor = LocalExecutor(share="the same")
            try:
                run = Run(tmp_path / "it", source, executor, f"run{number}")
                ending = probe_and_trial(run)
                log = run.log(0)
                imports.append(run.imports)
            finally:
                executor.close()
    assert "left open" in ending.not_built
    assert "changed, and built" in log
    assert imports == [1, 4]  # what tries to build it, the probe and the trial


def test_a_score_for_lack_of_memory_that_cannot_be_changed_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(builder, "_OOM_SCORE", Path("/proc/version"))
    done = []
    with builder._ended_first():
        done.append("built")
    assert done == ["built"]


def test_what_builds_is_ended_first_when_memory_runs_out_and_what_serves_is_not(
    make: Make,
) -> None:
    score = "open('/proc/self/oom_score_adj').read().strip()"
    run = make(f"{USUAL}\nseen({score}); seen(os.getpid())")
    probe_and_trial(run)
    building, pid = run.seen()
    assert building == "900"
    usual = Path("/proc/self/oom_score_adj").read_text()
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == usual


# --- what is not ----------------------------------------------------------------------------------

# The file does it only where ``.once`` is not yet there: a process of its own is well.
ONCE = """
once = __file__ + ".once"
if not os.path.exists(once):
    open(once, "w").close()
    {action}
"""
ACTIONS = {
    "an error": ("raise ValueError('not here')", "ValueError: not here"),
    "an exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "an exit without a word": ("os._exit(5)", "exit code 5"),
    "a crash": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "a fork that comes back": ("os.fork() or time.sleep(1)", ""),
    "a process that stays": (
        "os.fork() or time.sleep(99)\n    if os.fork(): raise OSError('gone')",
        "OSError: gone",
    ),
    "a helper": ("helper = subprocess.Popen(['sleep', '99'])", "left running: sleep"),
    "a daemon": (
        "if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(99)\n"
        "        os._exit(0)\n    os.wait()",
        "left running: python",
    ),
    "an open file": ("held = open(__file__)", "left open: .*net.py"),
    "a socket": ("import socket; held = socket.socket()", "left open: socket"),
    "closed descriptors": ("os.closerange(3, 200)", "."),
    "shared memory": ("import mmap; held = mmap.mmap(-1, 9)", "memory that processes share"),
    "a handler": ("signal.signal(signal.SIGUSR2, signal.SIG_IGN)", "changes signals"),
    "a timer": ("signal.alarm(99)", "sets a timer"),
    "a limit": (
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (333, 444))",
        "changes the limits",
    ),
    "output elsewhere": ("os.dup2(os.open(os.devnull, os.O_WRONLY), 1)", "redirects"),
    "much output": ("sys.stdout.write('x' * 300_000)", "prints more than"),
    "output without end": ("while True: sys.stdout.write('x' * 300_000)", "prints more than"),
    "a compile": (
        "torch.compile(torch.nn.Linear(2, 2), backend='eager')(torch.ones(1, 2))",
        "it compiles",
    ),
    "the GPU": ("torch.cuda._initialized = True", "uses the GPU"),
}  # fmt: skip


@pytest.mark.parametrize("what", ACTIONS)
def test_where_it_is_not_certain_to_be_the_same_each_trial_builds_it(
    what: str, make: Make
) -> None:
    action, why = ACTIONS[what]
    run = make(USUAL + ONCE.format(action=action))
    ending = run.probe()
    assert (ending.outcome, ending.message) == (Outcome.OK, "")
    assert run.bench.told == []
    log = run.bench.job_factory.folder.path / "probe" / "log.txt"
    assert log.read_text().count("imported by the user's code") == 1
    if why:
        assert re.search(why, ending.not_built), ending.not_built
        assert run.imports == 2
    assert_nothing_left(str(run.target))


HELPER = """
helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
rows = open(__file__ + ".rows")

def get_inputs(batch_size):
    helper.stdin.write(rows.readline().encode())
    helper.stdin.flush()
    width = float(helper.stdout.readline())
    seen(width)
    return torch.full((batch_size, 8), width)
"""
THREADS = """
pool = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
pool.start()

def get_inputs(batch_size):
    seen(pool.is_alive())
    return torch.randn(batch_size, 8)
"""


@pytest.mark.parametrize(
    ("source", "why", "expected"),
    [(HELPER, "left", ["1.0", "2.0"]), (THREADS, "1 thread left", ["True"] * 2)],
)
def test_helpers_open_files_and_threads_are_of_each_trial_itself(
    source: str, why: str, expected: list[str], make: Make
) -> None:
    run = make(USUAL + source)
    Path(f"{run.target}.rows").write_text("".join(f"{n}\n" for n in range(1, 99)))
    assert why in run.probe().not_built
    for _ in range(2):
        run.seen()
        number = run.start()
        assert run.bench.end(number).outcome is Outcome.OK
        assert run.seen()[:2] == expected
        Path(f"{run.target}.seen").touch()
    assert_nothing_left(str(run.target))


def test_threads_of_c_libraries_that_building_starts_are_not_lost(make: Make) -> None:
    run = make(
        f"{USUAL}\nimport ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "wait = ctypes.cast(libc.pause, ctypes.c_void_p)\n"
        "thread = ctypes.c_ulong()\n"
        "def get_model():\n"
        "    libc.pthread_create(ctypes.byref(thread), None, wait, None)\n"
        "    return torch.nn.Linear(8, 8)\n"
    )
    assert "1 thread left" in probe_and_trial(run).not_built


def test_a_hang_ends_at_the_deadline_of_a_step_whatever_the_file_does(
    make: Make,
) -> None:
    run = make(USUAL + ONCE.format(action="signal.alarm(0); time.sleep(1000)"))
    ending = run.probe(timeout_s=15.0)
    assert (ending.outcome, ending.message) == (Outcome.OK, "")
    assert ending.not_built == "it was still in import after 15 s"
    assert run.trial().outcome is Outcome.OK
    assert run.imports == 3


def test_building_has_the_memory_limit_of_a_trial(make: Make) -> None:
    eats = "held = bytearray(2**31); time.sleep(100)"
    run = make(USUAL + ONCE.format(action=eats))
    ending = run.probe(memory_bytes=3 * 2**29)
    assert (ending.outcome, ending.message) == (Outcome.OK, "")
    assert ending.not_built == "it held more than 1.5 GiB"
    assert run.imports == 2


def test_what_fails_always_is_told_as_by_a_process_of_its_own(make: Make) -> None:
    endings = []
    for isolation in ("auto", "spawn"):
        run = make("import torch\nraise ValueError('wrong here')", isolation)
        endings.append(run.probe())
    assert [each.outcome for each in endings] == [Outcome.IMPORT_ERROR] * 2
    assert endings[0].message == endings[1].message
    assert endings[0].step is endings[1].step
    assert "wrong here" in endings[0].message


FORKS_NO_MORE = """
import json, os, sys
from multiprocessing import Pipe
from autocompile.trial import fork_server
ours, theirs = Pipe()
server = fork_server._ForkServer(theirs, os.getppid())
def fork():
    raise BlockingIOError(11, "Resource temporarily unavailable")
server._refusal, os.fork = dict, fork
print(json.dumps(server._done({"do": "build", "folder": "", "timeout_s": 1, "memory_bytes": None})))
"""


def test_where_no_process_can_be_had_it_is_not_built_and_the_fork_server_goes_on() -> (
    None
):
    command = [sys.executable, "-c", FORKS_NO_MORE]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    why = "there is no process for it: Resource temporarily unavailable"
    assert json.loads(told) == {"built": False, "why": why, "was_ended": False}


# --- the end --------------------------------------------------------------------------------------

BUILDS_FOR_EVER = (
    USUAL
    + """
def get_model():
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", __file__])
    open(__file__ + ".builds", "w").close()
    time.sleep(1000)
"""
)


def test_what_is_stopped_while_it_builds_says_so_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "it", BUILDS_FOR_EVER, LocalExecutor())
    try:
        number = run.start_probe()
        run.bench.until(Path(f"{run.target}.builds").exists)
        run.bench.executor.cancel(number)
        ending = run.bench.end(number)
        assert (ending.outcome, ending.step) == (Outcome.INTERRUPTED, Step.BUILD)
    finally:
        run.bench.executor.close()
    assert_nothing_left(str(run.target))


TUNER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_built_once as here
run = here.Run(Path(sys.argv[2]), Path(sys.argv[3]).read_text(), here.LocalExecutor())
run.start_probe()
print("began", flush=True)
run.bench.until(lambda: False)
"""


@pytest.mark.parametrize("who", ["the tuner", "the original"])
def test_nothing_is_left_of_a_build_whoever_is_killed(who: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text(BUILDS_FOR_EVER)
    words = [str(Path(__file__).parent), str(tmp_path / "it"), str(source)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    tuner = subprocess.Popen([sys.executable, "-c", TUNER, *words], env=environment)
    target = tmp_path / "it" / "net.py"
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not Path(f"{target}.builds").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        if who == "the original":
            servers = psutil.Process(tuner.pid).children()
            (original,) = (p for p in servers if "fork_server" in " ".join(p.cmdline()))
            original.send_signal(signal.SIGTERM)
            original.wait(30)
        else:
            tuner.kill()
            tuner.wait()
        assert_helpers_end(str(target))
    finally:
        tuner.kill()
        tuner.wait()
    assert_nothing_left(str(target))


def assert_helpers_end(text: str) -> None:
    """The programs that a file has started are not of the one that is killed."""
    deadline = time.monotonic() + 30
    while True:
        left = [
            p.info["pid"]
            for p in psutil.process_iter(["pid", "cmdline"])
            if "time.sleep(1000)" in " ".join(p.info["cmdline"] or ())
            and text in " ".join(p.info["cmdline"] or ())
        ]
        if not left:
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
