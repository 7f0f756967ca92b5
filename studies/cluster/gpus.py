"""Several GPUs of one host: one study over two GPUs against one.

    python studies/cluster/gpus.py studies/cluster/h100_x2      # about six minutes on two GPUs

Starts a Ray cluster of this machine. The same list of settings to its end by ``autocompile.tune``
on one GPU and over Ray on all: wall seconds and the answer, in ``FOLDER/gpus.json``.
"""

from __future__ import annotations

import json
import platform
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

ROOT = Path(__file__).resolve().parents[2]
TARGET = str(ROOT / "examples" / "cnn.py")
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
    """Wall seconds and answer of a run."""
    phase = result.to_dict()["phases"]["forward"]
    names = ("number", "speedup", "confirmed_processes")
    every = [a for a in (phase["answer"], *phase["other_sizes"]) if a["best"]]
    return {
        "wall_s": round(time.monotonic() - began, 1),
        "trials": len([t for t in phase["trials"] if t["role"] == "search"]),
        "answer": [
            {
                **{n: answer["best"][n] for n in names},
                "batch_size": answer["batch_size"],
                "decided": answer["confidence"] == "high",
                "mode": answer["best"]["config"]["mode"],
            }
            for answer in every
        ],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "python": platform.python_version(),
    }
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    subprocess.run([*ray, "start", "--head", "--disable-usage-stats"], check=True)
    try:
        with connected("auto") as cluster:
            kind, (place,) = next(iter(places_of(cluster.nodes(), None).items()))
        found |= {"kind": kind, "gpus": place.gpus}
        with tempfile.TemporaryDirectory(prefix="gpus-") as scratch:

            def keep() -> None:
                (folder / "gpus.json").write_text(
                    json.dumps(found, indent=1) + "\n", "utf-8"
                )

            began = time.monotonic()
            one = autocompile.tune(
                TARGET, run_dir=Path(scratch) / "one", progress="plain", **ASKED
            )
            found["one"] = told(one, began)
            found |= {name: one.environment[name] for name in ("device_name", "torch")}
            keep()
            began = time.monotonic()
            where = Path(scratch) / "all"
            asked = {"ray": "auto", "accelerators": (kind,), "run_dir": where, **ASKED}
            every = tune_all(Request.of(TARGET, asked), show="plain")
            for error in every.errors.values():
                print(repr(error), file=sys.stderr)
            found["all"] = told(every.results[kind], began)
            keep()
    finally:
        subprocess.run([*ray, "stop", "--force"], check=False)


if __name__ == "__main__":
    main()
