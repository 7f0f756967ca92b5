from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from autocompile.report.markdown import to_markdown

SAMPLE = json.loads((Path(__file__).parents[1] / "data" / "report.json").read_text("utf-8"))
HOSTILE = "a | b `code` ``two`` <script>alert(1)</script> \x1b[31mred\x1b[0m\n# heading\\"
SHOWN = "a | b `code` ``two`` <script>alert(1)</script> red # heading\\"


@pytest.fixture
def report() -> dict[str, Any]:
    return copy.deepcopy(SAMPLE)


def tokens(document: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(document)


def tables(document: str) -> list[list[list[str]]]:
    """Every table as rows of cells, code spans and escapes resolved."""
    found: list[list[list[str]]] = []
    for token in tokens(document):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level >= 4:
            parts = [c.content for c in token.children or ()]
            found[-1][-1].append("".join(parts))
    return found


def test_the_document_has_the_result_of_every_phase(report: dict[str, Any]) -> None:
    text = to_markdown(report, {"forward_exploration": "torch.compile(model)"})
    assert text.startswith("# autocompile: `examples/ppo_breakout.py:config`\n")
    reason = "nothing that was tried is more than 1.4 % faster (95 %)"
    assert tables(text)[0][1:] == [
        ["forward_exploration", "1.41× [1.39, 1.43]", "high", "torch.compile(model)"],
        ["optimizer_step", "keep eager", "high", reason],
    ]
    assert "worker · batch size 16 · confirmed in 3 fresh processes · outputs match" in text
    assert r"- Why: 1.33× \[1.30, 1.36\] against plain torch.compile()" in text
    assert "- Cost: compiles in 6.8 s (0.9 s warm), repaid after 1 235 calls" in text


def test_the_tables_of_a_phase_are_complete(report: dict[str, Any]) -> None:
    _, batches, failures, measured, others, *_ = tables(to_markdown(report))
    best = "inductor max-autotune  ← this config's own"
    assert batches[2] == ["16", "852/s", "1 204/s", "1.41×", best]
    assert failures[1][:3] == ["2", "inductor", "compile_error"]
    assert [row[0] for row in measured[1:]] == "5 3 4 1 6 2 0".split()
    assert [row[0] for row in others[1:]] == "7 8 9 10 11".split()
    assert measured[3][-1] == "inductor · fullgraph  (same code as trial 3)"
    assert others[3][-2:] == ["crashed", "openvino: SIGSEGV in compile"]


def test_what_is_sure_what_is_open_and_what_is_not_here_is_told(report: dict[str, Any]) -> None:
    text = to_markdown(report)
    sure = "- Sure: nothing else that was tried is more than 2 % faster (95 %) · 9 of 27 settings"
    assert f"{sure} tried\n" in text
    not_here = "Not on this machine: `cudagraphs` (no CUDA device: torch would run it as eager)"
    assert text.count(f"{not_here}   → `autocompile doctor`\n") == 1
    for phase in report["phases"].values():
        command = "autocompile tune ppo.py --resume --budget 5m"
        phase["confidence"] = {"decided": False, "open": "lite may be", "command": command}
    text = to_markdown(report)
    assert text.count(f"- Open: lite may be   → `{command}`\n") == 2
    assert "Sure" not in text


def test_the_circumstances_are_told(report: dict[str, Any]) -> None:
    text = to_markdown(report)
    method = text.split("## How it was measured")[1]
    assert "median of their ratios" in method
    assert "timed again side by side in fresh processes" in method
    facts = [tuple(row) for row in tables(text)[-1]]
    assert ("torch", "2.13.0+cpu") in facts
    assert ("device", "cpu, since there is no CUDA device") in facts
    assert ("duration", "3:01") in facts


def test_text_of_a_trial_cannot_leave_its_cell(report: dict[str, Any]) -> None:
    phase = report["phases"]["forward_exploration"]
    phase["failures"][0]["message"] = HOSTILE
    phase["trials"][-2]["message"] = HOSTILE
    phase["notes"], phase["reason"] = [HOSTILE], HOSTILE
    report["phases"]["optimizer_step"]["reason"] = HOSTILE
    phase["unusable"] = {HOSTILE: HOSTILE}
    phase["confidence"] = {"decided": False, "open": HOSTILE, "command": HOSTILE}
    text = to_markdown(report)
    assert "\x1b" not in text
    parsed = tokens(text)
    assert not [t for t in parsed if t.type == "html_block"]
    inline = [c for t in parsed for c in t.children or ()]
    assert not [c for c in inline if c.type == "html_inline"]
    _, _, failures, measured, others, *_ = tables(text)
    assert {len(row) for row in (*failures, *others)} == {4}
    assert {len(row) for row in measured} == {7}
    assert failures[1][3].startswith(f"{SHOWN} · ")
    assert others[-1][-1].endswith(f": {SHOWN}")
    headings = [b for a, b in itertools.pairwise(parsed) if a.type == "heading_open"]
    assert not [h for h in headings if h.content.startswith("heading")]


def test_exports_are_fenced_code_that_cannot_break_out(report: dict[str, Any]) -> None:
    code = 'text = """\n```\n"""\n\tx = 1\n'
    report["exports"] = {"python": code, "json": "{}"}
    fences = [t for t in tokens(to_markdown(report)) if t.type == "fence"]
    assert [(f.info, f.content) for f in fences] == [
        ("python", code.replace("\t", " ")),
        ("json", "{}\n"),
    ]


def test_a_failed_and_an_interrupted_run_are_told(report: dict[str, Any]) -> None:
    phase = report["phases"]["optimizer_step"]
    phase |= {"verdict": "failed", "best": None, "reason": "all 3 failed", "by_batch_size": []}
    report["interrupted"] = True
    report["phases"]["forward_exploration"]["best"]["confirmed_processes"] = 0
    text = to_markdown(report)
    assert "**Interrupted:" in text
    assert "- Low: confirmed in 0 of 3 fresh processes\n" in text
    assert "timed again side by side in fresh processes" not in text
    assert tables(text)[0][2] == ["optimizer_step", "failed", "–", "all 3 failed"]


def test_the_same_report_gives_the_same_document(report: dict[str, Any]) -> None:
    assert to_markdown(report) == to_markdown(copy.deepcopy(report))
    assert "\n\n\n" not in to_markdown(report)


def test_what_was_not_tried_is_no_failure_and_what_was_left_out_has_its_reason(
    report: dict[str, Any],
) -> None:
    name, phase = next(iter(report["phases"].items()))
    report["phases"] = {name: phase}
    row = {"count": 3, "backend": "onnxrt", "outcome": "unsupported", "message": "cannot pay"}
    phase["failures"] = [{**row, "answered": True}, {**row, "message": "no gradients"}]
    phase["dropped"] = {"there are no CUDA graphs on a CPU": 4}
    document = to_markdown(report)
    parts = dict(part.partition("\n")[::2] for part in document.split("### ")[1:])
    assert "no gradients" in parts["What failed"] and "cannot pay" not in parts["What failed"]
    assert "cannot pay" in parts["What was not tried"]
    assert "- Skipped: there are no CUDA graphs on a CPU (4)\n" in document
