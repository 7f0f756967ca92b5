"""A forward pass: autocompile, NVIDIA AITune 0.6 and torch's own ``max-autotune``, several runs.

    python studies/other_tuners/forward.py small_cnn      # or small_encoder

Each run of a tool is a process of its own with empty caches. AITune chooses among eager mode and
the modes of Inductor (``MaxThroughputStrategy``), autocompile as ``tune`` does by itself. Then one
process builds every pick from scratch and times them in turns: 60 rounds of at least 0.1 s each.
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

from tools import TARGETS, aitune, keep, part, target

RUNS, BUDGET_S = 5, 60
ROUNDS, ROUND_S, WARM = 60, 0.1, 10
# glibc gives freed memory back to the system by itself, or keeps it; each is timed.
MEMORY = {
    "memory given back": {},
    "memory kept": {
        "MALLOC_TRIM_THRESHOLD_": "2000000000",
        "MALLOC_MMAP_THRESHOLD_": "33554432",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", choices=("small_cnn", "small_encoder"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--picks", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        found = {
            "aitune": lambda: aitune(asked.model),
            "autocompile": lambda: autocompile(asked.model),
            "timed": lambda: timed(asked.model, asked.picks),
        }[asked.one]()
        print("\n" + json.dumps(found))
        return
    rows: list[dict[str, Any]] = []
    for run in range(RUNS):
        for tool in ("autocompile", "aitune"):
            told = in_empty_caches(asked.model, "--one", tool)
            rows.append({"tool": tool, "run": run, **told})
            print(rows[-1], flush=True)
    picks = {json.dumps(row["pick"]): row["pick"] for row in rows if "pick" in row}
    found = {"rows": rows}
    for memory, variables in MEMORY.items():
        os.environ.update(variables)
        words = ["--one", "timed", "--picks", json.dumps([*picks.values()])]
        found[memory] = in_empty_caches(asked.model, *words)
        print(memory, found[memory], flush=True)
    keep(asked.model, found)


def in_empty_caches(*words: str) -> dict[str, Any]:
    """What this script prints with these words."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=cache, AITUNE_CACHE_DIR=cache)
        return part(__file__, *words)


def autocompile(name: str) -> dict[str, Any]:
    from autocompile import tune

    with tempfile.TemporaryDirectory() as folder:
        result = tune(
            TARGETS / f"{name}.py",
            phases=("forward",),
            budget_s=BUDGET_S,
            device="cpu",
            run_dir=Path(folder) / "run",
            progress="none",
        )
    answer = result.report.phases["forward"].answer
    assert answer.best
    pick = {k: v for k, v in answer.best.config.to_dict().items() if v}
    gain = answer.best.speedup
    known = {"speedup": gain.value, "low": gain.low, "high": gain.high}
    return {"pick": pick, **known, "confidence": answer.confidence}


def built(module: Any, state: Any, pick: Any) -> Any:
    """A model as a tool picked it: a setting of autocompile, or a mode of Inductor."""
    import torch

    import autocompile
    from autocompile.settings.config import CompileConfig
    from autocompile.settings.tuned import Choice, Tuned, TunedSet

    model = module.get_model()
    model.load_state_dict(state)
    model.eval()
    if isinstance(pick, dict):
        config = CompileConfig.from_dict({**CompileConfig().to_dict(), **pick})
        settings = TunedSet((Tuned({"forward": (Choice(config),)}, {}, "model"),))
        path = Path(tempfile.mkdtemp()) / "tuned.json"
        path.write_text(settings.to_json())
        return autocompile.apply(model, path, "forward") or model
    if pick == "eager":
        return model
    return torch.compile(model, mode=None if pick == "default" else pick)


def timed(name: str, picks: list[Any]) -> dict[str, Any]:
    """Milliseconds of a call of each, built from scratch and timed in turns."""
    import torch

    torch._dynamo.config.recompile_limit = 1000  # they share the code of one class
    torch.manual_seed(0)
    module = target(name)
    x, state = module.get_inputs(), module.get_model().state_dict()
    every = {json.dumps(p): p for p in ("eager", "default", "max-autotune", *picks)}
    sides = {key: built(module, state, pick) for key, pick in every.items()}

    def seconds(side: Any, calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            side(x)
        return (time.perf_counter() - began) / calls

    times: dict[str, list[float]] = {key: [] for key in sides}
    with torch.no_grad():
        for side in sides.values():
            seconds(side, WARM)
        counts = {k: max(3, int(ROUND_S / seconds(s, 5))) for k, s in sides.items()}
        for _ in range(ROUNDS):
            for key, side in sides.items():
                side(x)
                times[key].append(1e3 * seconds(side, counts[key]))
    ms = {key: round(statistics.median(values), 4) for key, values in times.items()}
    return {"torch": torch.__version__, "ms": ms}


if __name__ == "__main__":
    main()
