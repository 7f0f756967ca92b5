"""How far is what ``autocompile tune`` picks from the best setting that was written by hand?

For each network and effort one tune, in a process of its own, nothing beside. Then its pick is
applied by the code of ``reference.py``, which shares nothing with autocompile, and timed beside
plain ``torch.compile()`` and the best hand-written settings: fresh processes, the same minute.
Of each network, in one JSON: the figures, how much of what was begun ended with a result, where the
seconds went, and all raw blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from networks import MODELS, Model, Spec, settings  # noqa: E402
from reference import Timed, Work, keep, machine, ms_of, way_to_start, works_of  # noqa: E402

SPEC_OF_SCOPE = {
    "model": "model",
    "full": "model",
    "regional": "blocks",
    "step": "step",
}
ENVIRONMENT = dict(
    os.environ
)  # as it was; processes that are forked later have their own
NOT_APPLIED = (
    "precision",
    "autocast",
    "guards",
    "environment",
)  # of them the defaults only


def spec_of(config: dict[str, Any], phase: str, name: str) -> Spec:
    """A setting of a report as this study applies it.

    Raises:
        ValueError: it has something that is not applied here.
    """
    for field in NOT_APPLIED:
        if config.get(field) not in ("default", "none", "all", None):
            raise ValueError(f"{field}={config[field]} is not applied here")
    memory_format = config["memory_format"].replace("default", "")
    given = {
        "optimizer": config["optimizer"].replace("default", "target"),
        "memory_format": memory_format,
        "threads": config["threads"] or 0,
    }
    if config["backend"] == "eager":
        return Spec(name, **given)
    arguments: dict[str, Any] = {}
    if config["backend"] != "inductor":
        arguments["backend"] = config["backend"]
    if config["mode"] != "default":
        arguments["mode"] = config["mode"]
    if config["options"]:
        arguments["options"] = config["options"]
    if config["dynamic"] is not None:
        arguments["dynamic"] = config["dynamic"]
    compiled = "step" if phase == "optimizer_step" else SPEC_OF_SCOPE[config["scope"]]
    return Spec(name, compiled, arguments, freezing=config["freezing"], **given)


def tuned(
    model: Model, effort: str, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Run ``autocompile tune`` as a user does; its report and what the run folder tells."""
    command = [sys.executable, "-m", "autocompile", "tune", str(HERE / model.target)]
    command += [
        "--phase",
        model.phase,
        "--device",
        model.device,
        "--run-dir",
        str(folder),
    ]
    command += ["--budget", options.budget] if options.budget else ["--effort", effort]
    path = (os.getcwd(), ENVIRONMENT.get("PYTHONPATH"))
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    began = time.monotonic()
    asked = subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    found: dict[str, Any] = {
        "effort": options.budget or effort,
        "wall_s": round(time.monotonic() - began, 1),
        "exit": asked.returncode,
        "screen": (asked.stdout + asked.stderr)[-6000:],
    }
    print(found["screen"], flush=True)
    report = folder / "report.json"
    if report.exists():
        found |= told(json.loads(report.read_text())["phases"].get(model.phase, {}))
        found |= spent(folder)
        found["results_s"] = results_s(folder, time.time() - found["wall_s"])
    return found


def told(phase: dict[str, Any]) -> dict[str, Any]:
    """The answer of a report."""
    answer = phase.get("answer") or {}
    best = answer.get("best") or {}
    return {
        "verdict": answer.get("verdict"),
        "word": answer.get("confidence"),
        "open": answer.get("why"),
        "config": best.get("config"),
        "speedup": best.get("speedup"),
        "call_s": best.get("call_s"),
        "tried": phase.get("tried"),
        "settings": phase.get("listed"),
        "compiled_tried": phase.get("compiled_tried"),
        "compiled_settings": phase.get("compiled_listed"),
        "failures": phase.get("failures"),
    }


def spent(folder: Path) -> dict[str, Any]:
    """Of the run folder: how many trials ended with a result, and seconds by step."""
    steps: dict[str, float] = defaultdict(float)
    by_role: dict[str, float] = defaultdict(float)
    outcomes: dict[str, int] = defaultdict(int)
    compiled = begun = ended = 0
    refused = []
    for path in sorted((folder / "trials").glob("*")):
        begun += (path / "log.txt").exists() or (path / "result.json").exists()
        if not (path / "result.json").exists():
            continue
        trial = json.loads((path / "result.json").read_text())
        outcomes[trial.get("outcome", "")] += 1
        ended += trial.get("outcome") not in ("interrupted", "not_run", "cancelled")
        for name, seconds in (trial.get("step_s") or {}).items():
            steps[name] += seconds
        by_role[trial.get("role") or ""] += trial.get("wall_s") or 0.0
        config = trial.get("config") or {}
        is_compiled = config.get("backend") != "eager"
        compiled += (
            is_compiled
            and trial.get("outcome") == "ok"
            and trial.get("role") == "search"
        )
        if trial.get("outcome") in ("wrong_output", "wrong_update", "wrong_gradient"):
            refused.append(trial.get("message", "")[:200])
    return {
        "begun": begun,
        "ended": ended,
        "compiled_finished": compiled,
        "outcomes": dict(outcomes),
        "step_s": {k: round(v, 1) for k, v in steps.items()},
        "role_s": {k: round(v, 1) for k, v in by_role.items()},
        "refused": refused,
    }


def results_s(folder: Path, began: float) -> list[tuple[str, str, float]]:
    """Each result of the search: what, its outcome, and seconds from the command to it."""
    found = []
    for path in (folder / "trials").glob("*/result.json"):
        trial = json.loads(path.read_text())
        if trial.get("role") == "search":
            backend = trial["config"]["backend"]
            after_s = round(path.stat().st_mtime - began, 1)
            found.append((backend, str(trial.get("outcome")), after_s))
    return sorted(found, key=lambda each: each[2])


def best_by_hand(model: Model, count: int) -> list[str]:
    """The fastest settings of the recorded reference; without one all that are likely to be."""
    path = HERE / "h100" / f"{model.name}.json"
    if not path.exists():
        return [
            s.name
            for s in settings(model)
            if s.arguments.get("mode") != "max-autotune" and s.compiled != "blocks"
        ]
    rows = [r for r in json.loads(path.read_text())["rows"] if "compiled_ms" in r]
    names: list[str] = []
    for row in sorted(rows, key=ms_of):
        if row["setting"] not in names:
            names.append(row["setting"])
    return names[:count]


def measure(
    model: Model, specs: list[Spec], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Each setting in ``options.processes`` fresh processes; all compile first, then take turns."""
    options.starts = options.starts or way_to_start(model.device)
    scratch = Path(tempfile.mkdtemp(prefix="regret-"))
    rows: list[dict[str, Any]] = []

    def tell(work: Work, record: dict[str, Any]) -> list[Work]:
        rows.append(record)
        shown = (
            f"{ms_of(record):9.3f} ms"
            if "compiled_ms" in record
            else record.get("message", "")
        )
        print(f"  {model.name:18} {record['setting']:34} {shown}", flush=True)
        return []

    works = []
    for number in range(options.processes):
        own = works_of(model, specs, scratch, options)
        for work in own:
            work.process, work.folder = number, work.folder.with_name(str(number))
            work.cache = work.folder / "cache"
        works += own
    try:
        until = time.time() + options.measure
        Timed(options.jobs, until, options.starts, tell).run(works)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return rows


def ms_by_setting(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The median over processes of the median block."""
    times = defaultdict(list)
    for row in rows:
        if "compiled_ms" in row:
            times[row["setting"]].append(ms_of(row))
    return {name: round(median(found), 5) for name, found in times.items()}


def judge(model: Model, data: dict[str, Any]) -> None:
    """How far each pick is behind the best that was written by hand; into the data, and shown."""
    ms = data["ms"] = ms_by_setting(data["rows"])
    hand = {name: t for name, t in ms.items() if not name.startswith("pick")}
    if not hand:
        return
    best = data["best"] = min(hand, key=lambda name: hand[name])
    for tune in data["tunes"]:
        kept = tune.get("verdict") == "keep_eager"
        taken = ms.get("eager" if kept else f"pick {tune['effort']}")
        if taken:
            tune["ms"], tune["regret"] = taken, round(taken / hand[best] - 1, 4)
        regret = f"{100 * tune['regret']:.1f} %" if "regret" in tune else "unknown"
        print(
            f"{model.name:18} {tune['effort']:7} regret {regret}, {tune.get('word')},"
            f" {tune.get('compiled_finished')} compiled, {tune['wall_s']} s"
            f" (best: {best}, {hand[best]} ms; plain {ms.get('compile')} ms)",
            flush=True,
        )


def one_model(model: Model, options: argparse.Namespace) -> None:
    """Tune with each effort, measure, write."""
    data: dict[str, Any] = {
        "schema": 1,
        "model": model.name,
        "phase": model.phase,
        "machine": options.machine,
        "tunes": [],
    }
    for effort in options.effort.split(","):
        folder = options.runs / f"{model.name}-{effort}"
        shutil.rmtree(folder, ignore_errors=True)
        data["tunes"].append(tuned(model, effort, folder, options))
        keep(options.to, model.name, data)
    by_hand = {s.name: s for s in settings(model)}
    names = ["eager", "compile", *best_by_hand(model, options.best)]
    specs = [by_hand[n] for n in dict.fromkeys(names)]
    for tune in data["tunes"]:
        if tune.get("config"):
            try:
                specs.append(
                    spec_of(tune["config"], model.phase, f"pick {tune['effort']}")
                )
            except ValueError as error:
                tune["not_applied"] = str(error)
    data["rows"] = measure(model, specs, options)
    judge(model, data)
    keep(options.to, model.name, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", help="names, with commas")
    parser.add_argument("--effort", default="quick,normal", help="with commas")
    parser.add_argument("--budget", default="", help="in place of an effort")
    parser.add_argument(
        "--best", type=int, default=2, help="so many of the reference's best"
    )
    parser.add_argument("--processes", type=int, default=2, help="of each setting")
    parser.add_argument(
        "--jobs", type=int, default=None, help="compile so many at once"
    )
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds for one to be ready"
    )
    parser.add_argument(
        "--measure", type=float, default=240, help="seconds for measuring"
    )
    parser.add_argument(
        "--until", type=float, default=1e9, help="no network begins later"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path(tempfile.gettempdir()) / "regret-runs"
    )
    parser.add_argument("--to", type=Path, default=HERE / "picks.json")
    parser.add_argument("--recount", action="store_true", help="from what the JSON has")
    options = parser.parse_args()
    began = time.time()
    chosen = [MODELS[name] for name in options.models.split(",")]
    options.jobs = options.jobs or 12
    options.runs.mkdir(parents=True, exist_ok=True)
    options.machine = {} if options.recount else machine("cuda")
    options.starts = ""
    for model in chosen:
        if options.recount:
            data = json.loads(options.to.read_text())[model.name]
            judge(model, data)
            keep(options.to, model.name, data)
            continue
        if time.time() - began > options.until:
            break
        one_model(model, options)
    print(f"{time.time() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
