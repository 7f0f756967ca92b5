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
import time
from collections.abc import Iterator, Mapping, Sequence
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
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def results(
    tasks: Sequence[Task], devices: Sequence[str], jobs: int, seed: int, ends: float
) -> Iterator[dict[str, Any]]:
    """A row for each task that has ended by ``ends`` (of ``time.monotonic``).

    ``devices``: one for each job in turns, as ``cpu`` or ``cuda:1``.
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    rows: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def work(number: int) -> None:
        with contextlib.ExitStack() as stack:
            device = devices[number % len(devices)]
            process = stack.enter_context(_Process(device, seed))
            while time.monotonic() < ends:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    break
                row = process.result(task, min(ends, time.monotonic() + _TRIAL_S))
                if row["outcome"] != "timeout" or time.monotonic() < ends:
                    rows.put(row)
        rows.put(None)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(jobs)]
    for thread in threads:
        thread.start()
    left = len(threads)
    while left:
        row = rows.get()
        if row is None:
            left -= 1
        else:
            yield row


class _Process:
    """A child that makes trials until it crashes or hangs; then another takes its place."""

    def __init__(self, device: str, seed: int) -> None:
        self._kind, _, self._index = device.partition(":")
        self._seed = seed
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
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

    def result(self, task: Task, ends: float) -> dict[str, Any]:
        """The row of a task; a crash or a hang is one too."""
        began, row = time.monotonic(), {**task.about, "config": dict(task.config)}
        self._child = child = self._child or self._started(task.environment)
        assert child.stdin
        assert child.stdout
        asked = {
            "target": task.target,
            "phase": task.phase,
            "config": dict(task.config),
            "device": self._kind,
            "seed": self._seed,
            "environment": dict(task.environment),
        }
        late = threading.Timer(max(0.0, ends - began), child.kill)
        late.start()
        try:
            child.stdin.write(json.dumps(asked) + "\n")
            child.stdin.flush()
            told = child.stdout.readline()
        except OSError:
            told = ""
        late.cancel()
        seconds = round(time.monotonic() - began, 2)
        if not told:
            is_late = time.monotonic() >= ends
            self._end()
            outcome = "timeout" if is_late else "crashed"
            return {**row, "outcome": outcome, "message": "", "seconds": seconds}
        return {**row, **json.loads(told), "seconds": seconds}


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

    from autocompile.protocol import requests
    from autocompile.trial import worker

    os.environ.update(asked.pop("environment"))
    torch._dynamo.list_backends(None)  # registers torch's own
    before, modules, path = set(_COMPILER_FNS), set(sys.modules), list(sys.path)
    torch._dynamo.reset()
    config = asked.pop("config")
    # Before a race was a trial with several sides, a request had one setting.
    has_sides = hasattr(requests.TrialRequest, "kind") and "sides" in (
        requests.TrialRequest.__dataclass_fields__
    )
    asked |= {"sides": [{"config": config}]} if has_sides else {"config": config}
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
    return {
        "outcome": _end_of(result, "outcome"),
        "message": _end_of(result, "message"),
    }


def _end_of(result: dict[str, Any], name: str) -> Any:
    """A fact of the setting where it has failed, else of the trial."""
    sides = result.get("sides") or [{}]
    if result["outcome"] == "ok" and sides[0].get("outcome", "ok") != "ok":
        return sides[0].get(name)
    return result.get(name)


if __name__ == "__main__":
    serve()
