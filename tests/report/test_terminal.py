"""The answer on a terminal and in a pipe, beyond what the recorded runs show."""

from __future__ import annotations

import copy
import functools
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from autocompile.errors import UsageError
from autocompile.report.terminal import render, render_trials
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.store.report import Report as TypedReport

Report = dict[str, Any]

SAMPLE = json.loads(
    (Path(__file__).parents[1] / "data" / "report.json").read_text("utf-8")
)
HOSTILE = (
    "\x1b[31mboom\x1b[0m [red]x[/red] and [/]\nsecond line \x1b]0;title\x07 :smile:"
)
SHOWN = "boom [red]x[/red] and [/] second line  :smile:"


@pytest.fixture
def report() -> Report:
    return copy.deepcopy(SAMPLE)


@pytest.fixture
def phase(report: Report) -> Report:
    found: Report = report["phases"]["forward_exploration"]
    return found


def printed(report: Report, width: int = 0, color: bool = False, **options: Any) -> str:
    """What a terminal of that width gets, or a pipe for width 0."""
    file = io.StringIO()
    terminal = {"width": width, "force_terminal": True, "no_color": not color}
    console = Console(file=file, legacy_windows=False, **terminal if width else {})
    render(TypedReport.from_dict(report), console, **options)
    return file.getvalue()


def bare(screen: str) -> str:
    return Text.from_ansi(screen).plain


def places(data: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a report are."""
    if isinstance(data, (dict, list)):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield (*above, key)
            yield from places(data[key], (*above, key))


def test_no_value_of_a_report_steers_the_terminal_not_even_in_place_of_a_number() -> (
    None
):
    shown = refused = 0
    for *above, last in places(SAMPLE):
        report = copy.deepcopy(SAMPLE)
        inner = functools.reduce(lambda data, key: data[key], above, report)
        inner[last] = HOSTILE
        try:
            TypedReport.from_dict(report)
        except (TypeError, ValueError, UsageError):
            refused += 1
            continue
        found = printed(report, verbose=True)
        assert not {"\x1b", "\x07"} & set(found), (above, last)
        shown += 1
    assert shown > 150 and refused > 250


def test_what_failed_or_was_left_out_is_told_with_verbose_only(
    report: Report, phase: Report
) -> None:
    # What only a flag would bring comes last.
    phase["dropped"] = {
        "--autocast only by name": 40,
        "no convolutions": 3,
        "no modes": 12,
    }
    phase["notes"], phase["answer"]["best"]["notes"] = (
        ["4 trials were stopped"],
        ["one round was throttled"],
    )
    short, full = printed(report), printed(report, verbose=True)
    skipped = (
        "Skipped no modes (12) · no convolutions (3) · --autocast only by name (40)"
    )
    for word in ("4 trials were stopped", skipped, "SIGSEGV"):
        assert word not in short and word in full
    assert "  Note    one round was throttled\n" in short
    rest = "failures, what was left out, every trial"
    assert f"More: {rest}   → autocompile show ppo_breakout-0003 -v\n" in short
    assert "More:" not in full


def test_a_failed_phase_says_why_and_what_failed(report: Report, phase: Report) -> None:
    phase["answer"] = {
        "batch_size": 16,
        "verdict": "failed",
        "reason": "all 12 settings failed.",
    }
    phase["other_sizes"] = []
    out = printed(report)
    assert (
        "forward_exploration   failed       –            all 12 settings failed\n"
        in out
    )
    assert "SIGSEGV in compile" in out
    report["phases"] = {}
    assert "no phase was started" in printed(report)


def test_the_default_setting_is_not_compared_with_itself(
    report: Report, phase: Report
) -> None:
    phase["answer"]["best"]["config"] = DEFAULT_INDUCTOR.to_dict()
    out = printed(report)
    assert "high         plain torch.compile()" in out
    assert "against plain torch.compile()" not in out


def test_no_more_is_claimed_of_the_weights_than_was_seen(
    report: Report, phase: Report
) -> None:
    for live, follow in (
        (None, ""),
        (False, " but do not follow"),
        (True, " and follow"),
    ):
        phase["answer"]["best"]["weights_live"] = live
        shown = "outputs match eager" + (f"{follow} weight updates" if follow else "")
        assert f" {shown}\n" in printed(report)


@pytest.mark.parametrize(
    ("beside", "words"),
    [(None, "s ("), (0, "s ("), (1, "beside 1 other ("), (3, "beside 3 others (")],
)
def test_a_compile_beside_others_is_no_compile_alone(
    report: Report, phase: Report, beside: int | None, words: str
) -> None:
    phase["answer"]["best"] |= {"beside": beside, "compile_s": 4, "warm_compile_s": 1}
    (cost,) = [line for line in printed(report).splitlines() if "Cost" in line]
    assert words in cost
    assert ("beside" in cost) is bool(beside)


def test_a_tie_is_told_with_the_reason_for_the_choice(
    report: Report, phase: Report
) -> None:
    assert "Ties" not in printed(report)  # the best alone is no tie
    phase["answer"]["best"]["ties"] = [3]
    because = "chosen since it compiles faster or is simpler"
    assert f"Ties    as fast within 1 %: plain torch.compile(); {because}\n" in printed(
        report
    )


@pytest.mark.parametrize("name", ["forward_exploration", "optimizer_step"])
@pytest.mark.parametrize("word", ["open", "low"])
def test_what_is_not_sure_comes_with_the_command_that_settles_it(
    report: Report, name: str, word: str
) -> None:
    assert printed(report).count("Sure") == 1  # where eager is kept, its reason says it
    command = "autocompile tune ppo.py:config --resume --budget 5m"
    report["phases"][name]["answer"] |= {
        "confidence": word,
        "why": "lite may be faster",
        "command": command,
    }
    out = printed(report)
    assert f"  {word.capitalize():<8}lite may be faster   → {command}\n" in out
    row = next(line for line in out.splitlines() if line.startswith(name))
    assert f"   {word} " in row
    assert ("Sure" in out) is (name != "forward_exploration")


def test_a_phase_without_an_answer_says_what_brings_one(
    report: Report, phase: Report
) -> None:
    command = "autocompile tune ppo.py:config --resume --budget 10m"
    phase["answer"] = {
        "batch_size": 16,
        "verdict": "unknown",
        "reason": "no compiled setting has ended",
        "command": command,
    }
    out = printed(report)
    assert (
        "forward_exploration   no result yet   –            no compiled setting has ended"
        in out
    )
    told = "what compiling brings: going on tells"
    assert f"  Unknown {told}   → {command}\n" in out
    assert "keep eager" not in out.split("optimizer_step")[0]


def test_a_setting_that_only_keeps_the_limits_is_shown_with_its_figure(
    report: Report, phase: Report
) -> None:
    slower = {"value": 0.97, "low": 0.95, "high": 0.99}
    phase["answer"] |= {"verdict": "within_limits", "reason": "eager breaks a limit"}
    phase["answer"]["best"]["speedup"] = slower
    out = printed(report)
    assert "forward_exploration   0.97× [0.95, 0.99]   high" in out
    assert "  Sure    eager breaks a limit" in out


@pytest.mark.parametrize("width", [0, 80, 120])
def test_text_of_a_trial_is_shown_literally(
    report: Report, phase: Report, width: int
) -> None:
    phase["failures"][0] |= {"message": HOSTILE, "backend": "[bold]b[/bold]\x1b[2J"}
    phase["notes"], phase["answer"]["reason"] = [HOSTILE], HOSTILE
    phase["unusable"] = {HOSTILE: HOSTILE}
    open_ = {"confidence": "open", "why": HOSTILE, "command": HOSTILE}
    report["phases"]["optimizer_step"]["answer"] |= open_
    for trial in phase["trials"]:
        trial["message"] = HOSTILE
    out = printed(report, width, color=True, verbose=True)
    assert not [
        escape for escape in ("\x1b[31mboom", "\x1b]0;", "\x1b[2J") if escape in out
    ]
    text = " ".join(bare(out).split())
    assert " ".join(SHOWN.split()) in text
    assert "[bold]b[/bold]" in text
    file = io.StringIO()
    render_trials(TypedReport.from_dict(report), Console(file=file))
    assert SHOWN in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_a_pipe_gets_no_color_and_no_broken_message(
    report: Report, phase: Report
) -> None:
    message = "word " * 30 + "end"
    phase["failures"][0]["message"] = message
    out = printed(report, use="x" * 300, verbose=True)
    assert "\x1b" not in out
    assert message in out
    assert "x" * 300 in out
    assert not set(out) & set("─│┌┐└┘━┃╭╮╯╰")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_terminal_line_never_breaks_inside_a_figure(
    report: Report, width: int
) -> None:
    lines = bare(printed(report, width, verbose=True)).splitlines()
    assert max(map(len, lines)) <= max(width, 80)
    whole = "\n".join(lines)
    figures = (
        "1.41× [1.39, 1.43]",
        "6.8 s (0.9 s warm)",
        "1.4 %",
    )
    assert all(figure in whole for figure in figures)


def test_an_ascii_stream_can_be_written(report: Report) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    render(TypedReport.from_dict(report), Console(file=file))
    render_trials(TypedReport.from_dict(report), Console(file=file))
    assert b"1.41x [1.39, 1.43]" in raw.getvalue()


def test_the_gain_in_the_algorithm_is_told_or_the_command_that_measures_it(
    report: Report,
) -> None:
    command = "the gain is not measured yet   → autocompile verify mine --in-algorithm"
    assert f"\nIn the algorithm: {command}\n" in printed(report, run="mine")
    gain = {"value": 1.21, "low": 1.17, "high": 1.25}
    share = {"untouched": {"value": 0.38, "low": 0.37, "high": 0.39}}
    report["in_algorithm"] = {"steps_per_s": {"gain": gain}, "forward_share": share}
    told = "env steps/s of train() 1.21× [1.17, 1.25] · the forward pass is 38 % of sampling"
    assert f"\nIn the algorithm: {told}\n" in printed(report)
    report["phases"] = {"optimizer_step": report["phases"]["optimizer_step"]}
    assert "In the algorithm" not in printed(report)  # nothing to gain


def test_the_lines_to_paste_are_never_broken_by_us(report: Report) -> None:
    line = 'config.framework("torch", torch_compile_worker=True, ' + "a=1, " * 30
    assert line.strip() in bare(printed(report, 80, use=line))
    use = (
        'tuned(config, "tuned.json")     after    autocompile export last -o tuned.json'
    )
    assert f"\nUse     {use}\n" in printed(report, use=use)
    narrow = 'Use     tuned(config, "tuned.json")\nafter   autocompile export last -o tuned.json\n'
    assert narrow in bare(printed(report, 80, use=use))
