from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from autocompile.report.terminal import render, render_trials
from autocompile.settings.config import DEFAULT_INDUCTOR

SAMPLE = json.loads((Path(__file__).parents[1] / "data" / "report.json").read_text("utf-8"))
HOSTILE = "\x1b[31mboom\x1b[0m [red]x[/red] and [/]\nsecond line \x1b]0;title\x07 :smile:"
SHOWN = "boom [red]x[/red] and [/] second line  :smile:"


@pytest.fixture
def report() -> dict[str, Any]:
    return copy.deepcopy(SAMPLE)


def printed(report: dict[str, Any], width: int = 0, color: bool = False, **options: Any) -> str:
    """What a terminal of that width gets, or a pipe for width 0."""
    file = io.StringIO()
    if width:
        console = Console(
            file=file, width=width, force_terminal=True, no_color=not color, legacy_windows=False
        )
    else:
        console = Console(file=file)
    render(report, console, **options)
    return file.getvalue()


def bare(screen: str) -> str:
    return Text.from_ansi(screen).plain


def exploration(report: dict[str, Any]) -> dict[str, Any]:
    phase: dict[str, Any] = report["phases"]["forward_exploration"]
    return phase


def test_the_report_names_the_best_setting_with_its_evidence(report: dict[str, Any]) -> None:
    out = printed(report, use="config.framework('torch')", next_line="autocompile export last")
    assert "forward_exploration   (worker)\n  Best    inductor max-autotune" in out
    assert "trial 5, confirmed in 3 fresh processes" in out
    assert "1.41× [1.39, 1.43] faster than eager" in out
    assert "1.33× [1.30, 1.36] than plain torch.compile()" in out
    assert "1 204 samples/s [1 180, 1 228] at batch size 16 (eager 852)" in out
    assert "compiles in 6.8 s (0.9 s warm), repaid after 1 235 calls" in out
    assert "outputs match eager and follow weight updates" in out
    assert "peak memory 20.5 MB (eager 21.0 MB)" in out
    assert out.endswith("\nUse     config.framework('torch')\nNext    autocompile export last\n")


def test_the_table_has_the_form_of_the_rllib_benchmark(report: dict[str, Any]) -> None:
    lines = printed(report).splitlines()
    start = next(i for i, line in enumerate(lines) if "batch size   no compile" in line)
    assert lines[start].split("   ") == [
        "  batch size", "no compile throughput", "compiled throughput", "speedup", "trial",
    ]  # fmt: skip
    assert lines[start + 2].split() == ["16", "852.0", "1204.4", "+41.0", "%", "5"]
    assert len(lines[start + 1]) == len(lines[start + 2]) == len(lines[start])
    assert any(line.split() == ["-", "500.0", "502.0", "+0.4", "%", "14"] for line in lines)


def test_keep_eager_is_said_with_its_reason(report: dict[str, Any]) -> None:
    out = printed(report)
    assert "  Keep eager: nothing that was tried is more than 1.4 % faster (95 %).\n" in out
    assert "eager runs at 500 steps/s [490, 510]" in out
    assert out.count("Best ") == 1


def test_a_failed_phase_says_why_and_has_no_best(report: dict[str, Any]) -> None:
    phase = exploration(report)
    phase |= {"verdict": "failed", "best": None, "reason": "all 12 settings failed.", "ties": []}
    phase["by_batch_size"] = []
    out = printed(report)
    assert "  Failed: all 12 settings failed.\n" in out
    assert "Best" not in out
    assert "SIGSEGV in compile" in out


def test_the_default_setting_is_not_compared_with_itself(report: dict[str, Any]) -> None:
    exploration(report)["best"]["config"] = DEFAULT_INDUCTOR.to_dict()
    out = printed(report)
    assert "Best    plain torch.compile()" in out
    assert "than torch.compile()" not in out


@pytest.mark.parametrize(
    ("live", "shown"),
    [
        (None, "outputs match eager"),
        (False, "outputs match eager but do not follow weight updates"),
        (True, "outputs match eager and follow weight updates"),
    ],
)
def test_no_more_is_claimed_of_the_weights_than_was_seen(
    report: dict[str, Any], live: bool | None, shown: str
) -> None:
    exploration(report)["best"]["weights_live"] = live
    facts = [fact for line in printed(report).splitlines() for fact in line.strip().split(" · ")]
    assert shown in facts


@pytest.mark.parametrize(
    ("compile_s", "words"),
    [(1.2, "compiles faster (1.2 s against 2.6 s)"), (2.5, "is simpler")],
)
def test_a_tie_is_told_with_the_reason_for_the_choice(
    report: dict[str, Any], compile_s: float, words: str
) -> None:
    phase = exploration(report)
    assert "Ties" not in printed(report)  # the best alone is no tie
    phase["ties"] = [5, 3]
    phase["best"]["compile_s"] = compile_s
    shown = f"Ties    trial 3 (plain torch.compile()) is as fast, within 1 %; trial 5 {words}\n"
    assert shown in printed(report)


def test_settings_with_the_same_code_are_counted(report: dict[str, Any]) -> None:
    assert "same code" not in printed(report)
    exploration(report)["best"]["same_code"] = [21]
    assert "1 other setting has the same code" in printed(report)
    exploration(report)["best"]["same_code"] = [21, 22]
    assert "2 other settings have the same code" in printed(report)


def test_a_clear_decision_says_how_sure_it_is(report: dict[str, Any]) -> None:
    out = printed(report)
    sure = "  Sure    nothing else that was tried is more than 2 % faster (95 %) · 9 of 27 settings"
    assert f"{sure} tried\n" in out
    assert out.count("Sure") == 1  # where eager is kept, its reason says it
    assert "Open" not in out


@pytest.mark.parametrize("name", ["forward_exploration", "optimizer_step"])
def test_an_open_decision_names_what_may_be_better_and_the_command_that_settles_it(
    report: dict[str, Any], name: str
) -> None:
    command = "autocompile tune ppo.py:config --resume --budget 5m"
    open_ = {"decided": False, "open": "lite may be up to 4 % faster", "command": command}
    report["phases"][name]["confidence"] = open_
    out = printed(report)
    assert f"  Open    lite may be up to 4 % faster   → {command}\n" in out
    assert ("Sure" in out) is (name != "forward_exploration")


def test_what_is_not_on_this_machine_is_told_once_for_all_phases(report: dict[str, Any]) -> None:
    report["phases"]["optimizer_step"]["unusable"]["ipex"] = "needs torch 2.8"
    out = printed(report, use="x")
    assert "\nNot on this machine: cudagraphs, ipex   → autocompile doctor\n\nUse " in out
    assert "ipex (needs torch 2.8)" in printed(report, verbose=True)
    for phase in report["phases"].values():
        phase["unusable"] = {}
    assert "Not on this machine" not in printed(report)


def test_a_report_of_an_older_version_is_still_shown(report: dict[str, Any]) -> None:
    for phase in report["phases"].values():
        for name in ("confidence", "tried", "settings", "unusable"):
            del phase[name]
        del phase["best"]["same_code"]
    out = printed(report)
    assert "Best    inductor max-autotune" in out
    assert "Sure" not in out and "Open" not in out


def test_failures_are_grouped_and_logs_come_with_verbose(report: dict[str, Any]) -> None:
    out = printed(report)
    assert "Failed  2   inductor   compile_error   InductorError: IndexError" in out
    assert "          1   openvino   crashed         SIGSEGV in compile" in out
    assert "this is 2.13.0 → autocompile doctor ipex" in out
    assert "log.txt" not in out
    verbose = printed(report, verbose=True)
    assert "runs/ppo_breakout-0003/trials/0010/log.txt" in verbose
    choices = "batch sizes 1, 4 and 16 by default, 16 from num_envs_per_env_runner"
    assert choices in " ".join(verbose.split())


def test_what_was_left_untried_is_no_failure(report: dict[str, Any]) -> None:
    phase = exploration(report)
    answered = {**phase["failures"][2], "message": "not tried: dear", "answered": True}
    phase["failures"] = [phase["failures"][1], answered]
    phase["trials"][7]["answered"] = True
    out = printed(report)
    assert "Failed  1   openvino   crashed   SIGSEGV in compile\n" in out
    assert "Untried 1   ipex   unsupported   not tried: dear\n" in out
    console = Console(file=io.StringIO())
    render_trials(report, console)
    rows = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any(row.split()[:5] == "7 1 not tried ipex:".split() for row in rows)


def test_what_was_not_in_the_list_is_told_in_a_few_words(report: dict[str, Any]) -> None:
    assert "Skipped" not in printed(report)
    dropped = {"the model has no convolutions": 3, "one": 1, "two": 2, "onnxrt has no modes": 12}
    dropped["--guards only by name"] = 40
    exploration(report)["dropped"] = dropped
    line = "Skipped onnxrt has no modes (12) · the model has no convolutions (3) · two (2)"
    assert f"{line} · and 2 more reasons (show -v has all)" in " ".join(printed(report).split())
    assert f"{line} · one (1)" in " ".join(printed(report, verbose=True).split())


def test_many_kinds_of_failure_are_cut_short_unless_verbose(report: dict[str, Any]) -> None:
    phase = exploration(report)
    phase["failures"] = [{**phase["failures"][0], "backend": f"b{i}"} for i in range(11)]
    assert "and 3 more kinds" in printed(report)
    assert "b10" in printed(report, verbose=True)


def test_an_interrupted_run_says_so_first_and_what_is_missing(report: dict[str, Any]) -> None:
    report["interrupted"] = True
    exploration(report)["best"]["confirmed_processes"] = 0
    report["phases"]["optimizer_step"] |= {"trials": [], "best": None, "verdict": "failed"}
    out = printed(report)
    assert out.startswith("Interrupted: ")
    head = out.split("\n\n")[0]
    assert "forward_exploration: 13 trials finished, the best was not confirmed" in head
    assert "optimizer_step: no trial finished" in head
    assert "trial 5, not confirmed" in out


def test_notes_of_the_phase_and_of_the_best_are_shown(report: dict[str, Any]) -> None:
    exploration(report)["notes"] = ["eager differs from itself"]
    exploration(report)["best"]["notes"] = ["one round was throttled"]
    out = printed(report)
    assert "  Note    one round was throttled\n          eager differs from itself\n" in out


@pytest.mark.parametrize("width", [0, 80, 100, 120])
def test_text_of_a_trial_is_shown_literally(report: dict[str, Any], width: int) -> None:
    phase = exploration(report)
    phase["failures"][0] |= {"message": HOSTILE, "backend": "[bold]b[/bold]\x1b[2J"}
    phase["notes"], phase["reason"] = [HOSTILE], HOSTILE
    phase["unusable"] = {HOSTILE: HOSTILE}
    open_ = {"decided": False, "open": HOSTILE, "command": HOSTILE}
    report["phases"]["optimizer_step"]["confidence"] = open_
    for trial in phase["trials"]:
        trial["message"] = HOSTILE
    out = printed(report, width, color=True, verbose=True)
    assert "\x1b[31mboom" not in out
    assert "\x1b]0;" not in out
    assert "\x1b[2J" not in out
    text = " ".join(bare(out).split())
    assert " ".join(SHOWN.split()) in text
    assert "[bold]b[/bold]" in text
    file = io.StringIO()
    render_trials(report, Console(file=file))
    assert SHOWN in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_a_pipe_gets_no_color_and_no_broken_message(report: dict[str, Any]) -> None:
    message = "word " * 30 + "end"
    exploration(report)["failures"][0]["message"] = message
    out = printed(report, use="x" * 300)
    assert "\x1b" not in out
    assert message in out
    assert "x" * 300 in out


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_terminal_line_never_breaks_inside_a_figure(report: dict[str, Any], width: int) -> None:
    lines = bare(printed(report, width)).splitlines()
    assert max(map(len, lines)) <= max(width, 76)  # the table by batch size is 76 wide
    whole = "\n".join(lines)
    for figure in (
        "1.41× [1.39, 1.43]",
        "1 204 samples/s [1 180, 1 228]",
        "6.8 s (0.9 s warm)",
        "1.4 %",
    ):
        assert figure in whole


def test_the_line_to_paste_is_never_broken_by_us(report: dict[str, Any]) -> None:
    line = 'config.framework("torch", torch_compile_worker=True, ' + "a=1, " * 30
    assert line.strip() in bare(printed(report, 80, use=line))


def test_colors_change_nothing_but_the_colors(report: dict[str, Any]) -> None:
    colored = printed(report, 100, color=True)
    assert "\x1b[1;32m" in colored
    assert bare(colored) == bare(printed(report, 100))
    assert "32m" not in printed(report, 100)


def test_an_ascii_stream_can_be_written(report: dict[str, Any]) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    render(report, Console(file=file))
    render_trials(report, Console(file=file))
    assert b"1.41x [1.39, 1.43] faster than eager" in raw.getvalue()


def test_a_report_without_phases_is_not_an_error(report: dict[str, Any]) -> None:
    report["phases"] = {}
    assert "no phase was started" in printed(report)


def test_the_leaderboard_has_every_trial_of_the_search_once(report: dict[str, Any]) -> None:
    file = io.StringIO()
    render_trials(report, Console(file=file))
    out = file.getvalue()
    first = out.split("optimizer_step: ")[0]
    assert first.startswith("forward_exploration: measured trials\n")
    assert "forward_exploration: other trials\n" in first
    numbers = [n for line in first.splitlines() if (n := line.split()[0]).isdigit()]
    assert numbers == "5 3 4 1 6 2 0 7 8 9 10 11".split()
    assert "inductor · fullgraph  (same code as trial 3)" in first
    assert "inductor max-autotune  (repeated in 1 process: 1.41×)" in first
    assert "crashed         openvino: SIGSEGV in compile" in first
