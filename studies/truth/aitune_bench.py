"""The same choice by NVIDIA AITune 0.5.0, on the settings of the MLP.

    python -m venv --system-site-packages aitune-venv       # made with a python that has torch
    aitune-venv/bin/pip install --no-deps aitune==0.5.0 nvtx dill tabulate pandas "wrapt~=2.0" \\
        psutil
    aitune-venv/bin/python studies/truth/aitune_bench.py --noise quiet --count 10
    aitune-venv/bin/python studies/truth/aitune_bench.py --noise noisy --count 10

AITune is meant for GPUs and imports TensorRT and its kin, whatever is tuned; modules of that kind
that are not here are replaced by empty ones, which nothing below uses. Each run is a fresh process
with empty caches that tunes with ``MaxThroughputStrategy`` at one batch size. AITune is then told
that shapes are static, so that ``dynamic=None`` stays what the truth has; with
``--batch-sizes 32,64`` it also sees a second size first, as its documentation recommends. Results
go to ``cpu/aitune.json``; ``--count`` is about all that are there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from models import EAGER, HERE, MODELS
from store import append, last_line, load, neighbour

sys.path.insert(0, str(HERE.parent / "peers"))
from tools import Empty

MODEL = "mlp"
GPU_ONLY = ("modelopt", "polygraphy", "pynvml", "tensorrt", "torch_tensorrt", "torchao")


def tune(batch_sizes: list[int], seed: int) -> dict[str, Any]:
    """In a process of its own: one run of AITune."""
    sys.meta_path.insert(
        0, Empty(tuple(n for n in GPU_ONLY if not importlib.util.find_spec(n)))
    )
    import aitune.torch as ait
    import mlp
    import torch
    from aitune.torch.backend import (
        TorchInductorJitBackend,
        TorchInductorJitBackendConfig,
    )
    from aitune.torch.task.profiling import ProfilingConfig

    named = MODELS[MODEL].settings["cpu"]
    backends = {
        name: TorchInductorJitBackend(TorchInductorJitBackendConfig(**kwargs))
        for name, kwargs in named.items()
    }
    names = {backend.describe(): name for name, backend in backends.items()}
    torch.manual_seed(seed)
    strategy = ait.MaxThroughputStrategy(
        list(backends.values()),
        profiling_config=ProfilingConfig(batch_sizes=[batch_sizes[-1]]),
    )
    module = ait.Module(mlp.get_model().eval(), MODEL, strategy=strategy)
    sample = mlp.get_inputs(1)[0][0]
    began = time.monotonic()
    ait.tune(
        module,
        sample,
        batch_sizes=batch_sizes,
        device="cpu",
        ignore_failing_modules=False,
    )
    wall_s = time.monotonic() - began
    found = {
        names[r.backend_description]: round(float(r.speedup), 5)
        for r in strategy.perf_validation_results
    }
    (chosen,) = module.module.backends.values()
    pick = names.get(chosen.describe(), EAGER)
    return {
        "pick": pick,
        "speedup": [found.get(pick, 1.0)],
        "all": found,
        "threads": torch.get_num_threads(),
        "wall_s": round(wall_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--noise", choices=("quiet", "noisy"), default="quiet")
    parser.add_argument(
        "--count", type=int, default=10, help="of runs, those there included"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="seed; without those before it"
    )
    parser.add_argument("--batch-sizes", default=str(MODELS[MODEL].batch_size))
    parser.add_argument(
        "--folder", type=Path, help="for the JSON; beside this file if left out"
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = [int(size) for size in args.batch_sizes.split(",")]
    if args.one is not None:
        print(json.dumps(tune(sizes, args.one)), flush=True)
        return
    path = (args.folder or HERE / "cpu") / "aitune.json"
    series = {
        "method": "AITune",
        "model": MODEL,
        "noise": args.noise,
        "batch_sizes": sizes,
    }
    there = {row["seed"] for row in load(path) if series.items() <= row.items()}
    for seed in sorted({*range(args.first, args.count)} - there):
        with (
            tempfile.TemporaryDirectory(prefix="truth-") as cache,
            neighbour(args.noise, seed),
        ):
            places = {
                "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
                "AITUNE_CACHE_DIR": cache,
            }
            command = [sys.executable, __file__, "--one", str(seed)]
            row = last_line([*command, "--batch-sizes", args.batch_sizes], places, 900)
        append(path, "cpu", {**series, "seed": seed, **row})
        said = (
            row.get("error")
            or f"{row['pick']} {row['speedup'][0]}, {row['wall_s']:.0f} s"
        )
        print(f"AITune {args.noise} {seed}: {said}", flush=True)


if __name__ == "__main__":
    main()
