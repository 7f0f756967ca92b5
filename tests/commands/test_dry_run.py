"""``tune --dry-run``: what would be tried, what is left out and why, and about how long."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from conftest import TARGETS
from rich.console import Console

from autocompile.commands.diagnose import preview
from autocompile.report.terminal.checks import render_preview
from autocompile.space.space import SearchSpace

pytestmark = pytest.mark.usefixtures("_warm")
AOT = SearchSpace(backends=("aot_eager",), batch_sizes=(4,))


def previewed(
    target: object, space: SearchSpace, *phases: str, **more: Any
) -> tuple[dict[str, Any], list[str]]:
    """The row of a forward, and the lines that a terminal of 80 columns shows."""
    found = preview(str(target), phases or ("forward",), space, "quick", "cpu", 2, 200.0, **more)
    text = io.StringIO()
    render_preview(found, Console(file=text, width=80))
    return found["phases"]["forward"], text.getvalue().splitlines()


def test_the_list_says_what_is_tried_and_why_the_rest_is_not(work: Path) -> None:
    space = SearchSpace(backends=("inductor", "cudagraphs"), modes=("default",), batch_sizes=(1, 4))
    row, lines = previewed(TARGETS / "dimensions.py", space, "forward", "optimizer_step")
    labels = {setting["label"] for setting in row["settings"]}
    assert {"eager", "eager · channels_last", "plain torch.compile()"} <= labels
    assert row["unusable"] == {"cudagraphs": "no CUDA device: torch would run it as eager"}
    assert row["predicted_s"] > 0
    assert not Path("runs").exists()
    (ours,) = [x for x in lines if x.split("  batch")[0].strip() == "inductor · channels_last"]
    assert ours.endswith("batch 1, 4      + 1 likely the same")
    assert any(line.startswith("  eager · fused optimizer") for line in lines)
    assert "  cudagraphs cannot be used: no CUDA device: torch would run it as eager" in lines


def test_a_budget_and_a_number_of_trials_end_the_search(work: Path) -> None:
    row, lines = previewed(TARGETS / "dimensions.py", AOT, trials=1, budget_s=600.0)
    assert (row["processes"], row["ends_early"]) == (1, True)
    assert "settings to try until the budget is spent, about" in lines[-1]
