"""Tables of the seeds from the ``suite.json`` of ``autocompile suite``, in their own forms.

python studies/seeds/tables.py cpu/adam.json cpu/regional.json ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from autocompile.report.text import label
from autocompile.store.report import Tried
from autocompile.suite.rows import Row, Suite

Lines = Iterator[str]


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        suite = Suite.read(path)
        where = suite.environment
        machine = where.get("device_name") or where.get("cpu")
        print(f"## {path.stem}: {machine}, torch {where.get('torch')}\n")
        print("\n".join(TABLES.get(path.stem, runner)(suite)), "\n")


def header(*titles: str) -> Lines:
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)


def forward_exploration(suite: Suite) -> Lines:
    """As RLlib's appendix: a table for each backend and mode, a row for each batch size."""
    names = dict.fromkeys(label(t.config) for row in suite.rows for t in row.settings)
    for name in names:
        found = [
            (row, t)
            for row in suite.rows
            for t in row.settings
            if label(t.config) == name
        ]
        yield f"### {name}"
        yield ""
        yield from header(
            "batch_size", "no compile throughput", "compiled throughput", "Speedup"
        )
        for row, tried in found:
            plain = calls_per_s(tried.eager_call_s or row.eager_call_s)
            if tried.speedup is None:
                why = f"{tried.outcome.value}: {tried.message[:120]}"
                yield f"| {row.batch_size} | {plain} | – | {why} |"
            else:
                gain = f"{tried.speedup.value - 1:+.4f}"
                yield f"| {row.batch_size} | {plain} | {calls_per_s(tried.call_s)} | {gain} |"
        yield ""


def adam(suite: Suite) -> Lines:
    """As the recipe: microseconds of a step."""
    (row,) = suite.rows
    yield from header("step", "µs", "speed-up")
    yield f"| eager | {1e6 * (row.eager_call_s or 0):.0f} | 1 |"
    for tried in row.settings:
        gain = "" if tried.speedup is None else f"{tried.speedup.value:.2f}"
        micro = "–" if tried.call_s is None else f"{1e6 * tried.call_s:.0f}"
        yield f"| {label(tried.config)} | {micro} | {gain or tried.outcome.value} |"


def regional(suite: Suite) -> Lines:
    """As Accelerate's comparison: seconds to compile, and the speed, of the whole and of blocks."""
    yield from header("model", "batch", "", "compile s", "speed-up")
    for row in suite.rows:
        for tried in row.settings:
            scope = (
                "full" if tried.config["scope"] == "model" else tried.config["scope"]
            )
            compile_s = "–" if tried.compile_s is None else f"{tried.compile_s:.1f}"
            yield f"| {size(row)} | {row.batch_size} | {scope} | {compile_s} | {gain_of(tried)} |"


def runner(suite: Suite) -> Lines:
    """As the summary of dynamo's runner: pass rate and geometric mean by phase."""
    yield from header(
        "phase", "models", "pass rate", "geometric mean", "mean compile s", "memory"
    )
    for phase in dict.fromkeys(row.phase for row in suite.rows):
        rows = tuple(row for row in suite.rows if row.phase == phase)
        part = Suite(name=phase, members=(), rows=rows)
        rate, mean = part.share_right(best=False), part.geometric_mean(best=False)
        right = [row.plain for row in rows if row.plain and row.plain.is_right]
        compile_s = [t.compile_s for t in right if t.compile_s]
        memory = [
            row.eager_peak_memory_bytes / row.plain.peak_memory_bytes
            for row in rows
            if row.plain and row.plain.peak_memory_bytes and row.eager_peak_memory_bytes
        ]
        share = f"{rate or 0:.0%}, {len(right)}/{len(part.rows_with(best=False))}"
        seconds = sum(compile_s) / max(1, len(compile_s))
        ratio = f"{sum(memory) / len(memory):.2f}x" if memory else "–"
        yield f"| {phase} | {len(rows)} | {share} | {mean or 0:.2f}x | {seconds:.1f} | {ratio} |"


def calls_per_s(seconds: float | None) -> str:
    return "–" if not seconds else f"{1 / seconds:.1f}"


def gain_of(tried: Tried) -> str:
    return (
        tried.outcome.value if tried.speedup is None else f"{tried.speedup.value:.2f}"
    )


def size(row: Row) -> str:
    return row.target.partition("?")[2].partition("&num_attention")[0]


TABLES = {
    "forward_exploration": forward_exploration,
    "adam": adam,
    "regional": regional,
}

if __name__ == "__main__":
    main()
