"""Do settings that autocompile takes for equal run alike, and such as it once took for equal?

    python studies/dimensions/pairs.py --device cpu           # about 40 minutes on two cores
    python studies/dimensions/pairs.py --device cuda

For each pair the setting that is left out and the one that answers for it are timed against eager
in fresh processes of both, in random order, by the same trial that ``tune`` runs, in which nothing
is merged. Beside it whether Inductor wrote the same code. Written to ``<device>/pairs.json``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from autocompile.config import CompileConfig
from autocompile.estimate.intervals import Interval, across_processes, ratio
from autocompile.record import Measurement

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIMITS = {"half_width": 0.005, "max_rounds": 96, "max_s": 3.0, "block_s": 0.02, "patience": 3.0}

TARGETS = {
    "tiny": ("studies/dimensions/targets/tiny.py", "forward", 4),
    "mlp": ("studies/truth/mlp.py", "forward", 64),
    "cnn, batch 1": ("examples/cnn.py", "forward", 1),
    "cnn, batch 16": ("examples/cnn.py", "forward", 16),
    "transformer": ("examples/transformer.py", "forward", 4),
    "lstm": ("studies/dimensions/targets/lstm_policy.py", "forward", 4),
    "adam": ("examples/adam.py", "optimizer_step", None),
}
PLAIN = CompileConfig()
GRAPHS = CompileConfig(mode="reduce-overhead")
TUNED = CompileConfig(mode="max-autotune-no-cudagraphs")
MOST = CompileConfig(mode="max-autotune")


def _full(config: CompileConfig) -> CompileConfig:
    return dataclasses.replace(config, fullgraph=True)


# Left out, and what answers for it. Of the last two only where Inductor writes the same code.
MERGED = {
    "fullgraph": (_full(PLAIN), PLAIN),
    "fullgraph, reduce-overhead": (_full(GRAPHS), GRAPHS),
    "max-autotune-no-cudagraphs, if the code is default's": (TUNED, PLAIN),
    "max-autotune, if the code is reduce-overhead's": (MOST, GRAPHS),
}
# Taken for equal once, and no longer: on the first target alone.
APART = {
    "dynamic=False and None": (CompileConfig(dynamic=False), PLAIN),
    "reduce-overhead and default": (GRAPHS, PLAIN),
}
PAIRS = {**MERGED, **APART}


def trial(
    target: str, phase: str, size: int | None, config: CompileConfig, device: str, seed: int
) -> dict[str, Any]:
    """One trial in a process and a compiler cache of its own."""
    with tempfile.TemporaryDirectory(prefix="pairs-") as scratch:
        request = {
            "kind": "trial",
            "number": seed,
            "target": str(ROOT / target),
            "device": device,
            "seed": 0,
            "phase": phase,
            "batch_size": size,
            "config": config.to_dict(),
            "limits": LIMITS,
            "repeats": 0,  # nothing but the numbers
        }
        Path(scratch, "request.json").write_text(json.dumps(request))
        cache = {"TORCHINDUCTOR_CACHE_DIR": scratch, "TRITON_CACHE_DIR": f"{scratch}/triton"}
        done = subprocess.run(
            [sys.executable, "-m", "autocompile.trial", scratch],
            env={**os.environ, **cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{") and '"outcome"' in line:
            return json.loads(line)
    return {"outcome": "crashed", "message": done.stderr[-300:]}


def measured(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The speed-up over processes, and the microseconds of a compiled call."""
    times = [r["measurement"] for r in results if r["outcome"] == "ok"]
    if not times:
        return {"error": results[0].get("message", "")}
    raw = [Measurement(**{name: tuple(kept) for name, kept in m.items()}) for m in times]
    intervals = [m.speedup for m in raw]
    whole = across_processes(intervals)
    call_us = sorted(m.compiled_call_s * 1e6 for m in raw)
    return {
        "speedup": [round(v, 5) for v in (whole.value, whole.low, whole.high)],
        "processes": [round(i.value, 5) for i in intervals],
        "call_us": round(call_us[len(call_us) // 2], 2),
        "codes": sorted({r.get("code", "") for r in results if r["outcome"] == "ok"}),
    }


def compare(name: str, words: str, device: str, processes: int) -> dict[str, Any]:
    pair = PAIRS[words]
    order = [side for side in (0, 1) for _ in range(processes)]
    random.Random(f"{name} {words}").shuffle(order)
    results: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for number, side in enumerate(order):
        results[side].append(trial(*TARGETS[name], pair[side], device, number))
    left_out, stands = (measured(side) for side in results)
    same = left_out.get("codes") == stands.get("codes")
    row = {"target": name, "pair": words, "is_merged": words in MERGED and same, "same_code": same}
    row |= {"left_out": left_out, "stands_for_it": stands}
    if "speedup" in left_out and "speedup" in stands:
        values = [Interval(*side["speedup"]) for side in (left_out, stands)]
        apart = ratio(*values)
        row["left_out_over_stand_in"] = [round(v, 5) for v in (apart.value, apart.low, apart.high)]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, default=3, help="of each setting")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, help="all if left out")
    parser.add_argument("--folder", type=Path, help="for the JSON; beside this file if left out")
    args = parser.parse_args()
    path = (args.folder or HERE / args.device) / "pairs.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    there = {(row["target"], row["pair"]) for row in found}
    for name in args.targets or TARGETS:
        for words in PAIRS if name == next(iter(TARGETS)) else MERGED:
            if (name, words) in there:
                continue
            found.append(compare(name, words, args.device, args.processes))
            path.write_text(json.dumps(found, indent=1) + "\n")
            print(name, words, found[-1].get("left_out_over_stand_in"), flush=True)


if __name__ == "__main__":
    main()
