"""A server whose threads share a model with settings: is memory flat, is anything compiled again.

    python studies/soak/soak.py server
    python studies/soak/soak.py server --minutes 3 --name server_after
    python studies/soak/soak.py frozen --minutes 5      # with weights as constants
    python studies/soak/soak.py table                   # verdicts, from the JSON

It applies a file of settings as a user does, with one thread of torch in each of its threads, and
writes what it sees every ten seconds to ``cpu/<name>.json``. Verdicts are made of that when they are
read.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "truth"))

EVERY_S = 10.0
# Rules of the verdicts.
FLAT_MB = 5.0  # in ten minutes, fitted to the last three quarters
OFF = 1e-4  # of the largest output

BATCH_SIZES = (1, 2, 3, 4, 8, 16)
THREADS, PAUSE_S, CHECKED = 4, 0.002, 20  # one of so many calls is compared
REPLACED_S = {"server": 1.0, "frozen": 5.0}


class Recorder:
    """What the process is like while a program runs."""

    def __init__(self, minutes: float) -> None:
        self.began, self.minutes = time.monotonic(), minutes
        self.samples: list[dict[str, Any]] = []
        self._next = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.began > 60 * self.minutes

    def look(self, steps: int, **more: Any) -> None:
        """Take a sample if the last is ten seconds old, and one at the end."""
        now = time.monotonic() - self.began
        if self.samples and now < self._next and not self.is_over:
            return
        self._next = now - now % EVERY_S + EVERY_S
        gc.collect()
        self.samples.append(
            {
                "s": round(now, 1),
                "steps": steps,
                "objects": len(gc.get_objects()),
                **memory(),
                **compiled(),
                **more,
            }
        )
        print(json.dumps(self.samples[-1]), file=sys.stderr, flush=True)


def memory() -> dict[str, float]:
    """Resident memory of this process and of those that it started, and its compiler's cache."""
    import psutil

    process = psutil.Process()
    children = 0
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            children += child.memory_info().rss
    cached = 0
    for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*"):
        with contextlib.suppress(OSError):  # a file of a compiler at work
            cached += path.stat().st_size
    return {
        "rss_mb": round(process.memory_info().rss / 2**20, 2),
        "children_mb": round(children / 2**20, 2),
        "cache_mb": round(cached / 2**20, 2),
    }


def compiled() -> dict[str, int]:
    """What torch has captured and compiled so far in this process."""
    from torch._dynamo import utils

    times = utils.compilation_time_metrics
    return {
        "graphs": int(utils.counters["stats"]["unique_graphs"]),
        "frames": int(utils.counters["frames"]["total"]),
        "inductor": len(times.get("compile_fx_inner", ())),
    }


def settings(folder: Path, **phases: Any) -> Path:
    """A file as ``autocompile export -o`` writes it: of each phase a config and a batch size."""
    import torch

    from autocompile.runtime.machine import describe
    from autocompile.settings.tuned import Choice, Tuned, TunedSet

    even = {"value": 1.0, "low": 1.0, "high": 1.0}
    choices = {name: (Choice(*given, even, 3),) for name, given in phases.items()}
    sizes = {name: size for name, (_, size) in phases.items() if size}
    tuned = Tuned(choices, describe(torch.device("cpu")), batch_sizes=sizes)
    path = folder / "tuned.json"
    path.write_text(TunedSet.read(tuned).to_json(), "utf-8")
    return path


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
    import torch

    layers = torch.nn
    return layers.Sequential(
        layers.Conv2d(3, 16, 3, padding=1),
        layers.BatchNorm2d(16),
        layers.ReLU(),
        layers.Conv2d(16, 32, 3, stride=2, padding=1),
        layers.BatchNorm2d(32),
        layers.ReLU(),
        layers.AdaptiveAvgPool2d(2),
        layers.Flatten(),
        layers.Linear(128, 10),
    ).eval()


def new_weights(seed: int) -> dict[str, Any]:
    """Of another training, so to speak: other in each value."""
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


def server(recorder: Recorder, folder: Path, program: str) -> dict[str, Any]:
    """Four threads call one model with six batch sizes while its weights are replaced."""
    import torch

    import autocompile
    from autocompile.settings.config import CompileConfig

    config = CompileConfig(
        threads=1, memory_format="channels_last", freezing=program == "frozen"
    )
    path = settings(folder, forward=(config, 8))
    model, reference = network(), network()
    reference.load_state_dict(model.state_dict())
    autocompile.apply(model, path)
    # In one thread: of several that miss a program, each would compile it and count as one of eight.
    with torch.no_grad():
        for size in (*BATCH_SIZES, *BATCH_SIZES):
            model(torch.randn(size, 3, 32, 32))
    weights, over = Weights(), threading.Event()
    calls, checks, worst = [0] * THREADS, [0] * THREADS, [0.0] * THREADS
    errors: list[str] = []

    def serve(number: int) -> None:
        torch.set_num_threads(1)
        draw = torch.Generator().manual_seed(number)
        try:
            while not over.is_set():
                size = int(torch.randint(len(BATCH_SIZES), (), generator=draw))
                x = torch.randn(BATCH_SIZES[size], 3, 32, 32, generator=draw)
                with torch.no_grad(), weights.in_use():
                    got = model(x)
                    if calls[number] % CHECKED == 0:
                        want = reference(x)
                        off = float((got - want).abs().max() / want.abs().max())
                        worst[number] = max(worst[number], off)
                        checks[number] += 1
                calls[number] += 1
                time.sleep(PAUSE_S)
        except Exception as error:
            errors.append(f"thread {number}: {type(error).__name__}: {error}")
            over.set()

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    replaced = 0

    def look() -> None:
        recorder.look(
            sum(calls), replaced=replaced, checked=sum(checks), off=max(worst)
        )

    while not (recorder.is_over or over.is_set()):
        look()
        time.sleep(REPLACED_S[program])
        fresh = new_weights(replaced)
        with weights.replaced():
            for each in (model, reference):
                each.load_state_dict(fresh)
        replaced += 1
    over.set()
    for thread in threads:
        thread.join()
    look()
    return {
        "settings": json.loads(path.read_text("utf-8"))["phases"],
        "calls": calls,
        "checked": checks,
        "replaced": replaced,
        "outputs_off": worst,
        "errors": errors,
    }


def slope(samples: list[dict[str, Any]], name: str) -> float:
    """By how much it rises in ten minutes, fitted to the last three quarters."""
    import numpy as np

    late = [x for x in samples if x["s"] >= samples[-1]["s"] / 4]
    return 600 * float(
        np.polyfit([x["s"] for x in late], [x[name] for x in late], 1)[0]
    )


def table() -> None:
    """Print what each program showed."""
    print(
        "| run | minutes | calls | memory at 1/4 and at the end | slope in 10 minutes | "
        "graphs before it serves | as eager mode |"
    )
    print("|---|---|---|---|---|---|---|")
    for path in sorted((HERE / "cpu").glob("*.json")):
        found = json.loads(path.read_text("utf-8"))
        samples, last = found["samples"], found["samples"][-1]
        quarter = next(x for x in samples if x["s"] >= last["s"] / 4)
        rise = slope(samples, "rss_mb")
        flat = "flat" if rise <= FLAT_MB else "**rises**"
        more = last["graphs"] - samples[0]["graphs"]
        again = f"{samples[0]['graphs']}, then {more or 'none'} more"
        print(
            f"| {path.stem} | {last['s'] / 60:.0f} | {last['steps']:,} | "
            f"{quarter['rss_mb']:.1f}, {last['rss_mb']:.1f} MB | {rise:+.1f} MB: {flat} | "
            f"{again} | {likeness(found['found'])} |"
        )


def likeness(done: dict[str, Any]) -> str:
    """How near results are to those of eager mode, and whether that is near enough."""
    off = max(done["outputs_off"])
    is_right = off <= OFF and not done["errors"]
    return f"{'yes' if is_right else '**no**'}: outputs {off:.1e} off"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("program", choices=[*REPLACED_S, "table"])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--name", help="of the JSON")
    asked = parser.parse_args()
    if asked.program == "table":
        table()
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
        import torch
        from store import commit, machine

        torch.set_num_threads(1)
        recorder = Recorder(asked.minutes)
        found = server(recorder, folder, asked.program)
        told = {
            "schema": 1,
            "program": asked.program,
            "machine": machine("cpu"),
            "commit": commit(),
            "samples": recorder.samples,
            "found": found,
        }
    text = json.dumps({k: v for k, v in told.items() if k != "samples"}, indent=1)
    rows = ",\n  ".join(json.dumps(x) for x in recorder.samples)
    name = asked.name or asked.program
    path = HERE / "cpu" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{text[:-2]},\n "samples": [\n  {rows}\n ]\n}}\n', "utf-8")
    table()


if __name__ == "__main__":
    main()
