"""Runs trials in processes that make one after the other, each by the package's own worker.

A trial here is what the search asks of a child: eager mode, compile, verify, a moment of timing,
verify again. What tuning adds (an order of settings, quiet timing, races) is left out, so that
hundreds of settings are verified in minutes. Nothing here is imported by the package.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

_TRIAL_S = 150.0  # a trial that takes longer is ended with its process
_MOMENT = {"half_width": 0.5, "max_s": 0.05, "front_s": 0.05, "block_s": 0.005}


@dataclasses.dataclass(frozen=True)
class Task:
    """One setting of a target in a phase; ``about`` is what its row says besides."""

    target: str
    phase: str
    config: Mapping[str, Any]
    about: Mapping[str, Any]
    environment: Mapping[str, str]


def results(
    tasks: Sequence[Task], devices: Sequence[str], jobs: int, seed: int
) -> Iterator[dict[str, Any]]:
    """A row for each task; ``devices`` as ``cpu`` or ``cuda:1``, one for each job in turns."""
    free: queue.SimpleQueue[_Process] = queue.SimpleQueue()
    for number in range(jobs):
        free.put(_Process(devices[number % len(devices)], seed))

    def result(task: Task) -> dict[str, Any]:
        process = free.get()
        try:
            return process.result(task)
        finally:
            free.put(process)

    with ThreadPoolExecutor(jobs) as threads:
        for done in as_completed([threads.submit(result, task) for task in tasks]):
            yield done.result()
    for _ in range(jobs):
        free.get().end()


class _Process:
    """A child that makes trials until it crashes or hangs; then another takes its place."""

    def __init__(self, device: str, seed: int) -> None:
        self._kind, _, self._index = device.partition(":")
        self._seed = seed
        self._child: subprocess.Popen[str] | None = None

    def end(self) -> None:
        if self._child:
            self._child.kill()
            self._child.wait()
        self._child = None

    def _started(self, more: Mapping[str, str]) -> subprocess.Popen[str]:
        one_thread = {"OMP_NUM_THREADS": "1"} if self._kind == "cuda" else {}
        visible = {"CUDA_VISIBLE_DEVICES": self._index} if self._index else {}
        return subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **one_thread, **visible, **more},
        )

    def result(self, task: Task) -> dict[str, Any]:
        """The row of a task; a crash or a hang is one too."""
        self._child = child = self._child or self._started(task.environment)
        assert child.stdin
        assert child.stdout
        asked = dataclasses.asdict(task) | {"device": self._kind, "seed": self._seed}
        is_late = threading.Event()

        def late() -> None:
            is_late.set()
            child.kill()

        timer = threading.Timer(_TRIAL_S, late)
        timer.start()
        try:
            child.stdin.write(json.dumps(asked) + "\n")
            child.stdin.flush()
            told = child.stdout.readline()
        except OSError:
            told = ""
        timer.cancel()
        if told:
            return {**task.about, **json.loads(told)}
        self.end()
        return {**task.about, "outcome": "timeout" if is_late.is_set() else "crashed"}


# In the child --------------------------------------------------------------------------------


def serve() -> None:
    """Make a trial for each line of standard input; a line of standard output is its result."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what targets print is no result
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache" / "triton")
    for line in sys.stdin:
        print(json.dumps(_trial(json.loads(line), folder)), file=told, flush=True)


def _trial(asked: dict[str, Any], folder: Path) -> dict[str, Any]:
    import torch._dynamo
    from torch._dynamo.backends.registry import _COMPILER_FNS

    from autocompile.trial import worker

    os.environ.update(asked.pop("environment"))
    del asked["about"]
    torch._dynamo.list_backends(None)  # registers torch's own
    before, modules, path = set(_COMPILER_FNS), set(sys.modules), list(sys.path)
    torch._dynamo.reset()
    asked |= {"sides": [{"config": asked.pop("config")}]}
    # A model that has its own batch size ignores this one.
    asked |= {"kind": "trial", "number": 0, "batch_size": 4, "limits": _MOMENT}
    (folder / "request.json").write_text(json.dumps(asked))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        worker.run(str(folder), None, "")
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if "verification" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    for name in set(_COMPILER_FNS) - before:
        del _COMPILER_FNS[name]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    result = json.loads(printed.getvalue().splitlines()[-1])
    if result["outcome"] == "ok" and result.get("sides"):
        result = result["sides"][0]  # where the setting has failed, its own words
    said = {"outcome": result.get("outcome", "ok")}
    message = (result.get("message") or "").partition("\n")[0][:120]
    return {**said, "message": message} if message else said


if __name__ == "__main__":
    serve()
