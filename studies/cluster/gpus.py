"""Several GPUs of one host: eager mode on all at once, and one study over two GPUs against one.

    python studies/cluster/gpus.py FOLDER [--no-tokens]      # about seven minutes on two GPUs

Starts a Ray cluster of this machine. First eager mode against itself on each GPU alone and then on
all at once, three times: how many may measure at once. Then the same list of settings to its end
by ``autocompile.tune`` on one GPU and over Ray on all: wall seconds and the answer. Last the run
for this type in the form of RLlib's table. Writes ``gpus.json`` and the tables into FOLDER.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import autocompile
from autocompile.cluster.beside import eager_against_itself, together
from autocompile.cluster.executor import ClusterExecutor
from autocompile.cluster.links import connected
from autocompile.cluster.places import places_of
from autocompile.cluster.shipping import shipment_of
from autocompile.commands.cluster import tune_all
from autocompile.commands.stations import stations_of
from autocompile.result import Result

ROOT = Path(__file__).resolve().parents[2]
TARGET = str(ROOT / "examples" / "cnn.py")
TIMES = 3
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


def tokens(kind: str, found: dict[str, Any]) -> None:
    """Eager mode against itself: ratio and half width on each GPU alone, then on all at once."""
    with connected("auto") as cluster:
        places = places_of(cluster.nodes(), [kind])[kind]
        sent = shipment_of(TARGET)
        message: dict[str, Any] = {"files": sent.files, "place": sent.place, "isolation": "auto"}
        message["memory_limit_bytes"] = None
        executor = ClusterExecutor(cluster.open(places, message), cluster.receive)
        try:
            links = [station.link for station in executor.stations]
            for _ in range(TIMES):
                for link in links:
                    cluster.allow([link], False)
                alone = eager_against_itself(executor)
                cluster.allow(links, True)
                at_once = eager_against_itself(executor, lambda _: cluster.allow(links, False))
                row: dict[str, Any] = {
                    name: {k: each.ratio.to_dict() for k, each in sorted(ratios.items())}
                    for name, ratios in (("alone", alone), ("at_once", at_once))
                }
                every = len(at_once) == len(links) and together([*at_once.values()])
                row["tokens"] = len(links) if every else 1
                found.setdefault("token_test", []).append(row)
        finally:
            executor.close()


def told(result: Result, began: float) -> dict[str, Any]:
    """Wall seconds and answer of a run."""
    phase = result.to_dict()["phases"]["forward"]
    names = ("number", "batch_size", "speedup", "confirmed_processes", "decided")
    configs = {t["number"]: t["config"] for t in phase["trials"]}
    return {
        "wall_s": round(time.monotonic() - began, 1),
        "trials": len([t for t in phase["trials"] if t["role"] == "search"]),
        "answer": [
            {**{n: row[n] for n in names}, "mode": configs[row["number"]]["mode"]}
            for row in phase["by_batch_size"]
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
            kinds = [kind for kind in places_of(cluster.nodes(), None) if kind != "cpu"]
        kind = kinds[0] if kinds else "cpu"
        stations = stations_of("auto")["types"][kind]["stations"]
        found |= {"kind": kind, "gpus": len(stations)}
        found |= {name: stations[0][name] for name in ("device", "torch")}
        with tempfile.TemporaryDirectory(prefix="gpus-") as scratch:

            def keep() -> None:
                (folder / "gpus.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")

            if kinds and "--no-tokens" not in sys.argv:
                tokens(kind, found)
            keep()
            began = time.monotonic()
            one = autocompile.tune(TARGET, run_dir=Path(scratch) / "one", progress="plain", **ASKED)
            found["one"] = told(one, began)
            keep()
            began = time.monotonic()
            where = Path(scratch) / "all"
            every = tune_all(
                TARGET, ray="auto", accelerators=[kind], run_dir=where, show="plain", **ASKED
            )
            for error in every.errors.values():
                print(repr(error), file=sys.stderr)
            found["all"] = told(every.results[kind], began)
            for path in where.glob("table.*"):
                shutil.copy(path, folder / path.name)
            keep()
    finally:
        subprocess.run([*ray, "stop", "--force"], check=False)


if __name__ == "__main__":
    main()
