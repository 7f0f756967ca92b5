"""``tune --dry-run``: what would be tried, and what is left out and why."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from conftest import TARGETS
from rich.console import Console

from autocompile.commands.diagnose import preview
from autocompile.report.checks import render_preview
from autocompile.space.space import SearchSpace

pytestmark = pytest.mark.usefixtures("_warm")


def previewed(target: object, space: SearchSpace, *phases: str) -> tuple[dict[str, Any], list[str]]:
    """The row of a forward, and the lines that a terminal of 80 columns shows."""
    found = preview(str(target), 200.0, phases=phases or ("forward",), space=space, device="cpu")
    text = io.StringIO()
    render_preview(found, Console(file=text, width=80))
    return found["phases"]["forward"], text.getvalue().splitlines()


def test_the_list_says_what_is_tried_and_why_the_rest_is_not(work: Path) -> None:
    space = SearchSpace(backends=("inductor", "cudagraphs"), modes=("default",), batch_sizes=(1, 4))
    row, lines = previewed(TARGETS / "dimensions.py", space, "forward", "optimizer_step")
    labels = {setting["label"] for setting in row["settings"]}
    assert {"eager", "eager · channels_last", "plain torch.compile()"} <= labels
    assert row["unusable"] == {"cudagraphs": "it runs on cuda only"}
    assert lines[-1].endswith(" settings to try")
    assert not Path("runs").exists()
    (ours,) = [x for x in lines if x.strip().startswith("inductor · channels_last  ")]
    assert ours.endswith("1, 4")
    assert any("more that may be the same as one of these" in line for line in lines)
    assert any(line.startswith("  eager · fused optimizer") for line in lines)
    assert "  cudagraphs cannot be used: it runs on cuda only" in lines
