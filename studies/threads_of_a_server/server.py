"""A server whose threads share a model with settings: is memory flat, is anything compiled again?

    python studies/threads_of_a_server/server.py server --minutes 20
    python studies/threads_of_a_server/server.py frozen --minutes 5      # constant weights
    python studies/threads_of_a_server/server.py                         # the table, from the JSON

It applies a file of settings as a user does, each of its threads with one thread of torch, and adds
what it sees every ten seconds to ``two_cores.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "two_cores.json"
EVERY_S = 10.0  # between two samples
BATCH_SIZES = (1, 2, 3, 4, 8, 16)
THREADS, PAUSE_S = 4, 0.002
COMPARED = 20  # one of so many calls is compared with an eager model
REPLACED_S = {"server": 1.0, "frozen": 5.0}  # new weights each time
FLAT_MB = 5.0  # in ten minutes, fitted to the last three quarters
TELLS_S = 300.0  # a shorter run does not tell whether memory is flat
OFF = 1e-4  # of the largest output


class Weights:
    """Calls go together; weights are replaced when none runs."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._calls, self._is_replaced = 0, False

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._is_replaced)
            self._calls += 1
        try:
            yield
        finally:
            with self._free:
                self._calls -= 1
                self._free.notify_all()

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        with self._free:
            self._is_replaced = True
            self._free.wait_for(lambda: not self._calls)
        try:
            yield
        finally:
            with self._free:
                self._is_replaced = False
                self._free.notify_all()


def network() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    ).eval()


def new_weights(seed: int) -> dict[str, Any]:
    """Other in each value, as those of another training."""
    import torch

    draw = torch.Generator().manual_seed(seed)

    def drawn(name: str, x: Any) -> Any:
        if not x.is_floating_point():
            return x.clone()
        value = torch.randn(x.shape, generator=draw)
        if name.endswith("running_var"):
            return value.abs() + 0.5
        return value / max(1, x[0].numel() if x.dim() > 1 else 1) ** 0.5

    return {name: drawn(name, x) for name, x in network().state_dict().items()}


def with_settings(model: Any, freezing: bool) -> None:
    """Apply a file as ``autocompile export -o`` writes it."""
    import torch

    import autocompile
    from autocompile.runtime.machine import describe
    from autocompile.settings.config import CompileConfig
    from autocompile.settings.tuned import Choice, Tuned, TunedSet

    config = CompileConfig(threads=1, memory_format="channels_last", freezing=freezing)
    choice = Choice(config, 8, {"value": 1.0, "low": 1.0, "high": 1.0}, 3)
    tuned = Tuned({"forward": (choice,)}, describe(torch.device("cpu")))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tuned.json"
        path.write_text(TunedSet.read(tuned).to_json(), "utf-8")
        autocompile.apply(model, path)


def serve(program: str, minutes: float) -> dict[str, Any]:
    """Four threads call one model with six batch sizes while its weights are replaced."""
    import psutil
    import torch
    from torch._dynamo.utils import counters

    torch.set_num_threads(1)
    began, end = time.monotonic(), time.monotonic() + 60 * minutes
    model, reference = network(), network()
    reference.load_state_dict(model.state_dict())
    with_settings(model, freezing=program == "frozen")
    # In one thread: several that miss a program would each compile it.
    with torch.no_grad():
        for size in (*BATCH_SIZES, *BATCH_SIZES):
            model(torch.randn(size, 3, 32, 32))
    weights, over = Weights(), threading.Event()
    calls, checked, off = [0] * THREADS, [0] * THREADS, [0.0] * THREADS
    errors: list[str] = []

    def call(number: int) -> None:
        torch.set_num_threads(1)
        draw = torch.Generator().manual_seed(number)
        try:
            while not over.is_set():
                size = int(torch.randint(len(BATCH_SIZES), (), generator=draw))
                x = torch.randn(BATCH_SIZES[size], 3, 32, 32, generator=draw)
                with torch.no_grad(), weights.in_use():
                    got = model(x)
                    if calls[number] % COMPARED == 0:
                        want = reference(x)
                        apart = float((got - want).abs().max() / want.abs().max())
                        off[number] = max(off[number], apart)
                        checked[number] += 1
                calls[number] += 1
                time.sleep(PAUSE_S)
        except Exception as error:
            errors.append(f"thread {number}: {type(error).__name__}: {error}")
            over.set()

    samples: list[dict[str, Any]] = []

    def look() -> None:
        rss_mb = psutil.Process().memory_info().rss / 2**20
        graphs = int(counters["stats"]["unique_graphs"])
        s = round(time.monotonic() - began, 1)
        samples.append({"s": s, "rss_mb": round(rss_mb, 2), "graphs": graphs})
        print(samples[-1], file=sys.stderr, flush=True)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(THREADS)]
    look()
    for thread in threads:
        thread.start()
    replaced = 0
    while time.monotonic() < end and not over.is_set():
        time.sleep(REPLACED_S[program])
        fresh = new_weights(replaced)
        with weights.replaced():
            for each in (model, reference):
                each.load_state_dict(fresh)
        replaced += 1
        if time.monotonic() - began > samples[-1]["s"] + EVERY_S:
            look()
    over.set()
    for thread in threads:
        thread.join()
    look()
    return {
        "calls": sum(calls),
        "checked": sum(checked),
        "replaced": replaced,
        "outputs_off": max(off),
        "errors": errors,
        "samples": samples,
    }


def slope(samples: list[dict[str, Any]]) -> float:
    """By how many MB memory rises in ten minutes, fitted to the last three quarters."""
    import numpy as np

    late = [x for x in samples if x["s"] >= samples[-1]["s"] / 4]
    seconds, rss_mb = [x["s"] for x in late], [x["rss_mb"] for x in late]
    return 600 * float(np.polyfit(seconds, rss_mb, 1)[0])


def line(name: str, run: dict[str, Any]) -> str:
    """A row of the table."""
    first, *_, last = samples = run["samples"]
    quarter = next(x for x in samples if x["s"] >= last["s"] / 4)
    rise = slope(samples)
    memory = f"{rise:+.1f} MB: {'flat' if rise <= FLAT_MB else '**rises**'}"
    if last["s"] < TELLS_S:
        memory = "too short to tell"
    more = last["graphs"] - first["graphs"]
    is_right = run["outputs_off"] <= OFF and not run["errors"]
    return (
        f"| {name} | {last['s'] / 60:.0f} | {run['calls']:,} | "
        f"{quarter['rss_mb']:.1f}, {last['rss_mb']:.1f} MB | {memory} | "
        f"{first['graphs']}, then {more or 'none'} more | "
        f"{'yes' if is_right else '**no**'}: outputs {run['outputs_off']:.1e} off |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("program", nargs="?", choices=REPLACED_S)
    parser.add_argument("--minutes", type=float, default=20.0)
    asked = parser.parse_args()
    known = json.loads(PATH.read_text("utf-8"))
    if asked.program:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            known["runs"][asked.program] = serve(asked.program, asked.minutes)
        PATH.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    for name, run in known["runs"].items():
        print(line(name, run))


if __name__ == "__main__":
    main()
