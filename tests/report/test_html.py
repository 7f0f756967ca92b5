from __future__ import annotations

import copy
import html
import json
import re
import tarfile
import webbrowser
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_records import LITE, MAX, Run
from recorded_runs import RUNS, inside, names, page_of
from typer.testing import CliRunner

from autocompile import load
from autocompile.cli.commands import app
from autocompile.report import text as show
from autocompile.report.page import to_html
from autocompile.report.plots import of_phase, raced_at
from autocompile.settings.config import CompileConfig
from autocompile.store.report import PhaseResult, Report

SAMPLE = json.loads(
    (Path(__file__).parents[1] / "data" / "report.json").read_text("utf-8")
)
HOSTILE = (
    "</script></pre><img src=http://x.invalid/ onerror=alert(1)>\"'&$x_\uffff\x1b[31m"
)
SHOWN = "</script></pre><img src=http://x.invalid/ onerror=alert(1)>\"'&$x_\uffff"
TITLE = re.compile(r"<figcaption><h3>(.*?)</h3>")
VOID = {"meta"}
SHAPES = {"path", "rect"}


class Page(HTMLParser):
    """The elements of a page, whose tags have to match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert tag in SHAPES, "only SVG has elements that close themselves"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def ids(self) -> list[str]:
        return [a["id"] or "" for _, a in self.elements if "id" in a]


@pytest.mark.parametrize("name", names())
def test_the_page_of_a_recorded_run_is_whole(name: str, tmp_path: Path) -> None:
    text, report = page_of(name, tmp_path)
    page = Page(text)
    ids = page.ids()
    assert len(ids) == len(set(ids))
    phases = {f"phase-{phase}" for phase in report.phases}
    assert {"answer", "machine", *phases} <= set(ids)
    assert ("exports" in ids) == bool(report.exports)
    for tag, attributes in page.elements:
        assert tag not in (
            "link",
            "iframe",
            "object",
            "embed",
            "img",
            "base",
            "form",
        ), tag
        for key, value in attributes.items():
            assert key not in (
                "src",
                "srcset",
                "action",
                "xmlns",
            ) and not key.startswith("on")
            assert "//" not in (value or "") or key == "content", (tag, key, value)
            assert key != "href" or (value or "").removeprefix("#") in ids
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert len(text.encode()) < 1_000_000
    for phase in report.phases.values():
        for group in phase.failures:
            assert group.answered or show.plain(group.message) in page.text
    for code in report.exports.values():
        assert code.splitlines()[-1] in page.text
    for phase in report.phases.values():
        for trial in phase.searched:
            assert show.label(trial.config) in page.text


def test_the_answer_has_the_gain_the_code_and_the_confidence(tmp_path: Path) -> None:
    text, _ = page_of("outcomes", tmp_path)
    start, end = (
        text.index('<section id="answer">'),
        text.index('<section class="phase"'),
    )
    answer = Page(text[start:end]).text
    assert "1.60×" in answer and "[1.49, 1.72]" in answer
    assert 'torch.compile(model, mode="max-autotune")' in answer
    assert "keep eager" in answer and answer.count("open") == 2
    text, report = page_of("interrupted", tmp_path)
    assert "Interrupted: these are the results so far." in text
    assert '<td><span class="warning">low</span></td>' in text
    command = report.phases["optimizer_step"].answer.command
    assert command and html.escape(command) in text


def hostile(part: Any) -> Any:
    """A report in which every text that is not the name of a thing of ours is hostile."""
    if isinstance(part, dict):
        kept = (
            "backend",
            "mode",
            "verdict",
            "outcome",
            "step",
            "role",
            "unit",
            "config",
        )
        kept += ("confidence", "effort", "objective")
        return {k: v if k in kept else hostile(v) for k, v in part.items()}
    if isinstance(part, list):
        return [hostile(each) for each in part]
    return HOSTILE if isinstance(part, str) else part


def hostile_report() -> dict[str, Any]:
    """The sample with its first phase alone, every text in it hostile."""
    report: dict[str, Any] = hostile(copy.deepcopy(SAMPLE))
    phase = report["phases"]["forward_exploration"]
    report["phases"] = {HOSTILE: phase}
    phase["trials"][1]["config"] = phase["answer"]["best"]["config"] = {
        "backend": HOSTILE
    }
    row = {"count": 1, "backend": HOSTILE, "outcome": "crashed", "step": "compile"}
    row |= {
        "message": HOSTILE,
        "numbers": [3],
        "answered": False,
        "log": "x/trials/0003/log.txt",
    }
    phase["failures"] = [row]
    return report


def assert_is_text(shown: str) -> None:
    """Nothing hostile became markup, and it can be read."""
    page = Page(shown)
    tags = [tag for tag, _ in page.elements]
    assert not {"script", "img", "a"} & set(tags)
    assert not [
        k for _, attributes in page.elements for k in attributes if k.startswith("on")
    ]
    assert SHOWN in page.text and "\x1b" not in shown


def test_nothing_that_a_file_says_becomes_markup() -> None:
    report = hostile_report()
    run = Run(
        phase=HOSTILE,
        batch_size=report["phases"][HOSTILE]["answer"]["batch_size"],
    )
    run.search(CompileConfig(HOSTILE), 1.5)
    text = to_html(Report.from_dict(report), run.records, {HOSTILE: HOSTILE})
    assert_is_text(text)
    assert text.count("<svg") == 3
    # Where a number belongs.
    report["phases"][HOSTILE]["answer"]["batch_size"] = HOSTILE
    with pytest.raises(ValueError, match="batch_size is"):
        Report.from_dict(report)


def test_a_result_is_the_report_as_text_in_a_notebook_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_of("cpu", tmp_path)
    with inside(tmp_path):
        result = load("cpu")
    plain = str(result)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert str(result) == plain
    assert html.unescape(Page(result._repr_html_()).text) == html.unescape(plain)
    assert "speed-up" in plain and "\x1b" not in plain


def test_the_policy_lets_no_script_run() -> None:
    text = to_html(Report.from_dict(SAMPLE))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in text


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        (
            "inductor",
            {"The race, batch size 4", "Speed-up against compile time, batch size 4"},
        ),
        (
            "gpu_cnn",
            {
                "Speed-up over batch size",
                "Speed-up against compile time, batch size 16",
            },
        ),
        ("interrupted", {"Fastest of the search, one process each, batch size 16"}),
    ],
)
def test_plots_are_drawn_in_colours_of_the_page_and_inside_their_frame(
    name: str, titles: set[str], tmp_path: Path
) -> None:
    text, _ = page_of(name, tmp_path)
    assert titles <= set(TITLE.findall(text))
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        assert "#" not in svg and "var(--" in svg and "aria-label=" in svg
        assert len(re.findall("<text", svg)) > 3
        ((width, height),) = re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)
        places = re.findall(r' (?:c?x|M|L)="?([\d.-]+)"?,? c?y?="?([\d.-]+)', svg)
        places += re.findall(r"[ML]([\d.-]+) ([\d.-]+)", svg)
        assert places
        for x, y in places:
            assert 0 <= float(x) <= float(width) and 0 <= float(y) <= float(height)


def test_a_dot_stands_where_its_figures_are() -> None:
    """Twice as fast is twice as far from where nothing would be done; a tenfold time as far."""
    phase = copy.deepcopy(SAMPLE["phases"]["forward_exploration"])
    speeds, times = (1.0, 2.0, 3.0), (1.0, 10.0, 100.0)
    first = next(t for t in phase["trials"] if t["speedup"] and t["compile_s"])
    phase["trials"] = [
        {
            **first,
            "number": n,
            "role": "search",
            "compile_s": s,
            "speedup": dict.fromkeys(("value", "low", "high"), v),
        }
        for n, (v, s) in enumerate(zip(speeds, times, strict=True))
    ]
    phase["answer"]["best"]["number"] = 2
    phase["answer"]["batch_size"] = first["batch_size"]
    phase["other_sizes"] = []
    (plot,) = of_phase("forward_exploration", PhaseResult.from_dict(phase), ())
    (x1, y1, *_), (x2, y2, *_), (x3, y3, radius, *_) = plot.dots
    assert x3 - x2 == pytest.approx(x2 - x1, abs=0.2)
    assert y2 - y3 == pytest.approx(y1 - y2, abs=0.2) and y1 > y3
    assert radius > plot.dots[0][2]


def test_finalists_are_those_that_were_raced_or_else_all_of_the_search() -> None:
    run = Run()
    first, second = run.plain(1.2), run.search(MAX, 1.5)
    run.search(LITE, 1.1)
    numbers = [c.record.number for c in raced_at(4, run.records)]
    assert numbers == [second, first, 3]
    run.race(first, 1.3, 1.3, 1.3)
    run.race(second, 1.2, 1.2, 1.2)
    assert [c.record.number for c in raced_at(4, run.records)] == [first, second]
    assert raced_at(16, run.records) == []


def test_open_shows_the_page_in_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    with tarfile.open(RUNS / "cpu.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    with inside(tmp_path):
        done = CliRunner().invoke(app, ["show", "cpu", "--open"])
    assert done.output == "runs/cpu/report.html\n"
    assert opened == [(tmp_path / "runs/cpu/report.html").resolve().as_uri()]
