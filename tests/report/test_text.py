from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autocompile.estimate.intervals import Interval
from autocompile.report import text
from autocompile.report.contents import remarks
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome, Step
from autocompile.store.report import Trial


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.inf, "–"),
        (-0.01, "0 s"),
        (0.00003, "30 µs"),
        (0.0003, "0.3 ms"),
        (0.00999, "10 ms"),
        (0.012, "12 ms"),
        (0.0999, "0.1 s"),
        (2.7, "2.7 s"),
        (59.96, "1:00"),
        (72.4, "1:12"),
        (3723.0, "1:02:03"),
    ],
)
def test_a_duration_has_the_unit_that_fits_it(value: float | None, shown: str) -> None:
    assert text.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (512, "512 B"),
        (20_000_000, "20.0 MB"),
        (1_000_000, "1.0 MB"),
        (1.3e9, "1.3 GB"),
    ],
)
def test_bytes_are_in_decimal_units(value: float | None, shown: str) -> None:
    assert text.size(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1204.4, "1 204"),
        (99.96, "100"),
        (85.24, "85.2"),
        (9.996, "10.0"),
        (0.2134, "0.213"),
    ],
)
def test_a_quantity_has_three_figures_and_spaces_between_thousands(
    value: float, shown: str
) -> None:
    assert text.quantity(value) == shown
    assert text.thousands(1_234_567.8) == "1 234 568"


def test_an_estimate_is_shown_with_its_interval() -> None:
    estimate = Interval(1.414, 1.39, 1.43)
    assert text.speedup(estimate) == text.speedup(estimate.to_dict()) == "1.41×"
    assert text.interval(estimate.to_dict()) == "[1.39, 1.43]"
    assert text.ratio(estimate) == "1.41× ±0.02"
    assert text.percent(0.009) == "± 0.9 %"
    assert text.percent(math.inf) == ""
    assert text.speedup(None) == text.interval(None) == text.ratio(None) == "–"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jgone", "gone"),
        ("\x1b\x1b[31m[2Jx", "[2Jx"),
        ("a\r\nb\n\n   c\u2028d", "a b c d"),
        ("tab\there\x00\x08", "tab here"),
        ("\u202eevil\u200b", "evil"),
        ("half \ud800", "half \ufffd"),
        ("[red]x[/red] [/]", "[red]x[/red] [/]"),
    ],
)
def test_text_of_a_trial_becomes_one_printable_line(raw: str, shown: str) -> None:
    assert text.plain(raw) == shown
    text.plain(raw).encode("utf-8")


def test_no_input_leaves_an_escape_character_behind() -> None:
    parts = ["\x1b", "[", "]", "31m", "\x9b", "\x07", "\\", "x"]
    for a in parts:
        for b in parts:
            for c in parts:
                assert not set(text.plain(a + b + c)) & {"\x1b", "\x9b", "\x07", "\n"}


def test_a_long_line_is_cut_to_terminal_cells() -> None:
    assert text.shorten("abcdef", 6) == "abcdef"
    assert text.shorten("abcdefg", 6) == "abcde…"
    assert text.shorten("漢字漢字", 5) == "漢字…"


def test_the_machine_and_the_target_fit_on_a_line_each() -> None:
    cpu = {
        "autocompile": "0.1",
        "torch": "2.13.0",
        "device": "cpu",
        "device_name": "EPYC",
    }
    assert (
        text.machine({**cpu, "cores": 2})
        == "autocompile 0.1 · torch 2.13.0 · EPYC, 2 cores"
    )
    gpu = {
        "torch": "2.11.0",
        "device": "cuda",
        "device_name": "H200",
        "cores": 16,
        "cuda": "13.0",
    }
    assert text.machine(gpu) == "autocompile · torch 2.11.0 · H200 · CUDA 13.0"
    driven = {**gpu, "driver": "570.86", "power_limit_w": 700.0}
    assert text.machine(driven).endswith("H200 · CUDA 13.0 · driver 570.86 · 700 W")
    assert text.target_name({"spec": "net.py"}) == "net.py"
    known = {
        "spec": "net.py",
        "kind": "Module",
        "description": "Net",
        "parameters": 2_162_533,
    }
    assert text.target_name(known) == "net.py (Module) → Net, 2.2 M parameters"


def test_remarks_tell_repeats_breaks_and_doubts() -> None:
    base = Trial(
        number=5,
        batch_size=None,
        message="",
        role="search",
        config=CompileConfig(),
        wall_s=1.0,
        outcome=Outcome.OK,
        step=Step.EXIT,
    )
    trial = replace(base, graph_breaks=1)
    repeats = [replace(base, speedup=Interval(value, 1.0, 2.0)) for value in (1.4, 1.5)]
    repeats.append(replace(base, outcome=Outcome.CRASHED))
    assert list(remarks(trial, repeats)) == [
        "repeated in 3 processes: 1.40 to 1.50×, 1 failed",
        "1 graph break",
    ]
    assert list(remarks(replace(base, duplicate_of=5), [])) == ["same code as trial 5"]


def test_what_an_encoding_cannot_write_keeps_its_length() -> None:
    line = "1.41× · é – →"
    assert text.encodable(line, "utf-8") == line
    assert text.encodable(line, "ascii") == "1.41x | ? - >"
