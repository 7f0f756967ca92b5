"""A small model, and one Dynamo backend for each thing that goes wrong with processes."""

import atexit
import concurrent.futures
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time

import psutil
import torch
from torch._dynamo import register_backend

SLEEPS = "import time; time.sleep(600)"
# Only whoever adopts orphans can find it: no session, group, parent or environment of ours, and
# deaf to every signal that can be ignored.
HIDES = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
time.sleep(600)
"""


torch.set_num_threads(1)  # or one busy neighbour slows a block of calls a hundredfold


def get_model():
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    )


def get_inputs(batch_size):
    return (torch.randn(batch_size, 16),)


def hide():
    seen = (
        "AUTOCOMPILE_TRIAL=hidden AUTOCOMPILE_TESTS=" + os.environ["AUTOCOMPILE_TESTS"]
    )
    subprocess.run([sys.executable, "-c", HIDES, seen], env={}, check=True)


def fork_a_sleeper():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
    return pid


@register_backend
def honest(graph, inputs):
    return graph.forward


@register_backend
def segfaults_in_a_thread(graph, inputs):
    thread = threading.Thread(target=ctypes.string_at, args=(0,))
    thread.start()
    thread.join()
    return graph.forward


@register_backend
def kills_itself(graph, inputs):
    """As the kernel does when memory is short."""
    hide()
    os.kill(os.getpid(), signal.SIGKILL)


@register_backend
def kills_its_supervisor(graph, inputs):
    """The process that would clean up after it."""
    subprocess.Popen([sys.executable, "-c", SLEEPS], start_new_session=True)
    fork_a_sleeper()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


@register_backend
def kills_the_compiler(graph, inputs):
    """Inductor's C++ compiler dies, and nothing else."""
    from torch._inductor.compile_fx import compile_fx

    done = threading.Event()

    def lurk():
        while not done.is_set():
            for child in psutil.Process().children(
                recursive=True
            ):  # other tests compile as well
                with contextlib.suppress(psutil.Error):
                    if child.name() == "cc1plus":
                        child.kill()
            time.sleep(0.002)

    threading.Thread(target=lurk, daemon=True).start()
    try:
        return compile_fx(graph, inputs)
    finally:
        done.set()


@register_backend
def loses_a_compile_worker(graph, inputs):
    """A pool of processes, one of which dies."""
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        pool.submit(os.kill, os.getpid(), 0).result()
        pool.submit(signal.raise_signal, signal.SIGKILL).result()
    return graph.forward


@register_backend
def hangs_with_the_lock(graph, inputs):
    """In C, without ever letting another thread of Python's run."""
    libc = ctypes.PyDLL(None)
    while True:
        libc.sleep(600)


@register_backend
def hangs_in_a_regex(graph, inputs):
    re.match(r"(a+)+$", "a" * 64 + "b")


@register_backend
def hangs_while_autotuning(graph, inputs):
    """Inside one of Inductor's own benchmarks, for which all others stand still."""
    from torch._inductor.runtime.benchmarking import benchmarker

    benchmarker.benchmark_cpu(lambda: time.sleep(600))


@register_backend
def hangs_and_hides(graph, inputs):
    hide()
    fork_a_sleeper()
    time.sleep(600)


@register_backend
def does_not_tidy_up(graph, inputs):
    """Right, but leaves behind what would keep an interpreter from ending."""
    hide()
    fork_a_sleeper()
    atexit.register(time.sleep, 600)
    threading.Thread(target=time.sleep, args=(600,)).start()
    return graph.forward


@register_backend
def cannot_leave(graph, inputs):
    """Right, and then it does not end."""
    os._exit = lambda code: time.sleep(600)
    return graph.forward


@register_backend
def shares_its_core(graph, inputs):
    """With somebody who is busy all the time."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    code = "print(1, flush=True)\nwhile True: pass"
    hog = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    hog.stdout.readline()
    return graph.forward


@register_backend
def shouts_two_gigabytes(graph, inputs):
    line = b"\xff\xfe not UTF-8 \xc3( " + b"x" * 2**20 + b"\n"
    for _ in range(2048):
        os.write(1, line)
    return graph.forward


def _pipes():
    """Descriptors of this process that are pipes to somebody: the result channel is among them."""
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(entry) > 2 and os.readlink(f"/proc/self/fd/{entry}").startswith(
                "pipe:"
            ):
                yield int(entry)


def _write_to_pipes(data):
    for descriptor in _pipes():
        with contextlib.suppress(OSError):  # it is for reading
            while data:
                data = data[os.write(descriptor, data) :]


@register_backend
def sends_an_endless_line(graph, inputs):
    _write_to_pipes(b"x" * (9 * 2**20))
    return graph.forward


@register_backend
def sends_no_utf8(graph, inputs):
    _write_to_pipes(b'{"nonce": "\xff\xfe"}\n')
    return graph.forward


@register_backend
def sends_no_nonce(graph, inputs):
    _write_to_pipes(b'{"event": "result", "outcome": "ok", "step": "exit"}\n')
    return graph.forward


@register_backend
def sends_a_deep_line(graph, inputs):
    _write_to_pipes(b"[" * 200_000 + b"\n")
    return graph.forward
