"""Cold and warm start of the transformer example: seconds from the process' start to a result.

python studies/exports/warm_start.py

Each process is a fresh one whose compiler caches and temporary folder are empty, as in a new
container; the order is random. ``cold`` has the file of settings alone, ``warm`` also the cache
that ``autocompile export --with-cache`` writes, ``artifacts`` only the part of that which torch
itself saves, and ``eager`` compiles nothing. Written to ``warm_start.json``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"
ARMS = ("eager", "cold", "artifacts", "warm")
PROCESSES, BATCH_SIZE, SEED = 5, 4, 0


def child(arm: str, settings: str) -> None:
    """One process: what a program does that uses the settings."""
    began = time.monotonic()
    import torch
    from torch._dynamo.utils import counters

    import autocompile

    sys.path.insert(0, str(EXAMPLES))
    import transformer  # type: ignore[import-not-found]

    torch.manual_seed(SEED)
    model, inputs = transformer.get_model().eval(), transformer.get_inputs(BATCH_SIZE)
    imported = time.monotonic()
    if arm == "artifacts":
        with zipfile.ZipFile(Path(settings).with_suffix(".cache")) as file:
            torch.compiler.load_cache_artifacts(file.read("artifacts"))
        torch._inductor.config.cpp_cache_precompile_headers = False  # as they were made
    if arm != "eager":
        autocompile.apply(model, settings)
    applied = time.monotonic()
    with torch.no_grad():
        result = model(**inputs)
    done = time.monotonic()
    print("result", flush=True)
    with torch.no_grad():
        model(**inputs)
    found = {
        "import_s": imported - began,
        "apply_s": applied - imported,
        "first_s": done - applied,
        "second_s": time.monotonic() - done,
        "sum": float(result.double().sum()),
        "inductor": {k: v for k, v in counters["inductor"].items() if "cache" in k},
        "aot_autograd": dict(counters["aot_autograd"]),
    }
    print(json.dumps(found), flush=True)


def run(arm: str, settings: Path) -> dict[str, Any]:
    """Start a process with empty caches and wait for its result."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {
            **{
                k: v for k, v in os.environ.items() if not k.startswith("TORCHINDUCTOR")
            },
            "TORCHINDUCTOR_CACHE_DIR": f"{empty}/cache",
            "TRITON_CACHE_DIR": f"{empty}/triton",
            "TMPDIR": empty,
        }
        began = time.monotonic()
        command = [sys.executable, __file__, "child", arm, str(settings)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "result\n"
            result_s = time.monotonic() - began
            said = json.loads(process.stdout.readline())
    return {"arm": arm, "result_s": result_s, **said}


def main() -> None:
    import torch

    from autocompile.commands.bench import export_with_cache
    from autocompile.settings.config import CompileConfig
    from autocompile.settings.tuned import Choice, Tuned, TunedSet

    with tempfile.TemporaryDirectory() as folder:
        even = {"value": 1.0, "low": 1.0, "high": 1.0}
        choice = Choice(CompileConfig(), BATCH_SIZE, even, 3)
        target = str(EXAMPLES / "transformer.py")
        made = Tuned({"forward": (choice,)}, {"device": "cpu"}, target)
        path = Path(folder) / "tuned.json"
        began = time.monotonic()
        export_with_cache(made, path, 300.0)
        export_s = time.monotonic() - began
        cache = path.with_suffix(".cache")
        alone = Path(folder) / "alone" / "tuned.json"
        alone.parent.mkdir()
        (entry,) = TunedSet.read(path).entries
        alone.write_text(
            TunedSet((dataclasses.replace(entry, cache={}),)).to_json(), "utf-8"
        )
        shutil.copy(cache, alone.with_suffix(".cache"))
        order = [arm for arm in ARMS for _ in range(PROCESSES)]
        random.Random(SEED).shuffle(order)
        rows = []
        for arm in order:
            rows.append(run(arm, path if arm == "warm" else alone))
            print(arm, round(rows[-1]["result_s"], 2), file=sys.stderr, flush=True)
        found = {
            "torch": torch.__version__,
            "export_s": round(export_s, 2),
            "cache_bytes": cache.stat().st_size,
            "processes": rows,
        }
    (HERE / "warm_start.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    table(found)


def table(found: dict[str, Any]) -> None:
    """Print medians over processes, and of the ratio to ``cold`` a bootstrap interval."""
    import numpy as np

    seconds = {
        arm: np.array([r["result_s"] for r in found["processes"] if r["arm"] == arm])
        for arm in ARMS
    }
    generator = np.random.default_rng(0)

    def drawn(values: Any) -> Any:
        return np.median(generator.choice(values, (10_000, len(values))), axis=1)

    print(
        "| | processes | to the first result | of it importing | cold is so many times longer |"
    )
    print("|---|---|---|---|---|")
    for arm, own in seconds.items():
        importing = np.median(
            [r["import_s"] for r in found["processes"] if r["arm"] == arm]
        )
        low, high = np.percentile(drawn(seconds["cold"]) / drawn(own), (2.5, 97.5))
        ratio = np.median(seconds["cold"]) / np.median(own)
        interval = "" if arm == "cold" else f"{ratio:.2f} [{low:.2f}, {high:.2f}]"
        print(
            f"| {arm} | {len(own)} | {np.median(own):.2f} s | {importing:.2f} s | {interval} |"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    elif sys.argv[1:2] == ["table"]:
        table(json.loads((HERE / "warm_start.json").read_text("utf-8")))
    else:
        main()
