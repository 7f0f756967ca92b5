"""Targets that misbehave when they are imported, and models that are no functions."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TARGETS, Bench, assert_nothing_left

from autocompile.execute.starter import ForkServer
from autocompile.store.record import Outcome

PROCESSES, ODD = TARGETS / "faulty_processes.py", TARGETS / "odd_models.py"
MODEL = """
import ctypes, os, resource, signal, subprocess, sys, tempfile, threading, time, warnings
import torch

torch.set_num_threads(1)

def get_model():
    return torch.nn.Linear(16, 4)

def get_inputs(batch_size):
    return (torch.randn(batch_size, 16),)

def spin():
    while True:
        pass

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]

"""


def nothing_left() -> None:
    """Nothing of the trial before is alive; that the next one works the next test shows."""
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ("raise ValueError('broken')", "import_error", "ValueError: broken"),
        ("raise KeyboardInterrupt", "import_error", "KeyboardInterrupt"),
        ("sys.exit('gone')", "import_error", "SystemExit: gone"),
        ("sys.exit(0)", "import_error", "SystemExit: 0"),
        ("(f := lambda: f())()", "import_error", "RecursionError"),
        ("os._exit(0)", "crashed", "exited with code 0 in import without a result"),
        ("os.closerange(3, 256)", "crashed", "exited with code 70 in import"),
        ("ctypes.string_at(0)", "crashed", "SIGSEGV in import"),
        ("os.abort()", "crashed", "SIGABRT in import"),
        ("os.killpg(0, signal.SIGKILL)", "crashed", "SIGKILL in import"),
        ("signal.setitimer(0, 0.01); time.sleep(60)", "crashed", "SIGALRM in import"),
        (
            "os.kill(os.getpid(), signal.SIGSTOP)",
            "timeout",
            "still in import after 1 s",
        ),
        (
            "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); spin()",
            "timeout",
            "still in import after 1 s",
        ),
    ],
)
def test_a_target_that_fails_at_its_import_says_how(
    bench: Bench, work: Path, fault: str, outcome: str, words: str
) -> None:
    (work / "model.py").write_text(MODEL + fault + "\n")
    limits = {"timeout_s": 1.0} if outcome == "timeout" else {}
    ending = bench.run(work / "model.py", **limits)
    assert (ending.outcome.value, ending.step.value) == (outcome, "import"), (
        ending.message
    )
    assert words in ending.message
    if outcome == "import_error":
        assert ending.payload["where"].startswith("model.py:")
    nothing_left()


@pytest.mark.parametrize(
    "oddity",
    [
        "for descriptor in (0, 1, 2): os.close(descriptor)",
        "print('\\x1b[2J\\x1b]0;title\\x07', flush=True); os.write(1, b'\\xff\\xfe\\xc3(')\n"
        "d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d); os.umask(0)",
        "sys.stdout = sys.stderr = None; os.environ.clear(); warnings.simplefilter('error')",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\n"
        "ctypes.CDLL(None).prctl(1, 0)  # not to die with the parent",
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()",
        "if os.fork() == 0: time.sleep(600)\n"
        "del os.environ['AUTOCOMPILE_TRIAL']; subprocess.Popen(SLEEPS, start_new_session=True)",
        "os.fork()  # and from here on everything is done twice",
        # It takes the interpreter's lock from the calls that are timed.
        pytest.param(
            "threading.Thread(target=spin, daemon=True).start()", marks=pytest.mark.slow
        ),
    ],
)
def test_a_target_with_odd_habits_is_measured_all_the_same(
    bench: Bench, work: Path, oddity: str
) -> None:
    (work / "model.py").write_text(MODEL + oddity + "\n")
    ending = bench.run(work / "model.py", "aot_eager")
    assert (ending.outcome.value, ending.step.value) == ("ok", "exit"), ending.message
    nothing_left()


def test_after_all_of_them_a_trial_works(bench: Bench) -> None:
    ending = bench.run(PROCESSES)
    assert ending.outcome is Outcome.OK, ending.message


@pytest.mark.gpu
def test_a_target_that_initialises_cuda_at_its_import_is_measured(
    bench: Bench, work: Path
) -> None:
    (work / "model.py").write_text(
        MODEL + "torch.ones(1, device='cuda').sum().item()\n"
    )
    ending = bench.run(work / "model.py", "aot_eager", device="cuda")
    assert ending.outcome is Outcome.OK, ending.message
    assert "forked" not in ending.doubts
    nothing_left()


@pytest.mark.parametrize(
    ("target", "backend", "outcome", "step", "words"),
    [
        (
            "nondeterministic",
            "eager",  # so that no other trial begins
            "wrong_output",
            "verify",
            "eager differs from itself",
        ),
        (
            "nondeterministic",
            "honest",
            "wrong_output",
            "verify",
            "eager differs from itself",
        ),
        ("stateful", "honest", "ok", "exit", ""),
        (
            "restless",
            "honest",
            "recompile_limit",
            "measure",
            "recompiled while it was timed",
        ),
        (
            "scaled",
            "forgets",
            "recompile_limit",
            "measure",
            "recompiled while it was timed",
        ),
    ],
)
def test_a_model_that_is_no_function_is_named_for_what_it_is(
    bench: Bench, target: str, backend: str, outcome: str, step: str, words: str
) -> None:
    ending = bench.run(f"{ODD}:{target}", backend)
    assert (ending.outcome.value, ending.step.value) == (outcome, step), ending.message
    assert words in ending.message
    nothing_left()


def test_a_library_that_starts_a_thread_is_not_forked(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = "import threading, time\n" + (
        "threading.Thread(target=time.sleep, args=(600,), daemon=True, name='poller').start()\n"
    )
    (work / "starts_a_thread.py").write_text(threads)
    monkeypatch.setenv("PYTHONPATH", str(work), prepend=os.pathsep)
    bench = Bench(work / "run", jobs=1)
    executor = bench.executor
    assert bench.run(PROCESSES).outcome is Outcome.OK
    assert isinstance(executor._starter(None)._fork_server, ForkServer)
    executor._starter(None).warm(["starts_a_thread"], None)
    assert bench.run(PROCESSES).outcome is Outcome.OK
    assert bench.told == [
        "trials are forked without the target's imports: a thread runs in it: poller"
    ]
    assert isinstance(executor._starter(None)._fork_server, ForkServer), (
        "forked, all the same"
    )
    executor.close()
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


NASTY = (
    MODEL
    + r"""
from torch._dynamo import register_backend

d = tempfile.mkdtemp()
os.chdir(d)
os.rmdir(d)
os.umask(0)
print("\x1b[2J\x1b]0;title\x07", flush=True)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
if os.fork() == 0:
    time.sleep(600)

@register_backend
def evil(graph, inputs):
    raise ValueError("\x1b[31mred\x1b[0m [bold]not bold[/bold] |\x07\u202e <b>html</b>")
"""
)


def test_a_nasty_target_harms_neither_the_screen_nor_the_run(work: Path) -> None:
    (work / "model.py").write_text(NASTY)
    command = [sys.executable, "-m", "autocompile"]
    options = [
        "--phase",
        "forward",
        "--backend",
        "evil",
        "--batch-size",
        "4",
        "--effort",
        "quick",
    ]
    done = subprocess.run(
        [*command, "tune", "model.py", *options, "--progress", "plain"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.umask(0) and None,
    )
    assert done.returncode == 0, done.stderr
    assert_nothing_left("AUTOCOMPILE_TRIAL=")
    shown = subprocess.run([*command, "show", "-v"], capture_output=True, text=True)
    report = (work / "runs/model-0001/report.html").read_text("utf-8")
    for text in (done.stdout, done.stderr, shown.stdout, shown.stderr, report):
        assert not set(text) & {"\x1b", "\x07", "\u202e", "\x9b"}
    for text in (done.stderr, shown.stdout):
        assert "ValueError: red [bold]not bold[/bold] | <b>html</b>" in text
    assert "<b>html</b>" not in report
    everything = [work / "runs", *(work / "runs").rglob("*")]
    assert len(everything) > 10
    assert [
        p for p in everything if p.stat().st_mode & stat.S_IWOTH and not p.is_symlink()
    ] == []
