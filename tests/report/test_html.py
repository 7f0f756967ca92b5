from __future__ import annotations

import base64
import copy
import hashlib
import html
import json
import re
import sys
import tarfile
import webbrowser
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_records import LITE, MAX, Run
from recorded_runs import REPORTS, RUNS, inside, names, page_of
from typer.testing import CliRunner

from autocompile import load
from autocompile.cli.commands import app
from autocompile.export import to_paste
from autocompile.report import text as show
from autocompile.report.page.canvas import drawing
from autocompile.report.page.figures import finalists, of_phase, pairs
from autocompile.report.page.html import to_html, to_notebook
from autocompile.settings.config import EAGER, CompileConfig

SAMPLE = json.loads((Path(__file__).parents[1] / "data" / "report.json").read_text("utf-8"))
HOSTILE = "</script></pre><img src=http://x.invalid/ onerror=alert(1)>\"'&$x_\uffff\x1b[31m"
SHOWN = "</script></pre><img src=http://x.invalid/ onerror=alert(1)>\"'&$x_\uffff"
TITLE = re.compile(r"<figcaption><h3>(.*?)</h3>")
VOID = {"meta", "input", "br"}
SHAPES = {"path", "use", "rect", "circle"}


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
        assert tag in SHAPES | {"title", "g"}, "only SVG has elements that close themselves"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def ids(self) -> list[str]:
        return [a["id"] or "" for _, a in self.elements if "id" in a]


@pytest.mark.parametrize("name", names())
def test_the_page_of_a_recorded_run_is_whole_and_a_notebook_shows_its_answer(
    name: str, tmp_path: Path
) -> None:
    text, report = page_of(name, tmp_path)
    page = Page(text)
    ids = page.ids()
    assert len(ids) == len(set(ids))
    phases = {f"phase-{phase}" for phase in report["phases"]}
    assert {"answer", "trials", "machine", *phases} <= set(ids)
    assert ("exports" in ids) == bool(report["exports"])
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base", "form"), tag
        for key, value in attributes.items():
            assert key not in ("src", "srcset", "action", "xmlns") and not key.startswith("on")
            assert "//" not in (value or "") or key == "content", (tag, key, value)
            assert key != "href" or (value or "").removeprefix("#") in ids
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert len(text.encode()) < 1_000_000
    for phase in report["phases"].values():
        for group in phase["failures"]:
            assert group["answered"] or show.plain(group["message"]) in page.text
    for code in report["exports"].values():
        assert code.splitlines()[-1] in page.text
    rows = sum(len(phase["trials"]) for phase in report["phases"].values())
    _, _, table = text.partition('<section id="trials">')
    assert table.partition("</section>")[0].count("<tr><td") == rows
    shown = to_notebook(report, (), to_paste(report, in_a_line=True))
    if name not in REPORTS:
        with inside(tmp_path):
            shown = load(name)._repr_html_()
    assert_is_the_answer(shown, report, text)


def assert_is_the_answer(shown: str, report: dict[str, Any], page: str) -> None:
    """What a notebook shows: the answer, and the plots of the page that are about it."""
    found = Page(shown)
    assert len(found.ids()) == len(set(found.ids()))
    assert not {"script", "html", "body", "link", "img"} & {tag for tag, _ in found.elements}
    for phase, code in to_paste(report, in_a_line=True).items():
        assert phase in found.text and " ".join(code.split()) in " ".join(found.text.split())
    own = ("Finalists", "Fastest of the search", "Speed-up over batch size")
    on_page = [title for title in TITLE.findall(page) if title.startswith(own)]
    assert [title.split(": ")[-1] for title in TITLE.findall(shown)] == on_page


def test_the_answer_has_the_gain_the_code_and_the_confidence(tmp_path: Path) -> None:
    text, _ = page_of("outcomes", tmp_path)
    start, end = text.index('<section id="answer">'), text.index('<section class="phase"')
    answer = Page(text[start:end]).text
    assert "1.60×" in answer and "[1.55, 1.66]" in answer
    assert 'model = torch.compile(model, mode="max-autotune")' in answer
    assert "keep eager" in answer and answer.count("Confidence: high") == 2
    text, report = page_of("interrupted", tmp_path)
    assert "Interrupted: these are the results so far." in text
    assert 'Confidence: <b><span class="warning">low</span></b>' in text
    assert html.escape(report["phases"]["optimizer_step"]["confidence"]["command"]) in text
    text, _ = page_of("rllib", tmp_path)  # what RLlib does is tuned by its own function
    (code,) = re.findall(r'<section id="answer">.*?<pre><code>(.*?)</code></pre>', text, re.S)
    last = ("from autocompile.rllib import tuned", 'config = tuned(config, "tuned.json")')
    assert html.unescape(code).splitlines()[1:] == list(last)


def hostile(part: Any) -> Any:
    """A report in which every text that is not the name of a thing of ours is hostile."""
    if isinstance(part, dict):
        kept = ("backend", "mode", "verdict", "outcome", "step", "role", "unit", "config")
        return {k: v if k in kept else hostile(v) for k, v in part.items()}
    if isinstance(part, list):
        return [hostile(each) for each in part]
    return HOSTILE if isinstance(part, str) else part


def hostile_report() -> dict[str, Any]:
    """The sample with its first phase alone, every text in it hostile."""
    report: dict[str, Any] = hostile(copy.deepcopy(SAMPLE))
    phase = report["phases"]["forward_exploration"]
    report["phases"] = {HOSTILE: phase}
    phase["trials"][1]["config"] = phase["best"]["config"] = {"backend": HOSTILE}
    row = {"count": 1, "backend": HOSTILE, "outcome": "crashed", "step": "compile"}
    row |= {"message": HOSTILE, "numbers": [3], "answered": False, "log": "x/trials/0003/log.txt"}
    phase["failures"] = [row]
    return report


def assert_is_text(shown: str, scripts: int) -> None:
    """Nothing hostile became markup, and it can be read."""
    page = Page(shown)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == scripts
    assert not {"img", "a"} & set(tags)
    assert not [k for _, attributes in page.elements for k in attributes if k.startswith("on")]
    assert SHOWN in page.text and "\x1b" not in shown


def test_nothing_that_a_file_or_a_log_says_becomes_markup(tmp_path: Path) -> None:
    log = tmp_path / "trials" / "0003" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text(f"first\n{HOSTILE}\n" + "line\n" * 28 + HOSTILE, "utf-8")
    text = to_html(hostile_report(), (), {HOSTILE: HOSTILE}, tmp_path)
    assert_is_text(text, scripts=1)
    (end,) = re.findall(r'<pre class="log">(.*?)</pre>', text, re.S)
    assert html.unescape(end).splitlines() == [SHOWN, *["line"] * 28, SHOWN]


def test_nothing_that_a_file_says_becomes_markup_in_a_notebook() -> None:
    report = hostile_report()
    run = Run(phase=HOSTILE, batch_size=report["phases"][HOSTILE]["best"]["batch_size"])
    run.search(CompileConfig(HOSTILE), 1.5)
    text = to_notebook(report, run.records, {HOSTILE: HOSTILE})
    assert_is_text(text, scripts=0)
    assert text.count("<svg") == 2


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
    assert "speed-up" in plain and "\x1b" not in plain


def test_plots_of_two_runs_in_a_notebook_have_ids_of_their_own() -> None:
    pytest.importorskip("matplotlib")
    both = to_notebook(SAMPLE) + to_notebook({**SAMPLE, "run_dir": "runs/other"})
    ids = Page(both).ids()
    assert ids and len(ids) == len(set(ids))


def test_the_policy_lets_only_the_pages_own_script_run() -> None:
    text = to_html(SAMPLE)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in text


def test_without_matplotlib_the_page_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = to_html(SAMPLE)
    assert "No plots, since matplotlib is missing: pip install matplotlib" in text
    assert "<svg" not in text
    assert "answer" in Page(text).ids()


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("inductor", {"Finalists, batch size 4", "What each dimension brings"}),
        ("gpu_cnn", {"Speed-up over batch size", "Speed-up against compile time, batch size 16"}),
        ("interrupted", {"Fastest of the search, one process each, batch size 16"}),
    ],
)
def test_plots_are_drawn_in_colours_of_the_page(
    name: str, titles: set[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    text, _ = page_of(name, tmp_path)
    assert titles <= set(TITLE.findall(text))
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        assert not re.findall(r"#[0-9a-f]{6}\b(?![\w-])", svg.replace('href="#', ""))
        assert "var(--ink)" in svg and "aria-label=" in svg


def test_a_dollar_in_a_name_is_no_formula() -> None:
    pytest.importorskip("matplotlib")
    run, config = Run(), CompileConfig("my$backend$")
    run.search(config, 1.5)
    best = {"number": 1, "batch_size": 4, "config": config.to_dict(), "speedup": {"value": 1.5}}
    with drawing():
        plots = list(of_phase("forward", {"best": best, "trials": []}, run.records))
    assert "my$backend$" in plots[0].svg


def test_pairs_differ_in_one_thing_and_are_compared_by_their_speed_ups() -> None:
    run = Run()
    plain, autotuned = run.plain(1.2), run.search(MAX, 1.5)
    run.search(CompileConfig(mode="max-autotune", fullgraph=True, dynamic=True), 9.0)  # two things
    run.race(plain, 5.0)  # a race is no pair
    found = pairs(run.records)
    assert set(found) == {"backend inductor in place of eager", "mode max-autotune"}
    assert found["mode max-autotune"] == [(autotuned, plain, pytest.approx(1.25, rel=0.01))]
    eager = run.records[0]
    assert eager.config == EAGER
    assert found["backend inductor in place of eager"][0][1] == eager.number


def test_finalists_are_those_that_were_raced_or_else_all_of_the_search() -> None:
    run = Run()
    first, second = run.plain(1.2), run.search(MAX, 1.5)
    run.search(LITE, 1.1)
    best = {"batch_size": 4}
    numbers = [c.record.number for c in finalists(best, run.records)]
    assert numbers == [second, first, 3]
    run.race(first, 1.3, 1.3, 1.3)
    run.race(second, 1.2, 1.2, 1.2)
    assert [c.record.number for c in finalists(best, run.records)] == [first, second]
    assert finalists({"batch_size": 16}, run.records) == []


def test_open_shows_the_page_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    with tarfile.open(RUNS / "cpu.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    with inside(tmp_path):
        done = CliRunner().invoke(app, ["show", "cpu", "--open"])
    assert done.output == "runs/cpu/report.html\n"
    assert opened == [(tmp_path / "runs/cpu/report.html").resolve().as_uri()]
