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
from autocompile.request import Request
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.recorded_calls import RecordedCalls

pytestmark = pytest.mark.usefixtures("_warm")


def previewed(
    target: object, space: SearchSpace, *phases: str
) -> tuple[dict[str, Any], list[str]]:
    """The row of a forward, and the lines that a terminal of 80 columns shows."""
    asked = {"phases": phases or ("forward",), "space": space, "device": "cpu"}
    found = preview(Request(str(target), timeout_s=200.0, **asked))
    text = io.StringIO()
    render_preview(found, Console(file=text, width=80))
    return found["phases"]["forward"], text.getvalue().splitlines()


def test_the_list_says_what_is_tried_and_why_the_rest_is_not(work: Path) -> None:
    space = SearchSpace(
        backends=("inductor", "cudagraphs"), modes=("default",), batch_sizes=(1, 4)
    )
    row, lines = previewed(
        TARGETS / "dimensions.py", space, "forward", "optimizer_step"
    )
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


def test_calls_of_a_file_say_what_is_tried(work: Path) -> None:
    """Of one shape a setting for several would be nothing to try."""
    (work / "net.py").write_text(
        "import torch\n"
        "def get_model(): return torch.nn.Linear(8, 8)\n"
        "def get_inputs(): return torch.ones(2, 8)\n"
    )
    tensors = [{"tensor": {"shape": [n, 8], "dtype": "float32"}} for n in (3, 5)]
    distinct = tuple({"args": [tensor], "kwargs": {}} for tensor in tensors)
    RecordedCalls("Linear", distinct, (0, 1, 0)).write(work / "calls.json")
    space = SearchSpace(backends=("inductor",), modes=("default",))
    options = {"calls": "calls.json", "phases": "forward", "space": space}
    found = preview(Request.of("net.py", {**options, "timeout_s": 200.0}))
    settings = found["phases"]["forward"]["settings"]
    assert {setting["config"]["dynamic"] for setting in settings} == {None, True, False}
    assert {setting["batch_size"] for setting in settings} == {3 + 5 + 3}
