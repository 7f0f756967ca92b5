"""What studies/truth/README.md says is what its files hold."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT

TRUTH = ROOT / "studies" / "truth"
TEXT = (TRUTH / "README.md").read_text("utf-8")
README = " ".join(TEXT.split())
LONG_LOOPS = {
    "two cores, 90 s each": "cpu",
    "H200, 75 s each": "cuda",
    "H200, 50 s each, a version before": "cuda_before",
}
KINDS = {
    "CPU, quiet": "quiet CPU",
    "CPU, a noisy neighbour or host": "busy CPU",
    "GPU (H100, H200)": "GPU",
}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a script of the study; other studies have scripts of the same names."""
    monkeypatch.syspath_prepend(str(TRUTH))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).parent == TRUTH:
            del sys.modules[name]


def read(name: str) -> Any:
    return json.loads((TRUTH / name).read_text("utf-8"))


def row(title: str) -> list[str]:
    """The cells of a table's row."""
    (found,) = re.findall(rf"^\| {re.escape(title)} \| (.*) \|$", TEXT, re.M)
    return found.split(" | ")


def test_the_picks_of_the_older_series(script: Any) -> None:
    recount: ModuleType = script("recount")
    tunes = [tune for _, _, now in recount.on_cpus() for tune in now]
    short = [100 * tune.behind for tune in tunes if tune.behind]
    faster = [tune for tune in tunes if tune.pick != recount.EAGER]
    assert f"{len(tunes) - len(short)} of {len(tunes)} runs" in README
    assert f"it is {min(short):.0f} to {max(short):.0f} % behind" in README
    assert all(tune.truth > 1 for tune in faster)
    assert f"Of {len(faster)} settings that it called faster" in README
    assert re.match(r"GPU: (\d+) of \1 picks", recount.on_gpus())


@pytest.mark.parametrize("title", KINDS)
def test_the_table_of_errors_and_intervals(title: str) -> None:
    found = read("calibrate.json")["kinds"][KINDS[title]]
    middle, most, _ = found["off by, %: median, most, mean with its sign"]
    held = [found["held"], found["held when its series is left out"]]
    assert row(title)[:3] == [f"{middle:.1f} %, {most:.0f} %", *held]


@pytest.mark.parametrize("title", LONG_LOOPS)
def test_the_long_loops(title: str, script: Any) -> None:
    long_loops: ModuleType = script("long_loops")
    data = read(f"long_loops_{LONG_LOOPS[title]}.json")
    for found in data["networks"].values():
        long_loops.judged(found)
    rows = [found for found in data["networks"].values() if "truth" in found]
    off = [100 * found["off"] for found in rows]
    middle, most = long_loops.median(map(abs, off)), max(map(abs, off))
    assert row(title) == [
        str(len(rows)),
        f"{sum(found['held'] for found in rows)} of {len(rows)}",
        f"{middle:.1f} %, {most:.0f} %, {sum(off) / len(off):+.1f} %",
    ]


def test_eager_mode_of_a_gpu_and_the_intervals(script: Any) -> None:
    long_loops: ModuleType = script("long_loops")
    median, networks = long_loops.median, read("long_loops_cuda.json")["networks"]
    for found in networks.values():
        long_loops.judged(found)
    apart: dict[str, list[float]] = {"eager": [], "setting": []}
    for found in networks.values():
        for side, ratios in apart.items():
            seconds = [median(each["call_s"][side]) for each in found["rows"]]
            ratios.append(max(seconds) / min(seconds))
    assert f"up to {max(apart['eager']):.1f} times as slow" in README
    close = sum(ratio < 1.02 for ratio in apart["setting"])
    assert f"within 2 % for {close} networks of {len(networks)}" in README
    (missed,) = (found for found in networks.values() if not found["held"])
    truths = "{:.1f}, {:.1f} and {:.1f}".format(*missed["processes"])
    assert f"an encoder, whose truth was {truths}" in README
    figures = [found["figure"] for found in networks.values()]
    above = median(f["high"] / f["value"] - 1 for f in figures)
    assert f"reach {100 * above:.0f} % and more above" in README


def test_of_the_version_before_most_hold_with_the_rule_that_came_after(
    script: Any,
) -> None:
    calibrate: ModuleType = script("calibrate")
    apart = read("calibrate.json")["runs_apart"]
    before = [r for r in calibrate.at_length() if r.series.endswith("cuda_before")]
    held = sum(run.is_held(apart) for run in before)
    assert f"{len(before)}" == row("H200, 50 s each, a version before")[0]
    assert f"of which {held} hold with it" in README
    answers = read("long_loops_cuda_before.json")["networks"].values()
    unknown = sum(found["verdict"] == "unknown" for found in answers)
    assert (unknown, "three had no answer in 50 s" in README) == (3, True)


def test_equals_are_not_called_different(script: Any) -> None:
    equals, slower = script("aa").analyse(read("aa.json")["rows"])
    assert not any(equals)
    assert f"none of {len(equals)} equals was called faster" in README
    assert not any(slower)
    assert f"2 % faster in any of {len(slower)} races" in README
