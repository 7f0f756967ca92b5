"""One table over runs of one target on several machines, in the form of RLlib's benchmark.

It is made of the reports alone: what a run has decided is shown, nothing is decided here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile.errors import RunError, UsageError
from autocompile.estimate.intervals import between_runs, over_sets
from autocompile.report.markdown import as_markdown
from autocompile.report.page.html import as_page
from autocompile.report.tabulated import shown
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.tuned import is_faster
from autocompile.store.files import make_folder, write_json, write_text
from autocompile.store.reading import demand_schema
from autocompile.store.record import SCHEMA as REPORT_SCHEMA

__all__ = ["SCHEMA", "table", "write", "write_table"]

SCHEMA = 1

Report = Mapping[str, Any]


def write_table(folder: Path, runs: Mapping[str, Path]) -> None:
    """Write ``table.json``, ``table.md`` and ``table.html`` of finished runs into a folder.

    Args:
        folder: is made if it does not exist.
        runs: of one target; folders, by the name of the machine or accelerator.
    """
    write(folder, table({name: _read(path / "report.json") for name, path in runs.items()}))


def write(folder: Path, found: Mapping[str, Any]) -> None:
    """Write what :func:`table` gave, in all three forms."""
    document = shown(found)
    make_folder(folder)
    write_json(folder / "table.json", found)
    write_text(folder / "table.md", as_markdown(document))
    write_text(folder / "table.html", as_page(document))


def _read(path: Path) -> Report:
    try:
        report = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(
            f"cannot read {path}: {error}",
            "a table is made of the reports of runs that have ended",
            hint=f"autocompile tune TARGET --resume --run-dir {path.parent}",
        ) from None
    demand_schema(path, report, REPORT_SCHEMA)
    return dict(report)


def table(reports: Mapping[str, Report]) -> dict[str, Any]:
    """The content of ``table.json``.

    Args:
        reports: of one target, as ``report.json`` holds them, by the name of their machine.

    Returns:
        ``machines``: where each was measured. By phase ``answers``: what each machine's report says
        at each batch size; and ``rows``: for each setting and batch size that any has tried, its
        result on each machine, None where it was not tried. In a result ``speedup`` is over eager
        mode there; ``processes`` is in how many fresh processes it was raced, and where that is 0
        it is of the search.
    """
    first = next(iter(reports.values()))
    phases: dict[str, dict[str, Report]] = {}
    for name, report in reports.items():
        for phase, own in report["phases"].items():
            phases.setdefault(phase, {})[name] = own
    return {
        "schema": SCHEMA,
        "target": first["target"],
        "machines": {
            name: {
                "run_dir": report.get("run_dir", ""),
                "interrupted": bool(report.get("interrupted") or report.get("running")),
                "environment": report["environment"],
            }
            for name, report in reports.items()
        },
        "phases": {phase: _phase(found) for phase, found in phases.items()},
    }


def _phase(found: Mapping[str, Report]) -> dict[str, Any]:
    answers = {name: list(_answers(phase)) for name, phase in found.items()}
    results = {name: _results(phase, answers[name]) for name, phase in found.items()}
    settings = {at: config for of in results.values() for at, (config, _) in of.items()}
    rows = [
        {
            "batch_size": at[0],
            "config": config,
            "machines": {name: of[at][1] if at in of else None for name, of in results.items()},
        }
        for at, config in settings.items()
    ]
    role = next(iter(found.values())).get("role", "")
    return {"role": role, "answers": answers, "rows": sorted(rows, key=_order)}


def _at(size: int | None, config: Mapping[str, Any]) -> tuple[int | None, str]:
    return size, json.dumps(config, sort_keys=True)


def _whole(config: Report) -> dict[str, Any]:
    """A config with what this version knows, so that reports of other versions share rows."""
    try:
        return CompileConfig.from_dict(config).to_dict()
    except UsageError:  # of a newer version
        return dict(config)


def _order(row: Mapping[str, Any]) -> tuple[float, bool, float]:
    """By batch size; eager mode first, then the fastest on any machine."""
    every = [found["speedup"] for found in row["machines"].values() if found]
    best = max((gain["value"] for gain in every if gain), default=0.0)
    return row["batch_size"] or 0, row["config"] != EAGER.to_dict(), -best


def _answers(phase: Report) -> Iterator[dict[str, Any]]:
    """The best of each batch size beside eager mode; the one that the report is about leads."""
    best, configs = phase["best"], {t["number"]: t["config"] for t in phase["trials"]}
    rows = list(phase["by_batch_size"]) if best else []
    if best and best["batch_size"] not in [row["batch_size"] for row in rows]:
        # Nothing but eager mode worked.
        rate = best["throughput"]["value"]
        rows.append({**best, "eager_throughput": rate, "best_throughput": rate, "faster": False})
    for row in rows:
        chosen = is_faster(row)
        yield {
            "batch_size": row["batch_size"],
            "leads": row["batch_size"] == best["batch_size"],
            "config": _whole(configs[row["number"]]) if chosen else EAGER.to_dict(),
            "eager_throughput": row["eager_throughput"],
            "throughput": row["best_throughput"] if chosen else row["eager_throughput"],
            "unit": best["throughput"]["unit"],
            "speedup": row["speedup"] if chosen else {"value": 1.0, "low": 1.0, "high": 1.0},
            "processes": row.get("confirmed_processes") or 0,
        }


def _results(
    phase: Report, answers: Sequence[Mapping[str, Any]]
) -> dict[tuple[int | None, str], tuple[dict[str, Any], dict[str, Any]]]:
    """Of one machine, by batch size and config: the config, and what became of it."""
    codes = {trial["number"]: _code(trial) for trial in phase["trials"]}
    rows = {codes[row["number"]]: row for row in phase["by_batch_size"] if row["number"] in codes}
    chosen = {_at(one["batch_size"], one["config"]) for one in answers}
    eager = {one["batch_size"]: one["eager_throughput"] for one in answers}
    found = {}
    for trial in phase["trials"]:
        untried = trial.get("answered") and trial["outcome"] == "unsupported"
        if trial["role"] != "search" or trial["outcome"] == "interrupted" or untried:
            continue
        gain, processes = _speedup(trial, rows, phase["trials"])
        config = _whole(trial["config"])
        at = _at(trial["batch_size"], config)
        rate = trial["throughput"]
        if (
            rate and config == EAGER.to_dict() and at[0] in eager
        ):  # as the answers have it, of every process
            rate = {**rate, **dict.fromkeys(("value", "low", "high"), eager[at[0]])}
        found[at] = (
            config,
            {
                "outcome": trial["outcome"],
                "message": trial["message"],
                "number": trial["number"],
                "throughput": rate,
                "speedup": gain,
                "processes": processes,
                "chosen": at in chosen,
            },
        )
    return found


def _speedup(
    trial: Report, rows: Mapping[int, Report], trials: Sequence[Report]
) -> tuple[Mapping[str, float] | None, int]:
    """The speed-up of a setting, and in how many processes its code was raced.

    ``rows``: of the report by batch size, by the trial that measured their code.
    """
    if trial["outcome"] != "ok":
        return None, 0
    code = _code(trial)
    if (row := rows.get(code)) and row.get("confirmed_processes"):
        return row["speedup"], row["confirmed_processes"]
    same = {t["number"] for t in trials if _code(t) == code}
    raced = [t for t in trials if t.get("repeats") in same and t["outcome"] == "ok"]
    if values := [t["speedup"]["value"] for t in raced if t["speedup"]]:
        found = over_sets([math.log(value) for value in values])
        return between_runs(found).to_dict(), len(values)
    return trial["speedup"], 0


def _code(trial: Report) -> int:
    """The trial that measured the code of this one."""
    same = trial.get("duplicate_of") if trial["outcome"] == "ok" else None
    return int(trial["number"] if same is None else same)
