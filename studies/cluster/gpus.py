"""Several GPUs of one host: one study over all of them against one.

    python studies/cluster/gpus.py studies/cluster/h100_x2.json     # about six minutes on two GPUs

Starts a Ray cluster of this machine. The same list of settings to its end by ``autocompile.tune``
on one GPU and over Ray on all: wall seconds and the answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import autocompile
from autocompile.cluster.links import connected, places_of
from autocompile.cluster.tune_all import tune_all
from autocompile.request import Request
from autocompile.result import Result

TARGET = str(Path(__file__).resolve().parents[2] / "examples" / "cnn.py")
ASKED: dict[str, Any] = {
    "phases": ("forward",),
    "effort": "full",
    "space": autocompile.SearchSpace(
        backends=("inductor",),
        modes=("default", "reduce-overhead"),
        batch_sizes=(1, 4, 16),
        fullgraph=(False,),
        dynamic=(None,),
        freezing=(False,),
        memory_format=("default", "channels_last"),
        scope=("model",),
        options=((),),
    ),
}


def told(result: Result, began: float) -> dict[str, Any]:
    """Wall seconds and answers of a run."""
    phase = result.to_dict()["phases"]["forward"]
    every = [a for a in (phase["answer"], *phase["other_sizes"]) if a["best"]]
    return {
        "wall_s": round(time.monotonic() - began, 1),
        "trials": len([t for t in phase["trials"] if t["role"] == "search"]),
        "answer": [
            {
                "batch_size": answer["batch_size"],
                "speedup": answer["best"]["speedup"],
                "mode": answer["best"]["config"]["mode"],
            }
            for answer in every
        ],
    }


def main() -> None:
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    subprocess.run([*ray, "start", "--head", "--disable-usage-stats"], check=True)
    try:
        with connected("auto") as cluster:
            kind, (place,) = next(iter(places_of(cluster.nodes(), None).items()))
        with tempfile.TemporaryDirectory() as scratch:
            began = time.monotonic()
            run = Path(scratch) / "one"
            one = autocompile.tune(TARGET, run_dir=run, progress="plain", **ASKED)
            found = {n: one.environment[n] for n in ("device_name", "torch")}
            found |= {"gpus": place.gpus, "one": told(one, began)}
            began = time.monotonic()
            run = Path(scratch) / "all"
            asked = {"ray": "auto", "accelerators": (kind,), "run_dir": run, **ASKED}
            every = tune_all(Request.of(TARGET, asked), show="plain")
            if every.errors:
                raise SystemExit(f"over Ray: {every.errors}")
            found["all"] = told(every.results[kind], began)
    finally:
        subprocess.run([*ray, "stop", "--force"], check=False)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
