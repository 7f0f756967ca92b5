"""All of this study on a machine with many cores: many at once, each on cores of its own.

    python studies/truth/slots.py --folder studies/truth/server --count 24 \\
        --truth mlp,cnn,ppo --tunes mlp=20,cnn=6,ppo=6 --aa mlp,cnn --timer 10 --aitune 10
    python studies/truth/slots.py --folder studies/truth/cuda --device cuda --cores 8 --count 2 \\
        --truth adam,cnn --processes 3 --tunes adam=5,cnn=5 --noise quiet --effort quick

A slot is a few cores that nothing else of this program runs on, and a GPU where one is needed.
First all processes of the truth, then the tunes and what is compared with them, in turn; with
``--minutes`` nothing begins that would not end in time. What is there is not measured again. The
files are those of the scripts that do the work.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ground_truth import ROUNDS, best_yard_us
from models import HERE, MODELS, of_device
from store import append, last_line, load
from tunes import next_seed

AA_PROCESSES = 20
Row = dict[str, Any]


@dataclass(frozen=True)
class Slot:
    """Where one thing at a time runs."""

    cores: tuple[int, ...]
    gpu: str  # CUDA_VISIBLE_DEVICES
    home: Path

    def run(self, command: list[str], places: dict[str, str], timeout_s: float) -> Row:
        """What a child of this slot says in its last line."""
        whole = ["taskset", "-c", ",".join(map(str, self.cores)), sys.executable, *command]
        own = {"XDG_CACHE_HOME": str(self.home), "CUDA_VISIBLE_DEVICES": self.gpu}
        return last_line(whole, {**own, **places}, timeout_s)


@dataclass(frozen=True)
class Task:
    """One process of the truth, one tune, or one run of something else."""

    said: str
    path: Path
    run: Callable[[Slot, float], list[Row]]
    needs_s: float


def truth_task(args: argparse.Namespace, name: str, setting: str, process: int) -> Task:
    path = args.folder / f"truth_{name}.json"

    def run(slot: Slot, timeout_s: float) -> list[Row]:
        with tempfile.TemporaryDirectory(prefix="truth-") as cache:
            places = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
            command = [str(HERE / "ground_truth.py"), "--one", name, setting, str(process)]
            command += ["--device", args.device, "--rounds", str(args.rounds)]
            command += ["--known-us", str(best_yard_us(load(path)))]
            found = slot.run(command, {**places, **MODELS[name].environment}, timeout_s)
        return [{"setting": setting, "process": process, **found}]

    return Task(f"truth {name} {setting}", path, run, args.truth_s)


def tune_task(args: argparse.Namespace, name: str, noise: str, seed: int) -> Task:
    path = args.folder / f"tunes_{name}.json"

    def run(slot: Slot, timeout_s: float) -> list[Row]:
        known_us = best_yard_us(load(path.with_name(f"truth_{name}.json")))
        command = [str(HERE / "tunes.py"), "--one", str(seed), "--model", name, "--noise", noise]
        command += ["--effort", args.effort, "--device", args.device, "--known-us", str(known_us)]
        row = slot.run(command, {}, timeout_s)
        return [{"noise": noise, "effort": args.effort, "seed": seed, **row}]

    return Task(f"tune {name} {noise} {seed}", path, run, args.tune_s)


def other_task(args: argparse.Namespace, script: str, file: str, *options: str) -> Task:
    """One run of a script that writes a file of its own; its rows join ours."""

    def run(slot: Slot, timeout_s: float) -> list[Row]:
        with tempfile.TemporaryDirectory(prefix="truth-") as folder:
            slot.run([str(HERE / script), "--folder", folder, *options], {}, timeout_s)
            return load(Path(folder) / file)

    return Task(" ".join([script, *options]), args.folder / file, run, args.other_s)


def truth_tasks(args: argparse.Namespace) -> list[Task]:
    """Those missing, in random order."""
    found = []
    for name in _words(args.truth):
        rows = load(args.folder / f"truth_{name}.json")
        there = Counter(row["setting"] for row in rows if "error" not in row)
        for setting in _words(args.settings) or MODELS[name].settings[args.device]:
            for number in range(there[setting], args.processes):
                found.append(truth_task(args, name, setting, 100 * number + len(rows)))
    random.Random(0).shuffle(found)
    return found


def tune_tasks(args: argparse.Namespace) -> Iterator[list[Task]]:
    """Those missing of each model and noise."""
    for asked, noise in itertools.product(_words(args.tunes), _words(args.noise)):
        name, count = asked.split("=")
        rows = load(args.folder / f"tunes_{name}.json")
        ours = [r for r in rows if (r["noise"], r["effort"]) == (noise, args.effort)]
        seed = next_seed(ours, noise, args.effort)
        missing = range(int(count) - sum("error" not in r for r in ours))
        yield [tune_task(args, name, noise, seed + i) for i in missing]


def other_tasks(args: argparse.Namespace) -> Iterator[list[Task]]:
    """Those missing of each kind."""

    def missing(
        script: str, file: str, count: int, number: str, series: Row, total: str
    ) -> list[Task]:
        rows = [row for row in load(args.folder / file) if series.items() <= row.items()]
        there = {row[number] for row in rows}
        options = [word for key, value in series.items() for word in (f"--{key}", value)]
        return [
            other_task(args, script, file, *options, "--first", str(i), total, str(i + 1))
            for i in sorted({*range(count)} - there)
        ]

    for model in _words(args.aa):
        yield missing("aa.py", "aa.json", AA_PROCESSES, "process", {"model": model}, "--processes")
    for noise in _words(args.noise):
        series = {"noise": noise}
        yield missing("aitune_bench.py", "aitune.json", args.aitune, "seed", series, "--count")
        for model in _words(args.timed):
            series = {"noise": noise, "model": model}
            yield missing("timer_bench.py", "timer.json", args.timer, "seed", series, "--count")


def in_turn(series: Iterable[list[Task]]) -> Iterator[Task]:
    """The first of each, the second of each, and so on."""
    for turn in itertools.zip_longest(*series):
        yield from (task for task in turn if task is not None)


def siblings(core: int) -> list[int]:
    """The logical cores that share a physical one with this, itself among them, in order."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    found = [core]
    for part in path.read_text().strip().split(",") if path.exists() else ():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return sorted(set(found))


def slots(args: argparse.Namespace, home: Path) -> list[Slot]:
    """Cores from ``--first-core`` on, and a GPU for each slot in turn."""
    allowed = sorted(os.sched_getaffinity(0))
    if args.physical:
        allowed = [core for core in allowed if core == siblings(core)[0]]
    allowed = allowed[args.first_core :]
    found = []
    for number in range(args.count):
        cores = tuple(allowed[number * args.cores : (number + 1) * args.cores])
        if len(cores) < args.cores:
            raise SystemExit(f"{args.count} slots of {args.cores} cores are more than there are")
        gpu = str(number % args.gpus) if args.device == "cuda" else ""
        found.append(Slot(cores, gpu, home / str(number)))
    return found


def work(
    slot: Slot, args: argparse.Namespace, todo: SimpleQueue[Task], end: float, lock: threading.Lock
) -> None:
    """Do one thing after the other while there is time."""
    where = {"cores_of_each": args.cores, "at_once": args.count}
    where |= {"physical": True} if args.physical else {}
    while True:
        try:
            task = todo.get_nowait()
        except Empty:
            return
        began = time.monotonic()
        if end - began < task.needs_s:
            continue
        rows = task.run(slot, end - began)
        if time.monotonic() > end:
            return  # it was cut off
        with lock:
            for row in rows:
                append(task.path, args.device, {**row, "slot": slot.cores[0]}, **where)
            said = " ".join(str(row.get("error") or row.get("pick", "")) for row in rows)
            took_s = time.monotonic() - began
            print(f"{slot.cores[0]:3}: {task.said}: {said} {took_s:.0f} s", flush=True)


def _words(text: str) -> list[str]:
    return text.split(",") if text else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--count", type=int, required=True, help="of slots")
    parser.add_argument("--cores", type=int, default=2, help="of each slot")
    parser.add_argument("--first-core", type=int, default=0)
    parser.add_argument("--physical", action="store_true", help="one logical core of each only")
    parser.add_argument("--gpus", type=int, default=1, help="that the slots take in turn")
    parser.add_argument("--truth", default="", help="comma list of models")
    parser.add_argument("--settings", default="", help="comma list, for the truth; all if left out")
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tunes", default="", help="comma list of MODEL=COUNT")
    parser.add_argument("--noise", default="quiet,noisy")
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--aa", default="", help="comma list of models")
    parser.add_argument("--aitune", type=int, default=0, help="count of runs")
    parser.add_argument("--timer", type=int, default=0, help="count of runs of each model")
    parser.add_argument("--timed", default=",".join(of_device("cpu")), help="models of --timer")
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--truth-s", type=float, default=100, help="that one process may take")
    parser.add_argument("--tune-s", type=float, default=900, help="that one tune may take")
    parser.add_argument("--other-s", type=float, default=300, help="that anything else may take")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    todo: SimpleQueue[Task] = SimpleQueue()
    for task in [*truth_tasks(args), *in_turn([*tune_tasks(args), *other_tasks(args)])]:
        todo.put(task)
    home = Path(tempfile.mkdtemp(prefix="slots-"))
    try:
        with ThreadPoolExecutor(args.count) as pool:
            do = functools.partial(work, args=args, todo=todo, end=end, lock=threading.Lock())
            list(pool.map(do, slots(args, home)))
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
