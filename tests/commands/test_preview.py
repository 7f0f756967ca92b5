"""``tune --dry-run``: what would be tried, what is left out and why, and about how long."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import TARGETS
from rich.console import Console

from autocompile.commands.preview import preview
from autocompile.report.checks import render_preview
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
    assert any(re.fullmatch(r"  inductor · channels_last +1, 4", line) for line in lines)
    assert any("more that may be the same as one of these" in line for line in lines)
    assert any(line.startswith("  eager · fused optimizer") for line in lines)
    assert "  cudagraphs cannot be used: no CUDA device: torch would run it as eager" in lines
    assert "  Dynamo makes one graph of it: fullgraph will do" in lines


def test_a_break_inside_a_loop_is_no_single_graph(work: Path) -> None:
    _, lines = previewed(f"{TARGETS / 'dimensions.py'}:looping", AOT)
    assert "fullgraph will fail" in " ".join(" ".join(lines).split())


def test_dynamo_says_where_it_breaks_the_graph_and_a_budget_ends_the_search(work: Path) -> None:
    net = work / "net.py"
    net.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        torch._dynamo.graph_break()\n"
        "        return x.sin()\n"
        "def get_model(): return Net()\n"
        "def get_inputs(batch_size): return torch.ones(batch_size, 8)\n"
    )
    row, lines = previewed(net, AOT, trials=1, budget_s=600.0)
    assert (row["processes"], row["ends_early"]) == (1, True)
    assert row["dynamo"]["graph_breaks"] == 1
    assert "Dynamo has 1 graph break, first at net.py:4" in " ".join(" ".join(lines).split())
