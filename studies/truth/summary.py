"""Tables from the recorded JSON: what is true, what was picked, what was reported.

python studies/truth/summary.py --device cpu
python studies/truth/summary.py --device cpu --write     # into README.md, between its markers
python studies/truth/summary.py --device cpu --folder studies/truth/busy_host_1 --write
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aa
from ground_truth import BUSY, Truth, analyse, ties
from models import EAGER, HERE, MODELS, of_device
from store import load
from yardstick import is_busy

PICKED, COVERED, EQUALS, POWER = 0.95, 0.90, 0.05, 0.90  # targets
ERROR = {"quiet": 0.01, "noisy": 0.02}
BUSY_HOST = ", busy host"
MANY = 5  # runs: of fewer the median is one of them
# times the fastest reference work of all runs: the host was in another state
SLOW = 1.1


def truths(folder: Path, device: str) -> dict[str, dict[str, Truth]]:
    """What was measured at length, model by model; on a busy host by all rounds."""
    found = {name: load(folder / f"truth_{name}.json") for name in of_device(device)}
    calm_only = not folder.name.startswith(BUSY)
    return {
        name: analyse(rows, calm_only=calm_only) for name, rows in found.items() if rows
    }


def runs(folder: Path, device: str) -> list[dict[str, Any]]:
    """Every run of every method, those of autocompile first."""
    found = []
    for path in sorted(folder.glob("tunes_*.json")):
        name = path.stem.removeprefix("tunes_")
        found += [{"model": name, **row} for row in load(path)]
    found += load(folder / "aitune.json") + load(folder / "timer.json")
    best_us = min((us for row in found for us in references_us(row)), default=0.0)

    def was_busy(row: dict[str, Any]) -> bool:
        if folder.name.startswith(BUSY):  # there all are alike
            return False
        raced_us = references_us(row)
        is_slow = bool(raced_us) and median(raced_us) > SLOW * best_us
        return is_slow or is_busy(row.get("host", ()), device)

    return [
        {**row, "method": method_of(row), "is_busy": was_busy(row)} for row in found
    ]


def references_us(row: dict[str, Any]) -> list[float]:
    """What the product's own reference work took in each process of a run's races."""
    return [one["reference_us"] for one in row.get("raced", ())]


def method_of(row: dict[str, Any]) -> str:
    """The method with what sets its series apart from others."""
    if "noise_floor" in row:  # before races: each setting timed in processes of its own
        row = {**row, "method": f"earlier {row['method']}"}
    if row.get("effort", "normal") != "normal":
        return f"{row['method']} --effort {row['effort']}"
    if len(row.get("batch_sizes", [])) > 1:
        return f"{row['method']}, sizes {'+'.join(map(str, row['batch_sizes']))}"
    return str(row["method"])


@dataclass(frozen=True)
class Score:
    """One model under one noise by one method, against the truth.

    Attributes:
        in_ties: runs whose pick is within 1 % of the best setting.
        errors: how far each reported speed-up is from the true one of its pick; none for eager.
        covered: whether each reported interval holds the true value.
        met: whether it and the interval of the truth have a value in common.
        agreed: whether it holds the median of what these runs report, which knows no truth but
            is of the same state of the host.
        decided: whether each run came to a clear decision; none where a method has no such thing.
        sets: of fresh processes behind each figure.
    """

    runs: int
    failed: int
    in_ties: int
    picks: dict[str, int]
    reported: tuple[float, ...]
    errors: tuple[float, ...]
    covered: tuple[bool, ...]
    met: tuple[bool, ...]
    agreed: tuple[bool, ...]
    decided: tuple[bool, ...]
    sets: tuple[int, ...]
    wall_s: tuple[float, ...]


def score(rows: list[dict[str, Any]], truth: dict[str, Truth]) -> Score:
    """Compare some runs with the truth."""
    worked = [r for r in rows if "error" not in r and r["pick"] in truth]
    picks = [r["pick"] for r in worked]
    best = ties(truth)
    faster = [(r["speedup"], truth[r["pick"]]) for r in worked if r["pick"] != EAGER]
    sure = [(s, t) for s, t in faster if len(s) == 3]
    usual = {
        p: median(r["speedup"][0] for r in worked if r["pick"] == p) for p in set(picks)
    }
    alike = [(r["speedup"], usual[r["pick"]]) for r in worked if r["pick"] != EAGER]
    return Score(
        runs=len(rows),
        failed=len(rows) - len(worked),
        in_ties=sum(p in best for p in picks),
        picks={
            p: picks.count(p)
            for p in sorted(set(picks), key=lambda p: (-picks.count(p), p))
        },
        reported=tuple(s[0] for s, _ in faster),
        errors=tuple(abs(s[0] / t.value - 1) for s, t in faster),
        covered=tuple(s[1] <= t.value <= s[2] for s, t in sure),
        met=tuple(s[1] <= t.high and t.low <= s[2] for s, t in sure),
        agreed=tuple(s[1] <= m <= s[2] for s, m in alike if len(s) == 3),
        decided=tuple(r["decided"] for r in worked if "decided" in r),
        sets=tuple(r["sets"] for r in worked if r.get("sets")),
        wall_s=tuple(r["wall_s"] for r in worked if "wall_s" in r),
    )


def series(
    rows: list[dict[str, Any]],
) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """The runs by model, condition and method; those on a busy host apart, and last."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        condition = row["noise"] + BUSY_HOST * row["is_busy"]
        found.setdefault((row["model"], condition, row["method"]), []).append(row)
    order, conditions = list(MODELS), [n + b for b in ("", BUSY_HOST) for n in ERROR]
    return dict(
        sorted(
            found.items(),
            key=lambda kv: (
                BUSY_HOST in kv[0][1],
                order.index(kv[0][0]),
                conditions.index(kv[0][1]),
            ),
        )
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def share(found: Iterable[bool], target: Callable[[float], bool] | None = None) -> str:
    """``19 of 20 (95 %)``, in bold where a target is missed."""
    found = list(found)
    if not found:
        return "–"
    part = sum(found) / len(found)
    text = f"{sum(found)} of {len(found)} ({part:.0%})".replace("%", " %")
    return text if target is None or target(part) else f"**{text}**"


def percent(value: float, most: float | None = None) -> str:
    text = f"{100 * value:.2f} %"
    return text if most is None or value <= most else f"**{text}**"


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (
        ordered[middle]
        if len(ordered) % 2
        else sum(ordered[middle - 1 : middle + 1]) / 2
    )


def truth_table(true: dict[str, dict[str, Truth]]) -> str:
    rows = []
    for name, truth in true.items():
        for setting, t in sorted(truth.items(), key=lambda kv: -kv[1].value):
            spread = max(t.processes) / min(t.processes) - 1 if t.processes else 0.0
            interval = f"[{t.low:.3f}, {t.high:.3f}]" if t.processes else "–"
            tied = "yes" if setting in ties(truth) else ""
            spread_text = percent(spread) if t.processes else "–"
            rows.append([name, setting, f"{t.value:.3f}", interval, spread_text, tied])
    return table(
        (
            "model",
            "setting",
            "true speed-up",
            "95 % interval",
            "processes apart",
            "within 1 %",
        ),
        rows,
    )


def pick_table(
    true: dict[str, dict[str, Truth]], rows: list[dict[str, Any]], device: str
) -> str:
    lines = []
    for (model, noise, method), ours in series(rows).items():
        if model not in true:
            continue
        s = score(ours, true[model])
        ok = s.runs - s.failed
        # The truth is that of a calm host, so on a busy one there is nothing to reach.
        calm = BUSY_HOST not in noise
        most = ERROR[noise] if calm else None
        picked = share(
            [i < s.in_ties for i in range(s.runs)],
            (lambda part: part >= PICKED) if calm else None,
        )
        if not {EAGER, *MODELS[model].settings[device]} <= true[model].keys():
            picked = "–"  # nobody knows the best of all of them
        picks = ", ".join(f"{count} × {name}" for name, count in s.picks.items())
        error, worst = "–", "–"
        if s.errors:
            error, worst = percent(median(s.errors), most), percent(max(s.errors))
        reported = (
            f"{min(s.reported):.3f} to {max(s.reported):.3f}" if s.reported else "–"
        )
        covered = share(s.covered, (lambda part: part >= COVERED) if calm else None)
        line = [
            model,
            noise,
            method,
            f"{ok} of {s.runs}" if s.failed else str(ok),
            picked,
        ]
        line += [picks or "–", reported, error, worst, covered, share(s.met)]
        line.append(share(s.agreed) if s.runs >= MANY else "–")
        line += [
            share(s.decided),
            f"{sum(s.sets) / len(s.sets):.1f}" if s.sets else "–",
        ]
        lines.append([*line, f"{median(s.wall_s):.0f} s" if s.wall_s else "–"])
    head = (
        "model",
        "condition",
        "method",
        "runs",
        "pick within 1 % of the best",
        "picks",
    )
    head += ("reported", "error, median", "worst", "interval holds the truth")
    head += ("meets its interval", "holds the median of the runs", "decided", "sets")
    return table((*head, "wall, median"), lines)


_IN_A_RACE = {
    "aa": ("equals in a race: one is called faster", "≤ 5 %"),
    "aa_interval": ("equals in a race: the interval leaves out 1", ""),
    "open": ("equals in a race: still open after six sets", ""),
    "power": ("2 % slower in a race: the other is called faster", "≥ 90 %"),
}
_OF_PROCESSES = {
    "out": ("three processes of a setting and three others: one is out", "≤ 5 %"),
    "interval": ("the same: the interval of their ratio leaves out 1", "≤ 5 %"),
    "same": ("the same: not within 1 % of one another", ""),
}


def equals_table(rows: list[dict[str, Any]], folder: Path) -> str:
    """Of equals, how many are called different; of a slow-down, how often it is seen."""
    found = [
        ("cnn", words, aa.analyse(rows)[name]) for name, words in _IN_A_RACE.items()
    ]
    for model in of_device("cpu"):
        parted = aa.groups(load(folder / f"truth_{model}.json"))
        found += [(model, words, parted[name]) for name, words in _OF_PROCESSES.items()]
    lines = []
    for model, (words, wanted), seen in found:
        if not seen:
            continue
        target: Callable[[float], bool] | None = None
        if wanted:
            target = (
                (lambda p: p <= EQUALS) if "≤" in wanted else (lambda p: p >= POWER)
            )
        lines.append([model, words, share(seen, target), wanted])
    head = ("model", "decision", "found", "target")
    return table(head, lines) if lines else ""


def machine_line(folder: Path) -> str:
    """Where the files were measured, from the files."""
    said = []
    for path in sorted(folder.glob("*.json")):
        if not (where := json.loads(path.read_text()).get("machine")):
            continue
        words = f"torch {where['torch']}, Python {where['python']}, "
        words += where.get("gpu") or f"{where['cpu']}, {where['cores']} cores"
        said.append(words)
    return "; ".join(dict.fromkeys(said)) + "."


def text_of(device: str, folder: Path) -> str:
    """All tables of a device as markdown; where several machines were measured, of each."""
    hosts = sorted(folder.glob("host_*"))
    if not hosts:
        return tables(device, folder)
    named = ((host.name.replace("_", " ").capitalize(), host) for host in hosts)
    return "\n\n".join(f"**{name}:** {tables(device, host)}" for name, host in named)


def tables(device: str, folder: Path) -> str:
    """Those of one machine; empty without a truth."""
    true = truths(folder, device)
    if not true:
        return ""
    parts = [machine_line(folder), truth_table(true)]
    if found := runs(folder, device):
        parts.append(pick_table(true, found, device))
    if device == "cpu" and (equals := equals_table(load(folder / "aa.json"), folder)):
        parts.append(equals)
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--folder", type=Path, help="of the JSON; beside this file if left out"
    )
    parser.add_argument("--write", action="store_true", help="into README.md")
    args = parser.parse_args()
    folder = (args.folder or HERE / args.device).resolve()
    text = text_of(args.device, folder)
    if not args.write:
        print(text)
        return
    readme = HERE / "README.md"
    begin, end = f"<!-- tables of {folder.name} -->", f"<!-- end of {folder.name} -->"
    before, rest = readme.read_text().split(begin)
    after = rest.split(end)[1]
    readme.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


if __name__ == "__main__":
    main()
