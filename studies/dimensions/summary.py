"""The tables of the README, from the recorded JSON.

    python studies/dimensions/summary.py --device cpu --write

A row says what the best setting brings that uses, of all dimensions, only that one; the last row
may use all. The figure is that of the setting that is best of those that were measured again, with
the 95 % interval over processes, and a star where others disturbed some of them.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from dimensions import ALL, BASE, MODELS, ROWS, allows

HERE = Path(__file__).parent
README = HERE / "README.md"
ANSWERED_BY = {
    "fullgraph": "default",
    "fullgraph, reduce-overhead": "reduce-overhead",
    "max-autotune-no-cudagraphs": "default, whose code it has",
    "max-autotune": "reduce-overhead, whose code it has",
}


def best(row: str, size: int | None, found: dict[str, Any]) -> dict[str, Any] | None:
    """The best of a row that was measured in fresh processes."""
    ours = [
        s
        for s in found["settings"]
        if s["batch_size"] == size and s["confirmed"] and allows(row, set(s["uses"]))
    ]
    return max(ours, key=lambda s: s["speedup"][0], default=None)


def cell(row: str, size: int | None, found: dict[str, Any]) -> str:
    setting = best(row, size, found)
    if setting is not None and is_new(row, setting):
        value, low, high = setting["speedup"]
        mark = "*" if "contended" in setting["flags"] else ""
        return f"{value:.2f} [{low:.2f}, {high:.2f}]{mark}"
    return "no more" if is_measured(row, found, size) else "–"


def is_measured(row: str, found: dict[str, Any], *sizes: int | None) -> bool:
    """Whether the search has timed a setting that uses no other dimension than the row's."""
    return any(
        row in s["uses"] and allows(row, set(s["uses"]))
        for s in found["settings"]
        if not sizes or s["batch_size"] in sizes
    )


def is_new(row: str, setting: dict[str, Any]) -> bool:
    """Whether the best of a row is not that of the base."""
    return row in (BASE, ALL) or row in setting["uses"]


def recorded(device: str) -> list[dict[str, Any]]:
    """What was measured of each model, in the order of the models."""
    names = [f"{name}{more}" for more in ("", "_environments") for name in MODELS]
    paths = [HERE / device / f"{name}.json" for name in names]
    return [json.loads(p.read_text()) for p in paths if p.exists()]


def table(found: dict[str, Any]) -> list[str]:
    """One model: rows of dimensions, columns of batch sizes."""
    sizes = sorted({s["batch_size"] for s in found["settings"]}, key=lambda size: size or 0)
    names = [f"batch {size}" if size else "a step" for size in sizes]
    others = [f"{name} (torch {seen['torch']})" for name, seen in found["environments"].items()]
    beside = f", and in {', '.join(others)}" if others else ""
    lines = [
        f"**{found['model']}**, `{found['phase']}`{beside}",
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---|' * len(sizes)}",
    ]
    for row in (BASE, *ROWS, ALL):
        if row in (BASE, ALL) or is_measured(row, found):
            cells = [cell(row, size, found) for size in sizes]
            lines.append(f"| {row} | {' | '.join(cells)} |")
    winners = []
    for size in sizes:
        if one := best(ALL, size, found):
            where = f"batch {size}: " if size else ""
            winners.append(f"{where}{one['label']} ({one['call_us']:.0f} µs)")
    lines += ["", f"Best: {'; '.join(winners)}.", ""]
    if any(s["confirmed"] == 1 and s["label"] != "eager" for s in found["settings"]):
        lines[-1:] = ["Some in one process: its interval knows nothing of other processes.", ""]
    return lines


def savings(every: list[dict[str, Any]]) -> list[str]:
    """What needed no process, and what that saved."""
    lines = [
        "| model | settings | processes | answered without one | same code, not timed | saved |",
        "|---|---|---|---|---|---|",
    ]
    for found in every:
        spent = found["spent"]
        answered = ", ".join(f"{n} {why}" for why, n in spent["answered"].items()) or "–"
        never = ("cannot be used here",)  # such a trial would have ended at once
        would = sum(n for why, n in spent["answered"].items() if why not in never)
        saved = would * spent["typical_trial_s"]
        lines.append(
            f"| {found['model']} | {spent['listed']} | {spent['processes']} | {answered} "
            f"| {spent['same_code_found_after_compiling']} | {saved:.0f} s of trials |"
        )
    return [*lines, ""]


def twins() -> list[str]:
    """Each setting that was left out over the one that answered for it, fresh processes of both."""
    lines = [
        "| on | | left out | answered by | left out over the other | µs of a call |",
        "|---|---|---|---|---|---|",
    ]
    for device in ("cpu", "cuda"):
        for row in json.loads((HERE / device / "pairs.json").read_text("utf-8")):
            if not row["is_merged"]:
                continue
            left_out = row["pair"].split(", if")[0]
            value, low, high = row["left_out_over_stand_in"]
            calls = [f"{row[side]['call_us']:.0f}" for side in ("left_out", "stands_for_it")]
            lines.append(
                f"| {device} | {row['target']} | {left_out} | {ANSWERED_BY[left_out]} "
                f"| {value:.2f} [{low:.2f}, {high:.2f}] | {', '.join(calls)} |"
            )
    return [*lines, ""]


def write(name: str, lines: list[str]) -> None:
    """Put lines into the README between ``tables of`` and ``end of``."""
    begin, end = f"<!-- tables of {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{begin}.*?{end}", re.S)
    text = "\n".join((begin, "", *lines)) + f"\n{end}"
    README.write_text(pattern.sub(lambda _: text, README.read_text("utf-8")), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--write", action="store_true", help="into the README")
    args = parser.parse_args()
    every = recorded(args.device)
    lines = [line for found in every for line in table(found)] + savings(every)
    if args.write:
        write(args.device, lines)
        write("twins", twins())
    else:
        print("\n".join(lines + twins()))


if __name__ == "__main__":
    main()
