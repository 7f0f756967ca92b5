"""The notebook of examples/ runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import nbformat
from conftest import ROOT
from nbclient import NotebookClient


def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    tuned, printed, called = [c for c in notebook.cells if c.cell_type == "code"][1:]
    # What Inductor makes of it takes a C++ compiler many seconds, and is not what is looked at.
    tuned.source = tuned.source.replace('"inductor"', '"aot_eager"')
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(
        notebook, timeout=280, kernel_name="python3", resources=resources
    ).execute()
    assert "forward" in tuned.outputs[-1]["data"]["text/plain"]
    shown = tuned.outputs[-1]["data"]["text/html"]
    assert shown.startswith("<pre>") and "speed-up" in shown and "confidence" in shown
    assert "backend" in str(printed.outputs) or "disable" in str(printed.outputs)
    assert called.outputs[-1]["data"]["text/plain"] == "torch.Size([64, 8])"
    assert (tmp_path / "runs" / "live_net-0001" / "report.json").exists()
