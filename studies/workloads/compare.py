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
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
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
    model, phase, tuned = (
        workload.get_model().to(device),
        workload.PHASE,
        how.get("tuned"),
    )
    choices = (
        json.loads(Path(tuned).read_text())["phases"].get(phase) if tuned else None
    )
    is_whole = bool(choices) and choices[0]["config"].get("scope") == "step"
    pad = workload.bucket if how.get("bucket") else lambda inputs: inputs

    def forward(inputs: Any) -> Any:
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)

    if "compile" in how:
        model = torch.compile(model, **how["compile"])
    if phase == "forward":
        model.eval()
        if choices:
            autocompile.apply(model, tuned, phase)
        return torch.no_grad()(lambda inputs: forward(pad(inputs)))

    optimizer = workload.get_optimizer(model)

    def step(inputs: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = workload.get_loss(forward(inputs), inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    model.train()
    if choices:
        applied = autocompile.apply(
            step if is_whole else model, tuned, phase, optimizer=optimizer
        )
        return applied if is_whole else step
    return step


def run_one(
    name: str, how: dict[str, Any], seed: int, options: Any
) -> dict[str, float]:
    """Seconds of the calls of one program in this process."""
    import torch

    workload, device = importlib.import_module(name), torch.device(options.device)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    @functools.cache  # values make no difference, and thousands of batches may not fit a GPU
    def inputs_of(size: Any) -> Any:
        return torch.utils._pytree.tree_map(
            lambda x: x.to(device), workload.batch(size)
        )

    calls = [
        inputs_of(size) for size in workload.sizes(options.first + options.next, seed)
    ]
    call = call_of(workload, how, options.device)
    times = []
    for part in (calls[: options.first], calls[options.first :]):
        synchronize()
        began = time.perf_counter()
        for inputs in part:
            call(inputs)
        synchronize()
        times.append(time.perf_counter() - began)
    return {"first_s": times[0], "next_s": times[1]}


def in_process(how: dict[str, Any], seed: int, options: Any) -> dict[str, float]:
    """:func:`run_one` in a process of its own, whose compiler cache is empty."""
    one = [sys.executable, __file__, options.workload, "--one", json.dumps([how, seed])]
    one += [
        "--device",
        options.device,
        "--first",
        str(options.first),
        "--next",
        str(options.next),
    ]
    with tempfile.TemporaryDirectory() as cache:
        env = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TRITON_CACHE_DIR": cache,
        }
        try:
            done = subprocess.run(
                one, env=env, capture_output=True, text=True, timeout=_LONGEST_S
            )
        except subprocess.TimeoutExpired:
            return {"error": f"it did not end in {_LONGEST_S} s"}  # type: ignore[dict-item]
    if done.returncode:
        return {"error": done.stderr.strip()[-300:]}  # type: ignore[dict-item]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def pick(target: Path, more: list[str], folder: Path, options: Any) -> dict[str, Any]:
    """What a tune picks: the exported file as a program, and what the report says of it."""
    command = [
        sys.executable,
        "-m",
        "autocompile",
        "tune",
        str(target),
        "--device",
        options.device,
    ]
    command += ["--phase", importlib.import_module(options.workload).PHASE, "--wait"]
    command += ["--budget", options.budget, "--run-dir", str(folder), *more]
    began, quiet = time.monotonic(), {"stdin": subprocess.DEVNULL, "text": True}
    done = subprocess.run(command, capture_output=True, **quiet)  # type: ignore[call-overload]
    print(done.stdout + done.stderr[-3000:], flush=True)
    if done.returncode:
        raise SystemExit(
            f"the tune found nothing: a longer --budget than {options.budget}?"
        )
    (phase,) = json.loads((folder / "report.json").read_text())["phases"].values()
    answer = phase["answer"]
    found = {key: answer["best"][key] for key in ("config", "speedup")}
    found |= {
        "confidence": answer["confidence"],
        "wall_s": round(time.monotonic() - began, 1),
    }
    file = folder / "tuned.json"
    export = [
        sys.executable,
        "-m",
        "autocompile",
        "export",
        str(folder),
        "-o",
        str(file),
    ]
    done = subprocess.run(export, capture_output=True, **quiet)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {**found, "tuned": str(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=("encoder", "detector", "last_batch"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", default="5m", help="of each tune")
    parser.add_argument("--processes", type=int, default=3, help="of each program")
    parser.add_argument(
        "--first", type=int, default=200, help="calls, those that compile included"
    )
    parser.add_argument("--next", type=int, default=2000, help="calls after them")
    parser.add_argument(
        "--to", type=Path, help="WORKLOAD_DEVICE.json beside this script"
    )
    parser.add_argument("--one", help="run one program (for the script itself)")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if options.one:
        print(json.dumps(run_one(options.workload, *json.loads(options.one), options)))
        return
    import torch

    workload, is_gpu = (
        importlib.import_module(options.workload),
        options.device != "cpu",
    )
    of_machine = (
        torch.cuda.get_device_name(options.device) if is_gpu else platform.machine()
    )
    data: dict[str, Any] = {
        "machine": f"{of_machine}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "calls": {"first": options.first, "next": options.next},
        "budget": options.budget,
        "picks": {},
        "seconds": {},
    }
    left_out = {"powers of two"} if not hasattr(workload, "bucket") else set()
    left_out |= set() if is_gpu else {"reduce-overhead"}
    programs = {name: how for name, how in BY_HAND.items() if name not in left_out}
    with tempfile.TemporaryDirectory() as folder:
        one, all_of = Path(folder) / "one.py", HERE / f"{options.workload}.py"
        one.write_text(ONE_SHAPE.format(folder=str(HERE), workload=options.workload))
        for name, target, more in (
            ("pick of one shape", one, []),
            ("pick of the workload", all_of, []),
            (
                f"pick, horizon {options.first}",
                all_of,
                ["--horizon", str(options.first)],
            ),
        ):
            found = pick(target, more, Path(folder) / str(len(programs)), options)
            programs[name] = {"tuned": found.pop("tuned")}
            data["picks"][name] = found
        for seed in range(
            10, 10 + options.processes
        ):  # in turns, so that load affects all alike
            for name, how in programs.items():
                seconds = in_process(how, seed, options)
                data["seconds"].setdefault(name, []).append(seconds)
                print(
                    f"{name:24}", *(f"{k} {v}" for k, v in seconds.items()), flush=True
                )
    to = options.to or HERE / f"{options.workload}_{options.device.split(':')[0]}.json"
    to.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
