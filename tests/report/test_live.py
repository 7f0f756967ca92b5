"""The screen while a run goes on: stable lines, and on a terminal what goes on now."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fakes import measured
from rich.console import Console

from autocompile.errors import UsageError
from autocompile.progress import Progress
from autocompile.report.live import LiveProgress, PlainProgress, progress
from autocompile.search.deadlines import Deadlines
from autocompile.search.records import to_record
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig, Setting
from autocompile.store.record import Outcome, Record, Step

TARGET = {
    "spec": "net.py",
    "kind": "Module",
    "description": "Net",
    "choices": {"device": "cpu"},
}
MACHINE = {"autocompile": "0.1", "torch": "2.13.0", "device_name": "EPYC", "cores": 2}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def worked(
    number: int, config: CompileConfig, faster: float = 1.0, **other: Any
) -> Record:
    record = to_record(number, Setting(config, 4), measured(faster, eager_s=0.02))
    return replace(record, **{"compile_s": None if config.is_eager else 6.8, **other})


def failed(
    number: int, backend: str, outcome: Outcome, message: str, wall_s: float
) -> Record:
    config = CompileConfig(backend)
    ended = {"outcome": outcome, "step": Step.COMPILE, "message": message}
    return Record(number, "forward", config, 4, **ended, wall_s=wall_s)


def begin(
    shown: Progress, clock: Clock | None = None, total_s: float | None = 300.0
) -> None:
    shown.header(TARGET, MACHINE, "runs/net-0003")
    clock = clock or Clock()
    deadlines = Deadlines(total_s, clock(), clock)
    shown.searching({"forward": "5 backends → 27 settings"}, deadlines)


class Board:
    """A live progress on a terminal that is kept in memory."""

    def __init__(self, width: int = 120, height: int = 50) -> None:
        self.file, self.clock = io.StringIO(), Clock()
        self.console = Console(
            file=self.file,
            width=width,
            height=height,
            force_terminal=True,
            legacy_windows=False,
        )
        self.shown = LiveProgress(self.console, self.clock)

    def lines(self) -> list[str]:
        """What is redrawn in place."""
        found = self.console.render_lines(self.shown._live.renderable)
        return ["".join(segment.text for segment in line).rstrip() for line in found]


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board()
    begin(made.shown, made.clock)
    yield made
    made.shown.close()


@pytest.fixture
def plain() -> tuple[PlainProgress, io.StringIO, Clock]:
    file, clock = io.StringIO(), Clock()
    return PlainProgress(file, clock), file, clock


Plain = tuple[PlainProgress, io.StringIO, Clock]


def test_a_finished_trial_is_one_stable_line(plain: Plain) -> None:
    shown, file, clock = plain
    begin(shown)
    clock.now += 72
    shown.ended(worked(14, CompileConfig(mode="max-autotune"), 1.09), 12)
    clock.now += 3
    shown.ended(failed(15, "openvino", Outcome.CRASHED, "SIGSEGV in compile", 5.0), 11)
    assert file.getvalue().splitlines()[-2:] == [
        "[  72s] #14 ok       forward batch 4               inductor max-autotune            "
        "1.09× ±0.00  compile 6.8s",
        "[  75s] #15 crashed  forward batch 4               openvino                         "
        "SIGSEGV in compile · runs/net-0003/trials/0015/log.txt",
    ]


def test_plain_progress_tells_what_a_log_needs(plain: Plain) -> None:
    shown, file, _ = plain
    begin(shown)
    shown.started(0, Setting(EAGER, 4))
    shown.step(0, Step.MEASURE)
    shown.tick()
    shown.ended(worked(0, EAGER), 26)
    shown.ended(worked(1, DEFAULT_INDUCTOR, duplicate_of=0, batch_size=None), 25)
    shown.ended(failed(2, "ipex", Outcome.UNSUPPORTED, "needs torch 2.8", 0.0), 24)
    shown.racing("forward", 4, 3, 1)
    shown.ended(worked(3, DEFAULT_INDUCTOR, 1.2, role="confirm", repeats=1), 24)
    shown.warning("the machine is busy")
    shown.close()
    shown.close()
    out = file.getvalue()
    assert out.startswith(
        "autocompile 0.1 · torch 2.13.0 · EPYC, 2 cores\ntarget  net.py (Module)"
    )
    assert out.endswith("warning: the machine is busy\n")
    for line in (
        "        device: cpu\n",
        "space   forward · 5 backends → 27 settings\n",
        "budget  5:00\n",
        "#0  ok       forward batch 4               eager                            1.00×\n",
        "same code as trial 0\n",
        "needs torch 2.8\n",  # no process, no log
        "race of forward batch 4, set 1: 3 beside eager\n",
        "repeats #1\n",
    ):
        assert line in out
    assert "\x1b" not in out


def test_plain_progress_shows_text_of_a_trial_literally(plain: Plain) -> None:
    shown, file, _ = plain
    message = "\x1b[31m[red]x[/red]\x1b[0m [/]\r\nnext"
    shown.ended(failed(1, "bad", Outcome.COMPILE_ERROR, message, 1.0), 3)
    shown.warning(message)
    assert file.getvalue().count("[red]x[/red] [/] next") == 2
    assert "\x1b" not in file.getvalue()
    assert file.getvalue().count("\n") == 2


def test_plain_progress_survives_a_reader_that_left_and_ascii() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    PlainProgress(Closed()).warning("nobody reads")
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    PlainProgress(file).ended(worked(1, DEFAULT_INDUCTOR, 1.2), 3)
    assert b"1.20x ~0.00" in raw.getvalue()


@pytest.mark.parametrize("width", [80, 120, 30])
def test_what_is_redrawn_fits_in_two_lines_of_the_terminal(width: int) -> None:
    board = Board(width)
    begin(board.shown)
    for number in range(20):
        board.shown.started(number, Setting(CompileConfig(mode="max-autotune"), 4))
        board.shown.step(number, Step.COMPILE)
        assert len(board.lines()) == 2
        assert all(len(line) <= width for line in board.lines())


def test_a_trial_that_had_a_process_stays_as_a_line(board: Board) -> None:
    board.shown.ended(
        failed(15, "openvino", Outcome.CRASHED, "SIGSEGV in compile", 5.0), 11
    )
    board.shown.ended(
        failed(16, "ipex", Outcome.UNSUPPORTED, "needs torch 2.8", 0.0), 10
    )
    board.shown.racing("forward", 4, 3, 2)
    out = board.file.getvalue()
    assert "SIGSEGV in compile · runs/net-0003/trials/0015/log.txt" in out
    assert "needs torch 2.8" not in out and "2 tried · 1 crashed · 1 unsupported" in out
    assert "race of forward batch 4, set 2: 3 beside eager" in out


def test_nothing_is_drawn_while_a_trial_measures(board: Board) -> None:
    board.shown.started(0, Setting(EAGER, 4))
    board.shown.step(0, Step.VERIFY)
    assert board.shown._live.auto_refresh is False  # no thread draws behind our back
    before = board.file.getvalue()
    assert "verifying, then measuring" in before
    board.shown.step(0, Step.MEASURE)
    for _ in range(5):
        board.clock.now += 1
        board.shown.tick()
    board.shown.warning("[b]busy[/b]")
    board.shown.started(1, Setting(DEFAULT_INDUCTOR, 4))
    board.shown.step(1, Step.COMPILE)
    board.shown.ended(failed(2, "ipex", Outcome.UNSUPPORTED, "", 0.0), 25)
    assert board.file.getvalue() == before
    board.shown.step(0, Step.VERIFY)
    after = board.file.getvalue()[len(before) :]
    assert "warning: [b]busy[/b]" in after
    assert "finishing" in after


def test_a_tick_moves_the_clock_of_a_trial_that_compiles(board: Board) -> None:
    board.shown.started(16, Setting(CompileConfig(mode="max-autotune"), 4))
    board.shown.step(16, Step.COMPILE)
    board.clock.now += 7
    board.shown.tick()
    assert (
        "#16 forward batch 4 · inductor max-autotune · compiling 7 s" in board.lines()
    )


def test_while_the_sides_of_a_race_measure_nothing_is_drawn(board: Board) -> None:
    """Each in its process: that one is through says nothing of the others."""
    board.shown.racing("forward", 4, 3, 2)
    assert board.lines()[1] == "racing"
    board.shown.step(20, Step.MEASURE)
    board.shown.step(21, Step.COMPILE)
    before = board.file.getvalue()
    board.shown.tick()
    board.shown.step(21, Step.MEASURE)
    board.shown.step(20, Step.VERIFY)
    assert board.file.getvalue() == before
    board.shown.step(21, Step.VERIFY)
    assert board.file.getvalue() != before
    board.shown.step(22, Step.MEASURE)
    crashed = failed(22, "tvm", Outcome.CRASHED, "", 1.0)
    board.shown.ended(replace(crashed, role="confirm", repeats=1), 0)
    before = board.file.getvalue()
    board.shown.tick()
    assert board.file.getvalue() != before


def test_the_budget_is_counted_down_and_failures_are_counted_by_kind(
    board: Board,
) -> None:
    assert "0:00 · 5:00 left   0 tried" in board.lines()[0]
    for number in range(3):
        board.clock.now += 20
        board.shown.ended(worked(number, CompileConfig(mode="lite"), 1.1), 9 - number)
    board.shown.ended(failed(3, "ipex", Outcome.UNSUPPORTED, "", 0.0), 7)
    board.shown.ended(failed(4, "tvm", Outcome.UNSUPPORTED, "", 0.0), 6)
    board.shown.ended(worked(5, DEFAULT_INDUCTOR, 1.1, duplicate_of=0), 6)
    said = board.lines()[0]
    assert said.endswith("1:00 · 4:00 left   6 tried · 3 ok · 2 unsupported · 1 same")
    board.shown.ended(worked(6, DEFAULT_INDUCTOR, 1.1, role="confirm", repeats=5), 0)
    assert "6 tried" in board.lines()[0]  # a race tries nothing new
    board.clock.now += 1000
    board.shown.tick()
    assert "0:00 left" in board.lines()[0]


def test_without_an_end_of_time_the_list_is_counted_down(board: Board) -> None:
    begin(board.shown, board.clock, None)
    board.clock.now += 30
    board.shown.ended(worked(0, EAGER), 3)
    assert board.lines()[0].endswith("1/4 · 0:30   1 tried · 1 ok")


def test_the_last_line_says_what_was_done(board: Board) -> None:
    board.shown.ended(worked(0, EAGER), 0)
    board.clock.now += 61
    board.shown.started(1, Setting(EAGER, None))
    board.shown.step(1, Step.MEASURE)  # interrupted here
    board.shown.warning("interrupted")
    board.shown.close()
    board.shown.close()
    board.shown.tick()
    out = board.file.getvalue()
    assert out.count("1 tried · 1 ok in 1:01") == 1
    assert "run     runs/net-0003" in out
    assert "warning: interrupted" in out
    assert "\x1b[?25h" in out  # the cursor is back


def test_the_display_shows_text_of_a_trial_literally() -> None:
    board = Board()
    hostile = "x\x1b[2J[red]y[/red][/]"
    board.shown.header({"spec": hostile}, {"device_name": hostile}, hostile)
    board.shown.searching({hostile: hostile}, Deadlines(9.0))
    board.shown.ended(worked(1, CompileConfig(hostile), 1.2, wall_s=1.0), 1)
    board.shown.started(2, Setting(CompileConfig(hostile), 4))
    out = board.file.getvalue()
    assert "\x1b[2J" not in out
    assert out.count("x[red]y[/red][/]") >= 6
    assert "x[red]y[/red][/]" in board.lines()[1]


def test_the_kind_decides_and_auto_looks_at_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(io.BytesIO(), encoding="utf-8")
    assert isinstance(progress("auto", terminal), LiveProgress)
    assert isinstance(progress("plain", terminal), PlainProgress)
    assert isinstance(progress("none", terminal), Progress)
    assert isinstance(progress("auto", io.StringIO()), PlainProgress)
    assert isinstance(
        progress("auto", Terminal(io.BytesIO(), encoding="ascii")), PlainProgress
    )
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress("auto", terminal), PlainProgress)
    with pytest.raises(UsageError, match="no progress 'loud'"):
        progress("loud", terminal)


def test_of_many_trials_side_by_side_the_farthest_is_shown(board: Board) -> None:
    for number in range(4):
        board.shown.started(number, Setting(CompileConfig(), number))
        board.shown.step(number, Step.COMPILE)
    board.shown.step(2, Step.VERIFY)
    now = board.lines()[1]
    assert now.startswith("#2 forward batch 2 · plain torch.compile() · verifying")
    assert now.endswith("and 3 beside it")


def test_before_anything_is_known_the_display_says_what_is_going_on() -> None:
    board = Board()
    board.shown.step(-1, Step.IMPORT)
    assert board.lines()[-1] == "looking at the machine, torch and the target ..."
