"""The screen while a run goes on: a live board, or stable lines."""

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
from autocompile.search.jobs import Budget
from autocompile.search.records import to_record
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig, Setting
from autocompile.store.record import Outcome, Record, Step

TARGET = {"spec": "net.py", "kind": "Module", "description": "Net", "choices": {"device": "cpu"}}
MACHINE = {"autocompile": "0.1", "torch": "2.13.0", "device_name": "EPYC", "cores": 2}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def worked(number: int, config: CompileConfig, faster: float = 1.0, **other: Any) -> Record:
    record = to_record(number, Setting(config, 4), measured(faster, eager_s=0.02))
    return replace(record, **{"compile_s": None if config.is_eager else 6.8, **other})


def failed(number: int, backend: str, outcome: Outcome, message: str, wall_s: float) -> Record:
    config = CompileConfig(backend)
    return Record(number, "forward", config, 4, outcome, Step.COMPILE, message, wall_s=wall_s)


def begin(shown: Progress, clock: Clock | None = None, total_s: float | None = 300.0) -> None:
    shown.header(TARGET, MACHINE, "runs/net-0003")
    budget = Budget(total_s, clock=clock or Clock())
    shown.searching({"forward": "5 backends → 27 settings"}, budget)


class Board:
    """A live progress on a terminal that is kept in memory."""

    def __init__(self, width: int = 120, height: int = 50) -> None:
        self.file, self.clock = io.StringIO(), Clock()
        self.console = Console(
            file=self.file, width=width, height=height, force_terminal=True, legacy_windows=False
        )
        self.shown = LiveProgress(self.console, self.clock)

    def lines(self) -> list[str]:
        """The frame that stands on the terminal now."""
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
    shown.started(0, Setting(EAGER, 4), "search")
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
    assert out.startswith("autocompile 0.1 · torch 2.13.0 · EPYC, 2 cores\ntarget  net.py (Module)")
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


@pytest.mark.parametrize(("width", "height"), [(80, 50), (120, 50), (80, 12), (30, 10)])
def test_the_board_never_exceeds_16_lines_or_the_terminal(width: int, height: int) -> None:
    board = Board(width, height)
    begin(board.shown)
    modes = ["default", "lite", "max-autotune", "reduce-overhead"]
    configs = [CompileConfig(mode=m, fullgraph=f) for m in modes for f in (False, True)]
    heights = set()
    for number, config in enumerate([EAGER, *configs, *configs, *configs]):
        batch = 1 + number // 8
        board.shown.started(number, Setting(config, batch), "search")
        board.shown.step(number, Step.COMPILE)
        heights.add(len(board.lines()))
        board.shown.ended(worked(number, config, 1 + number / 10, batch_size=batch), 30 - number)
        heights.add(len(board.lines()))
    assert max(heights) == min(16, height - 1)
    assert all(len(line) <= width for line in board.lines())


def test_nothing_is_drawn_while_a_trial_measures(board: Board) -> None:
    board.shown.started(0, Setting(EAGER, 4), "search")
    board.shown.step(0, Step.VERIFY)
    assert board.shown._live.auto_refresh is False  # no thread draws behind our back
    before = board.file.getvalue()
    assert "verifying, then measuring" in before
    board.shown.step(0, Step.MEASURE)
    for _ in range(5):
        board.clock.now += 1
        board.shown.tick()
    board.shown.warning("[b]busy[/b]")
    board.shown.started(1, Setting(DEFAULT_INDUCTOR, 4), "search")
    board.shown.step(1, Step.COMPILE)
    board.shown.ended(failed(2, "ipex", Outcome.UNSUPPORTED, "", 0.0), 25)
    assert board.file.getvalue() == before
    board.shown.step(0, Step.VERIFY)
    after = board.file.getvalue()[len(before) :]
    assert "warning: [b]busy[/b]" in after
    assert "finishing" in after


def test_a_tick_moves_the_clock_of_a_trial_that_compiles(board: Board) -> None:
    board.shown.started(16, Setting(CompileConfig(mode="max-autotune"), 4), "search")
    board.shown.step(16, Step.COMPILE)
    board.clock.now += 7
    board.shown.tick()
    assert " now   #16 forward batch 4 · inductor max-autotune · compiling 7 s" in board.lines()


def test_on_a_cluster_a_running_trial_names_its_station(board: Board) -> None:
    board.shown.started(3, Setting(CompileConfig(mode="max-autotune"), 4), "search")
    board.shown.step(3, Step.COMPILE, "gpu-1f2e/0")
    assert (
        " now   #3 forward batch 4 · inductor max-autotune · compiling on gpu-1f2e/0"
        in board.lines()
    )


def test_while_the_sides_of_a_race_measure_nothing_is_drawn(board: Board) -> None:
    """Each in its process: that one is through says nothing of the others."""
    board.shown.racing("forward", 4, 3, 2)
    assert " now   race of forward batch 4, set 2: 3 settings beside eager" in board.lines()
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


def test_the_best_of_each_phase_and_batch_size_stands_first_and_then_who_follows(
    board: Board,
) -> None:
    for number, size in enumerate((1, 4)):
        board.shown.ended(worked(number, EAGER, batch_size=size), 20)
    board.shown.ended(worked(2, DEFAULT_INDUCTOR, 1.02, batch_size=4), 19)
    board.shown.ended(worked(3, CompileConfig(mode="lite"), 1.5, batch_size=4), 18)
    lines = board.lines()
    start = lines.index(next(x for x in lines if "against eager" in x)) + 1
    numbers = [line.split()[0] for line in lines[start:]]
    assert numbers == ["0", "3", "2"]  # eager where nothing is faster, and not beside another
    assert lines[start].split() == "0 forward 1 50.0 ± 0.2 % 1.00× – eager".split()
    assert lines[start + 1].split()[:8] == "3 forward 4 300 ± 0.2 % 1.50×".split()
    assert lines[start + 2].endswith("plain torch.compile()")


def bar(board: Board) -> str:
    return next(line for line in board.lines() if "━" in line or "─" in line)


def test_the_budget_is_counted_down_and_failures_are_counted_by_kind(board: Board) -> None:
    assert "0:00 · 5:00 left   0 tried" in bar(board)
    for number in range(3):
        board.clock.now += 20
        board.shown.ended(worked(number, CompileConfig(mode="lite"), 1.1), 9 - number)
    board.shown.ended(failed(3, "ipex", Outcome.UNSUPPORTED, "", 0.0), 7)
    board.shown.ended(failed(4, "tvm", Outcome.UNSUPPORTED, "", 0.0), 6)
    board.shown.ended(worked(5, DEFAULT_INDUCTOR, 1.1, duplicate_of=0), 6)
    said = bar(board)
    assert said.endswith("1:00 · 4:00 left   6 tried · 3 ok · 2 unsupported · 1 same")
    assert said.count("━") == round(0.2 * (said.count("━") + said.count("─")))
    board.shown.ended(worked(6, DEFAULT_INDUCTOR, 1.1, role="confirm", repeats=5), 0)
    assert "6 tried" in bar(board)  # a race tries nothing new
    board.clock.now += 1000
    board.shown.tick()
    assert "─" not in bar(board)
    assert "0:00 left" in bar(board)


def test_without_an_end_of_time_the_list_is_counted_down(board: Board) -> None:
    begin(board.shown, board.clock, None)
    board.clock.now += 30
    board.shown.ended(worked(0, EAGER), 3)
    said = bar(board)
    assert said.endswith("1/4 · 0:30   1 tried · 1 ok")
    assert said.count("━") == said.count("─") / 3


def test_the_last_frame_says_what_was_done(board: Board) -> None:
    board.shown.ended(worked(0, EAGER), 0)
    board.clock.now += 61
    board.shown.started(1, Setting(EAGER, None), "search")
    board.shown.step(1, Step.MEASURE)  # interrupted here
    board.shown.warning("interrupted")
    board.shown.close()
    board.shown.close()
    board.shown.tick()
    assert board.lines()[-1] == "1 tried in 1:01 · 1 ok"
    assert "run     runs/net-0003" in board.lines()
    assert "warning: interrupted" in board.file.getvalue()
    assert board.file.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_the_board_shows_text_of_a_trial_literally() -> None:
    board = Board()
    hostile = "x\x1b[2J[red]y[/red][/]"
    board.shown.header({"spec": hostile}, {"device_name": hostile}, hostile)
    board.shown.searching({hostile: hostile}, Budget(9.0))
    board.shown.started(1, Setting(CompileConfig(hostile), 4), "search")
    board.shown.ended(worked(1, CompileConfig(hostile), 1.2), 1)
    assert "\x1b[2J" not in board.file.getvalue()
    assert sum("x[red]y[/red][/]" in line for line in board.lines()) == 5


def test_the_kind_decides_and_auto_looks_at_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(io.BytesIO(), encoding="utf-8")
    assert isinstance(progress("auto", terminal), LiveProgress)
    assert isinstance(progress("plain", terminal), PlainProgress)
    assert isinstance(progress("none", terminal), Progress)
    assert isinstance(progress("auto", io.StringIO()), PlainProgress)
    assert isinstance(progress("auto", Terminal(io.BytesIO(), encoding="ascii")), PlainProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress("auto", terminal), PlainProgress)
    with pytest.raises(UsageError, match="no progress 'loud'"):
        progress("loud", terminal)


def test_of_many_trials_side_by_side_the_farthest_is_shown(board: Board) -> None:
    for number in range(4):
        board.shown.started(number, Setting(CompileConfig(), number), "search")
        board.shown.step(number, Step.COMPILE)
    board.shown.step(2, Step.VERIFY)
    (now,) = [line for line in board.lines() if line.startswith(" now")]
    assert "#2 " in now
    assert "forward batch 2 · inductor" in now or "forward batch 2 · plain" in now
    assert "verifying" in now
    assert now.endswith("and 3 beside it")


def test_before_anything_is_known_the_board_says_what_is_going_on() -> None:
    board = Board()
    board.shown.step(-1, Step.IMPORT)
    assert board.lines() == ["looking at the machine, torch and the target ..."]
