"""Figures, screens and plots of the documents are those of the recorded runs."""

from __future__ import annotations

import json
import re
import runpy
import statistics
from pathlib import Path

import pytest
import screens
from conftest import ROOT

from autocompile.commands.listing import read_report
from autocompile.estimate.intervals import Interval, between_runs

STUDIES = ROOT / "studies"
FIRST_RUNS = STUDIES / "first_runs"
README = (ROOT / "README.md").read_text("utf-8")
_WORDS = re.compile(r"<text[^>]*>([^<]*)")


@pytest.mark.parametrize(("name", "run", "width"), screens.PICTURES)
def test_the_screens_show_what_a_terminal_gets(
    name: str, run: Path, width: int
) -> None:
    """``python tests/screens.py`` draws them anew."""
    kept = (screens.SCREENS / f"{name}-{width}.svg").read_text("utf-8")
    drawn = screens.answer(run, width)
    assert _WORDS.findall(kept) == _WORDS.findall(drawn)
    assert "://" not in kept.replace("http://www.w3.org/2000/svg", "")
    assert max(len(line) for line in screens.typed(run, width).splitlines()) > 60


def test_intervals_that_are_shown_are_as_wide_as_those_of_this_version() -> None:
    narrowest = between_runs(Interval(1.0, 1.0, 1.0))
    for run in (screens.RUN, screens.FIRST):
        for phase in read_report(run).phases.values():
            found = phase.answer.best.speedup
            assert found.high / found.low >= 0.999 * narrowest.high / narrowest.low


def test_the_readme_names_the_figures_of_the_studies() -> None:
    held = json.loads((STUDIES / "truth" / "calibrate.json").read_text("utf-8"))
    pairs = [held["kinds"][k]["held"].split(" of ") for k in ("quiet CPU", "busy CPU")]
    right, count = (sum(map(int, column)) for column in zip(*pairs, strict=True))
    readme = " ".join(README.split())
    assert f"{right} of {count} on CPUs" in readme
    networks = json.loads(
        (STUDIES / "truth" / "long_loops_cuda.json").read_text("utf-8")
    )["networks"]
    off = statistics.median(abs(found["off"]) for found in networks.values())
    assert f"(GPU {100 * off:.1f} %)" in readme
    held_there = sum(found["held"] for found in networks.values())
    assert f"{held_there} of {len(networks)} on a GPU" in readme


def test_the_page_of_screens_shows_the_pipe() -> None:
    page = (ROOT / "docs" / "report.md").read_text("utf-8")
    assert screens.piped().rstrip() in page


def test_a_pipe_gets_no_colour_and_a_terminal_does() -> None:
    assert "\033[" in screens.typed(screens.RUN, 80)
    assert "\033[" not in screens.piped()


def test_the_plot_of_the_first_runs_is_drawn_from_their_reports() -> None:
    drawn = runpy.run_path(str(FIRST_RUNS / "plot.py"))
    assert drawn["figure"]() == (FIRST_RUNS / "speedups.svg").read_text("utf-8")
