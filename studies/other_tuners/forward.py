"""A forward pass: autocompile, NVIDIA AITune 0.6 and torch's own ``max-autotune``, several runs.

    pip install --no-deps aitune==0.6.0 nvtx dill tabulate pandas "wrapt~=2.0" autowrapt
    python studies/other_tuners/forward.py small_cnn --runs 5 --to studies/other_tuners/cpu/small_cnn.json

Each run of a tool is a process of its own with empty caches. AITune chooses among eager mode and
the modes of Inductor (``MaxThroughputStrategy``), autocompile as ``tune`` does by itself. Then one
process builds every pick from scratch and times them in turns: 60 rounds of at least 0.1 s each. A
figure's error is that of the speed-up that a tool reports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tools import TARGETS, aitune, part, target

ROUNDS, ROUND_S, WARM = 60, 0.1, 10
# glibc gives freed memory back to the system by itself, or keeps it; each has a reference.
MEMORY = {
    "memory given back": {},
    "memory kept": {
        "MALLOC_TRIM_THRESHOLD_": "2000000000",
        "MALLOC_MMAP_THRESHOLD_": "33554432",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--budget", type=int, help="seconds of autocompile; its own if left out"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--picks", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        found = {
            "aitune": lambda: aitune(asked.model, asked.device),
            "autocompile": lambda: autocompile(asked.model, asked.device, asked.budget),
            "reference": lambda: reference(
                asked.model, asked.device, json.loads(asked.picks)
            ),
        }[asked.one]()
        print("\n" + json.dumps(found))
        return
    common = [asked.model, "--device", asked.device, "--to", str(asked.to)]
    common += ["--budget", str(asked.budget)] if asked.budget else []
    rows: list[dict[str, Any]] = []
    for run in range(asked.runs):
        for tool in ("autocompile", "aitune"):
            with tempfile.TemporaryDirectory(prefix="tuners-") as cache:
                os.environ.update(TORCHINDUCTOR_CACHE_DIR=cache, AITUNE_CACHE_DIR=cache)
                rows.append(
                    {"tool": tool, "run": run, **part(__file__, *common, "--one", tool)}
                )
            print(rows[-1], flush=True)
    picks = {json.dumps(row["pick"]): row["pick"] for row in rows if "pick" in row}
    found: dict[str, Any] = {"model": asked.model, "device": asked.device, "rows": rows}
    for memory, variables in MEMORY.items():
        with tempfile.TemporaryDirectory(prefix="tuners-") as cache:
            os.environ.update(TORCHINDUCTOR_CACHE_DIR=cache, **variables)
            words = ["--one", "reference", "--picks", json.dumps([*picks.values()])]
            found[memory] = timed = part(__file__, *common, *words)
        print(memory, timed, flush=True)
        for row in rows:
            true = timed.get("speedup", {}).get(json.dumps(row.get("pick")))
            if true and row.get("speedup"):
                row[f"error, {memory}"] = round(abs(row["speedup"] / true - 1), 4)
    asked.to.parent.mkdir(parents=True, exist_ok=True)
    asked.to.write_text(json.dumps(found, indent=1) + "\n")


def autocompile(name: str, device: str, budget_s: int | None) -> dict[str, Any]:
    from autocompile import tune

    with tempfile.TemporaryDirectory() as folder:
        result = tune(
            TARGETS / f"{name}.py",
            phases=("forward",),
            budget_s=budget_s,
            device=device,
            run_dir=Path(folder) / "run",
            progress="none",
        )
    answer = result.report.phases["forward"].answer
    assert answer.best
    pick = {k: v for k, v in answer.best.config.to_dict().items() if v}
    interval = answer.best.speedup
    known = {"speedup": interval.value, "low": interval.low, "high": interval.high}
    return {"pick": pick, **known, "confidence": answer.confidence}


def reference(name: str, device: str, picks: list[Any]) -> dict[str, Any]:
    """Milliseconds of a call of each, built from scratch and timed in turns."""
    import torch

    import autocompile
    from autocompile.settings.config import CompileConfig
    from autocompile.settings.tuned import Choice, Tuned, TunedSet

    module = target(name)
    torch.manual_seed(0)
    x = module.get_inputs().to(device)
    state = module.get_model().state_dict()
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None

    def built(pick: Any) -> Any:
        model = module.get_model()
        model.load_state_dict(state)
        model = model.to(device).eval()
        if isinstance(pick, dict):
            choice = Choice(
                CompileConfig.from_dict({**CompileConfig().to_dict(), **pick})
            )
            settings = TunedSet((Tuned({"forward": (choice,)}, {}, name),))
            path = Path(tempfile.mkdtemp()) / "tuned.json"
            path.write_text(settings.to_json())
            return autocompile.apply(model, path, "forward") or model
        if pick == "eager":
            return model
        return torch.compile(model, mode=None if pick == "default" else pick)

    torch._dynamo.config.recompile_limit = 1000  # they share the code of one class
    every = {json.dumps(p): p for p in ("eager", "default", "max-autotune", *picks)}
    sides = {key: built(pick) for key, pick in every.items()}
    times: dict[str, list[float]] = {key: [] for key in sides}
    counts = {}
    with torch.no_grad():
        for key, side in sides.items():
            for _ in range(WARM):
                side(x)
            wait()
            began = time.perf_counter()
            for _ in range(5):
                side(x)
            wait()
            counts[key] = max(3, int(ROUND_S * 5 / (time.perf_counter() - began)))
        for _ in range(ROUNDS):
            for key, side in sides.items():
                side(x)
                wait()
                began = time.perf_counter()
                for _ in range(counts[key]):
                    side(x)
                wait()
                times[key].append((time.perf_counter() - began) / counts[key] * 1e3)
    ms = {key: statistics.median(values) for key, values in times.items()}
    eager = ms[json.dumps("eager")]
    return {
        "ms": {key: round(value, 4) for key, value in ms.items()},
        "speedup": {key: round(eager / value, 4) for key, value in ms.items()},
        "torch": torch.__version__,
        "machine": torch.cuda.get_device_name() if device != "cpu" else "cpu",
    }


if __name__ == "__main__":
    main()
