"""Print the figures of the README that are computed from several recorded trials.

    python studies/tuning_cost/figures.py

Whole runs (``*/whole.json``) first; all others were recorded before finalists were raced, and their
times end with the search.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
OWN = ("compile", "verify", "measure")


def arm(file: str, name: str) -> dict[str, Any]:
    return json.loads((HERE / file).read_text("utf-8"))[name]


def by_setting(found: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(json.dumps(t["config"]), t["batch_size"]): t for t in found["trials"]}


def own_s(found: dict[str, Any], steps: tuple[str, ...]) -> float:
    return sum(t["step_s"].get(step, 0.0) for t in found["trials"] for step in steps)


def alone(label: str, found: dict[str, Any]) -> None:
    """One way of running the trials."""
    wall, compiled = found["wall_s"], [t["compile_s"] or 0.0 for t in found["trials"]]
    said = [f"{label}: {wall:.0f} s", f"compiling {sum(compiled):.0f} s"]
    if "first_trial_s" in found:
        said += [f"first trial after {found['first_trial_s']:.1f} s"]
        said += [f"verify and measure {own_s(found, OWN[1:]):.1f} s"]
        said += [f"wall / own {wall / own_s(found, OWN):.2f}"]
        said += [f"with the eager reference {wall / own_s(found, (*OWN, 'eager')):.2f}"]
        said += [f"tuner {found['tuner_cpu_share']:.1%} of a core"]
    if eager := [t["eager_us"] for t in found["trials"] if "eager_us" in t]:
        said += [
            f"eager {min(eager):.0f} to {max(eager):.0f}, median {median(eager):.0f} us"
        ]
    print(", ".join(said))


def beside(label: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    """The same compiled settings in two ways: second over first."""
    one, two = by_setting(first), by_setting(second)
    pairs = [
        (one[k], two[k])
        for k in one
        if k in two
        and one[k]["compile_s"]
        and two[k]["compile_s"]
        and one[k]["speedup"]
    ]
    ratios = [b["speedup"][0] / a["speedup"][0] for a, b in pairs]
    off = median(abs(r - 1) for r in ratios)
    meet = sum(
        a["speedup"][1] <= b["speedup"][2] and b["speedup"][1] <= a["speedup"][2]
        for a, b in pairs
    )
    compiling = median(b["compile_s"] / a["compile_s"] for a, b in pairs)
    print(
        f"{label}: speed-up {median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f}), "
        f"median difference {off:.1%}, {meet} of {len(pairs)} intervals meet, "
        f"compile time {compiling:.2f}"
    )


def whole(path: Path) -> None:
    """A whole run against the loop over the same settings."""
    found = json.loads(path.read_text("utf-8"))
    where = path.parent.name
    for name in ("naive", "tune", "search"):
        if name in found:
            said = [f"{where}, {name}: {found[name]['wall_s']:.0f} s"]
            if name != "naive" and "naive" in found:
                said += [
                    f"loop / this {found['naive']['wall_s'] / found[name]['wall_s']:.2f}"
                ]
            print(", ".join(said))
    if run := found.get("tune"):
        races_s = run["wall_s"] - run["search_s"]
        processes = len(
            {t["raced_in"] for t in run["trials"] if t["role"] == "confirm"}
        )
        print(
            f"{where}: confirming and report {races_s:.0f} s, {processes} processes, sets by batch "
            f"size {run['sets']}, decided {sum(run['decided'])} of {len(run['decided'])}, "
            f"first trial after {run['first_trial_s']:.1f} s, "
            f"tuner {run['tuner_cpu_share']:.1%} of a core"
        )


def neighbours() -> None:
    """Eight jobs: neighbours stopped, and neighbours that compile on cores of their own."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for row in json.loads((HERE / "h200/neighbours.json").read_text("utf-8"))["rows"]:
        found.setdefault((row["setting"], row["way"]), []).append(row)
    for setting in dict.fromkeys(name for name, _ in found):
        means = []
        for way in ("stopped", "on other cores"):
            rows = found[setting, f"8 jobs, neighbours {way}"]
            eager, compiled = (
                [r[side] for r in rows] for side in ("eager_us", "compiled_us")
            )
            means.append(sum(eager) / sum(compiled))
            print(
                f"{setting}, neighbours {way}: eager {eager} us, compiled {compiled} us"
            )
        print(f"{setting}: speed-up {means[0]:.2f} and {means[1]:.2f}")


def main() -> None:
    for path in sorted(HERE.glob("*/whole.json")):
        whole(path)
    cpu = {
        name: arm("cpu/compare.json", name)
        for name in ("naive", "one", "again", "many")
    }
    for name in ("naive", "one", "many"):
        alone(f"busy hour, {name}", arm("cpu/busy_hour.json", name))
    gpu = {
        "loop, first machine": arm("h200/compare.json", "naive"),
        "16 jobs, first machine": arm("h200/compare.json", "many"),
        "1 job, second machine": arm("h200/one.json", "one"),
        "16 jobs, second machine, profiled": arm("h200/many_profiled.json", "many"),
        "16 jobs, third machine, later code": arm("h200/many_after.json", "many"),
        "loop, busy host": arm("h200/busy_host.json", "naive"),
        "16 jobs, busy host": arm("h200/busy_host.json", "many"),
    }
    for label, found in {**cpu, **gpu}.items():
        alone(label, found)
    beside("2 cores, 2 jobs over 1", cpu["one"], cpu["many"])
    beside("2 cores, 1 job over 1 job", cpu["one"], cpu["again"])
    beside("H200, 16 jobs over the loop", *(list(gpu.values())[:2]))
    beside("H200, 16 jobs over 1", *(list(gpu.values())[2:4]))
    beside("H200, busy host, 16 jobs over the loop", *(list(gpu.values())[5:7]))
    loops = [arm(f"h200/naive_{number}.json", "naive") for number in (1, 2)]
    beside("H200, one loop over another on another machine", *loops)
    neighbours()


if __name__ == "__main__":
    main()
