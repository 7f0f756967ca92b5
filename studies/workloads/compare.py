"""Seconds of the first calls of a program and of those after them, where shapes differ.

Compared are eager mode, what people write (plain ``torch.compile()``, ``dynamic=True``,
``mode="reduce-overhead"`` on a GPU, padding to powers of two where the workload has ``bucket``),
what ``autocompile tune`` picks for one shape, and what it picks for the workload, with
``--horizon`` too. Picks are applied by the file that is exported. Each program runs in fresh
processes of its own, in turns, with an empty compiler cache, on sizes that no tune has seen.

    python studies/workloads/compare.py detector --budget 2m --processes 3
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECORD = HERE / "workloads.json"
_LONGEST_S = 120  # of a program
BY_HAND: dict[str, dict[str, Any]] = {
    "eager": {},
    "plain": {"compile": {}},
    "dynamic=True": {"compile": {"dynamic": True}},
    "reduce-overhead": {"compile": {"mode": "reduce-overhead"}},
    "powers of two": {
        "compile": {"dynamic": False, "recompile_limit": 64},
        "bucket": True,
    },
}
ONE_SHAPE = """import sys
sys.path.insert(0, {folder!r})
from {workload} import *
from {workload} import USUAL, batch
del get_calls
def get_inputs(): return batch(USUAL)
"""


def call_of(workload: Any, how: dict[str, Any], device: str) -> Callable[[Any], Any]:
    """What a program does with the inputs of one call: a forward pass or a training step."""
    import torch

    import autocompile

    torch.manual_seed(0)
    model, phase, tuned = workload.get_model().to(device), workload.PHASE, None
    if "tuned" in how:
        tuned = json.loads(Path(how["tuned"]).read_text())["phases"].get(phase)
    is_whole = bool(tuned) and tuned[0]["config"].get("scope") == "step"
    pad = workload.bucket if how.get("bucket") else lambda inputs: inputs

    def forward(inputs: Any) -> Any:
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)

    if "compile" in how:
        model = torch.compile(model, **how["compile"])
    if phase == "forward":
        model.eval()
        if tuned:
            autocompile.apply(model, how["tuned"], phase)
        return torch.no_grad()(lambda inputs: forward(pad(inputs)))

    optimizer = workload.get_optimizer(model)

    def step(inputs: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = workload.get_loss(forward(inputs), inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    model.train()
    if tuned:
        what = step if is_whole else model
        applied = autocompile.apply(what, how["tuned"], phase, optimizer=optimizer)
        return applied if is_whole else step
    return step


def run_one(name: str, how: dict[str, Any], seed: int, options: Any) -> dict[str, Any]:
    """Seconds of the calls of one program in this process."""
    import torch

    workload, device = importlib.import_module(name), torch.device(options.device)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    @functools.cache  # values make no difference, and thousands of batches may not fit a GPU
    def inputs_of(size: Any) -> Any:
        batch = workload.batch(size)
        return torch.utils._pytree.tree_map(lambda x: x.to(device), batch)

    sizes = workload.sizes(options.first + options.next, seed)
    calls = [inputs_of(size) for size in sizes]
    call = call_of(workload, how, options.device)
    times = []
    for part in (calls[: options.first], calls[options.first :]):
        synchronize()
        began = time.perf_counter()
        for inputs in part:
            call(inputs)
        synchronize()
        times.append(round(time.perf_counter() - began, 4))
    return {"first_s": times[0], "next_s": times[1]}


def in_process(command: list[str]) -> dict[str, Any]:
    """What a process says in its last line, whose compiler cache is empty."""
    with tempfile.TemporaryDirectory() as cache:
        caches = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache}
        try:
            done = subprocess.run(
                [sys.executable, *command],
                env={**os.environ, **caches},
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"it did not end in {_LONGEST_S} s"}
    if done.returncode:
        return {"error": done.stderr.strip()[-300:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def pick(target: Path, folder: Path, *options: str) -> tuple[Path, dict[str, Any]]:
    """What a tune picks: the exported file, and what the report says of it."""
    autocompile, file = [sys.executable, "-m", "autocompile"], folder / "tuned.json"
    tune = [*autocompile, "tune", str(target), "--run-dir", str(folder), *options]
    subprocess.run(tune, stdin=subprocess.DEVNULL, check=True)
    export = [*autocompile, "export", str(folder), "-o", str(file)]
    subprocess.run(export, stdin=subprocess.DEVNULL, check=True)
    (phase,) = json.loads((folder / "report.json").read_text())["phases"].values()
    best, word = phase["answer"]["best"], phase["answer"]["confidence"]["word"]
    speedup = [round(best["speedup"][name], 4) for name in ("value", "low", "high")]
    return file, {"label": best["label"], "speedup": speedup, "confidence": word}


def machine(device: str) -> dict[str, str]:
    import torch

    name = torch.cuda.get_device_name(device) if device != "cpu" else "a CPU"
    return {"machine": f"{name}, {os.cpu_count()} cores", "torch": torch.__version__}


def record(name: str, found: dict[str, Any]) -> None:
    """Replace one entry of the JSON."""
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    RECORD.write_text(json.dumps({**known, name: found}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=("encoder", "detector", "last_batch"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", default="5m", help="of each tune")
    parser.add_argument("--processes", type=int, default=3, help="of each program")
    parser.add_argument("--first", type=int, default=200, help="calls, with compiling")
    parser.add_argument("--next", type=int, default=2000, help="calls after them")
    parser.add_argument("--one", help="run one program (for the script itself)")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if options.one:
        print(json.dumps(run_one(options.workload, *json.loads(options.one), options)))
        return
    workload, is_gpu = (
        importlib.import_module(options.workload),
        options.device != "cpu",
    )
    left_out = {"powers of two"} if not hasattr(workload, "bucket") else set()
    left_out |= set() if is_gpu else {"reduce-overhead"}
    programs = {name: how for name, how in BY_HAND.items() if name not in left_out}
    calls = ["--first", str(options.first), "--next", str(options.next)]
    data: dict[str, Any] = {
        **machine(options.device),
        "calls": [options.first, options.next],
        "budget": options.budget,
        "picks": {},
        "seconds": {},
    }
    common = ["--device", options.device, "--phase", workload.PHASE, "--wait"]
    common += ["--budget", options.budget]
    with tempfile.TemporaryDirectory() as folder:
        one, all_of = Path(folder) / "one.py", HERE / f"{options.workload}.py"
        one.write_text(ONE_SHAPE.format(folder=str(HERE), workload=options.workload))
        for name, target, more in (
            ("pick of one shape", one, []),
            ("pick of the workload", all_of, []),
            ("pick with horizon", all_of, ["--horizon", str(options.first)]),
        ):
            run = Path(folder) / str(len(programs))
            file, data["picks"][name] = pick(target, run, *common, *more)
            programs[name] = {"tuned": str(file)}
        # In turns, so that load affects all alike.
        for seed in range(10, 10 + options.processes):
            for name, how in programs.items():
                command = [
                    __file__,
                    options.workload,
                    "--device",
                    options.device,
                    *calls,
                ]
                seconds = in_process([*command, "--one", json.dumps([how, seed])])
                data["seconds"].setdefault(name, []).append(seconds)
                print(f"{name:24}", seconds, flush=True)
    record(f"{options.workload}, {options.device.split(':')[0]}", data)


if __name__ == "__main__":
    main()
