"""Seconds of the first 200 calls and of the 2,000 after them, where lengths differ.

Compared are eager mode, what people write (plain ``torch.compile()``, ``dynamic=True``, buckets of
powers of two, each a static program), what ``autocompile tune``
picks for one length, and what it picks for the workload with each ``--horizon``. Each runs in fresh
processes of its own, without autocompile, on lengths that no tune has seen.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FIRST, NEXT = 200, 2000
BY_HAND: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "plain": {},
    "dynamic=True": {"dynamic": True},
    "powers of two": {"dynamic": False, "recompile_limit": 64, "buckets": "powers"},
}


def run_one(arguments: dict[str, Any] | None, seed: int) -> dict[str, float]:
    """Seconds of the calls of one program; the compiler's cache is empty."""
    import torch

    sys.path.insert(0, str(HERE))
    from encoder import batch, get_model, lengths, pad

    torch.manual_seed(0)
    model: Any = get_model().eval()
    given = dict(arguments or {})
    buckets = given.pop("buckets", None)
    if "threads" in given:
        torch.set_num_threads(given.pop("threads"))
    given.pop("freezing", None) and setattr(torch._inductor.config, "freezing", True)
    if arguments is not None:
        model = torch.compile(model, **given)
    calls = [batch(length) for length in lengths(FIRST + NEXT, seed)]
    seconds = []
    with torch.no_grad():
        for inputs in calls:
            began = time.perf_counter()
            if buckets:
                size = 1 << (inputs["ids"].shape[1] - 1).bit_length()
                inputs = pad(inputs, size)
            model(**inputs)
            seconds.append(time.perf_counter() - began)
    return {"first_s": sum(seconds[:FIRST]), "next_s": sum(seconds[FIRST:])}


def in_process(arguments: dict[str, Any] | None, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--one", json.dumps([arguments, seed])],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def pick(target: str, options: list[str], folder: Path) -> dict[str, Any]:
    """What a tune picks, as arguments of :func:`run_one`, and what it says."""
    command = [sys.executable, "-m", "autocompile", "tune", str(HERE / target)]
    command += ["--phase", "forward", "--run-dir", str(folder), *options]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    print(done.stdout + done.stderr[-3000:], flush=True)
    phase = json.loads((folder / "report.json").read_text())["phases"]["forward"]
    best = phase["best"]
    config = best["config"]
    arguments: dict[str, Any] | None = None
    if config["backend"] != "eager":
        arguments = {"backend": config["backend"], "dynamic": config["dynamic"]}
        if config["mode"] != "default":
            arguments["mode"] = config["mode"]
        if config["options"]:
            arguments["options"] = dict(config["options"])
        for name in ("recompile_limit", "fullgraph", "threads", "freezing"):
            if config.get(name):
                arguments[name] = config[name]
    elif config.get("threads"):
        arguments = {"backend": "eager", "threads": config["threads"]}
    return {
        "arguments": arguments,
        "config": config,
        "speedup": best["speedup"],
        "confidence": phase["confidence"],
        "wall_s": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help="run one program (for the script itself)")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--to", type=Path, default=HERE / "lengths.json")
    options = parser.parse_args()
    if options.one:
        arguments, seed = json.loads(options.one)
        print(json.dumps(run_one(arguments, seed)))
        return
    import torch

    data: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "picks": {},
        "seconds": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, target, more in (
            ("pick of one length", "single.py", []),
            ("pick of the workload", "encoder.py", []),
            (f"pick, horizon {FIRST}", "encoder.py", ["--horizon", str(FIRST)]),
        ):
            where = Path(folder) / name.replace(" ", "_").replace(",", "")
            data["picks"][name] = pick(target, ["--budget", options.budget, *more], where)
            print(name, data["picks"][name], flush=True)
    variants = {**BY_HAND, **{name: each["arguments"] for name, each in data["picks"].items()}}
    for seed in range(10, 10 + options.processes):  # in turns, so that load affects all alike
        for name, arguments in variants.items():
            found = in_process(arguments, seed)
            data["seconds"].setdefault(name, []).append(found)
            print(f"{name:28} {found['first_s']:8.2f} {found['next_s']:8.2f} s", flush=True)
    options.to.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
