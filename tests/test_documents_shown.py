"""Figures, screens and plots of the documents are those of the recorded runs."""

from __future__ import annotations

import re
import runpy

import pytest
import screens
from conftest import ROOT
from recorded_runs import shown

from autocompile.commands.listing import read_report
from autocompile.estimate.intervals import Interval, between_runs

STUDIES = ROOT / "studies"
FIRST_RUNS = STUDIES / "first_runs"
README = (ROOT / "README.md").read_text("utf-8")
_WORDS = re.compile(r"<text[^>]*>([^<]*)")


@pytest.mark.parametrize(
    "run", ["first_runs/cpu_xeon/ppo_breakout", "gpu/gpt2_step_report"]
)
def test_the_readme_shows_answers_as_recorded(run: str) -> None:
    report = read_report(STUDIES / f"{run}.json")
    answer = shown(report, "last").splitlines()[1 : 1 + len(report.phases)]
    seen = [line.split() for line in README.splitlines()]
    for row in answer:
        assert row.split() in seen


def test_the_readme_s_intervals_are_as_wide_as_those_of_this_version() -> None:
    narrowest = between_runs(Interval(1.0, 1.0, 1.0))
    shown = re.findall(r"× \[([\d.]+), ([\d.]+)\]", README)
    assert len(shown) == 4
    for low, high in shown:
        least, most = float(low) - 0.005, float(high) + 0.005  # as they were rounded
        assert most / least >= narrowest.high / narrowest.low


@pytest.mark.parametrize("width", screens.WIDTHS)
def test_the_screens_show_what_a_terminal_gets(width: int) -> None:
    """``python tests/screens.py`` draws them anew."""
    kept = (screens.SCREENS / f"answer-{width}.svg").read_text("utf-8")
    drawn = screens.answer(width)
    assert _WORDS.findall(kept) == _WORDS.findall(drawn)
    assert "://" not in kept.replace("http://www.w3.org/2000/svg", "")
    assert max(len(line) for line in screens.typed(width).splitlines()) > 60


def test_the_page_of_screens_shows_the_pipe() -> None:
    page = (ROOT / "docs" / "screens.md").read_text("utf-8")
    assert screens.piped().rstrip() in page


def test_a_pipe_gets_no_colour_and_a_terminal_does() -> None:
    assert "\033[" in screens.typed(80)
    assert "\033[" not in screens.piped()


def test_the_plot_of_the_first_runs_is_drawn_from_their_reports() -> None:
    drawn = runpy.run_path(str(FIRST_RUNS / "plot.py"))
    assert drawn["figure"]() == (FIRST_RUNS / "speedups.svg").read_text("utf-8")
