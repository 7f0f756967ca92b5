from __future__ import annotations

import copy
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from autocompile.report.terminal.answer import render, render_trials
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


def test_the_answer_comes_first_and_its_evidence_below(report: dict[str, Any]) -> None:
    code = {"forward_exploration": 'torch.compile(model, mode="max-autotune")'}
    out = printed(report, code=code, use="paste this", next_line="autocompile export last")
    head, exploration, *_ = out.split("\n\n")
    assert [line.split("   ") for line in re.sub(" {3,}", "   ", head).splitlines()] == [
        ["", "speed-up", "confidence"],
        ["forward_exploration", "1.41× [1.39, 1.43]", "high", code["forward_exploration"]],
        ["optimizer_step", "keep eager", "high",
         "nothing that was tried is more than 1.4 % faster (95 %)"],
    ]  # fmt: skip
    assert exploration.startswith("forward_exploration   worker · batch size 16 · confirmed in 3")
    assert "fresh processes\n" + " " * 22 + "outputs match eager and follow weight" in exploration
    assert "  Why     1.33× [1.30, 1.36] against plain torch.compile()\n" in exploration
    cost = "compiles in 6.8 s (0.9 s warm), repaid after 1 235 calls · peak memory 20.5 MB (eager"
    assert f"  Cost    {cost} 21.0 MB)\n" in exploration
    assert out.endswith("\nUse     paste this\nNext    autocompile export last\n")


def test_what_lost_failed_or_was_left_out_is_told_with_verbose_only(report: dict[str, Any]) -> None:
    phase = exploration(report)
    phase["why_not"] = [{"settings": ["lite"], "numbers": [], "reason": "fuses nothing"}]
    phase["notes"], phase["dropped"] = ["4 trials were stopped"], {"no convolutions": 3}
    short, full = printed(report), printed(report, verbose=True)
    for word in (
        "Others  lite: fuses",
        "Note    4 trials",
        "Skipped no conv",
        "SIGSEGV",
        "Figures",
    ):
        assert word not in short and word in full
    rest = "6 failures, why others lose, what was left out, every trial"
    assert f"More: {rest}   → autocompile show ppo_breakout-0003 -v\n" in short
    assert "More:" not in full
    assert "1 204 samples/s [1 180, 1 228]" in full


def test_each_batch_size_has_its_row(report: dict[str, Any]) -> None:
    lines = printed(report).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  batch size   "))
    assert lines[start].split() == "batch size eager best speed-up setting".split()
    assert lines[start + 2].split("   ")[-1] == "inductor max-autotune  ← this config's own"
    assert lines[start + 2].split()[:4] == ["16", "852/s", "1", "204/s"]
    # Nothing is faster there: eager stays, and the next best is named.
    row = next(line for line in lines if line.startswith("  500 steps/s"))
    assert row.split()[4:6] == ["1.00×", "eager"]
    assert "next: " in row and row.endswith(", 1.00×")


def test_a_failed_phase_says_why_and_what_failed(report: dict[str, Any]) -> None:
    phase = exploration(report)
    phase |= {"verdict": "failed", "best": None, "reason": "all 12 settings failed.", "ties": []}
    phase["by_batch_size"] = []
    out = printed(report)
    assert "forward_exploration   failed       –            all 12 settings failed\n" in out
    assert "SIGSEGV in compile" in out


def test_the_default_setting_is_not_compared_with_itself(report: dict[str, Any]) -> None:
    exploration(report)["best"]["config"] = DEFAULT_INDUCTOR.to_dict()
    out = printed(report)
    assert "high         plain torch.compile()" in out
    assert "against plain torch.compile()" not in out


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
    shown = f"Ties    as fast within 1 %: plain torch.compile(); chosen since it {words}\n"
    assert shown in printed(report)


def test_a_clear_decision_says_how_sure_it_is(report: dict[str, Any]) -> None:
    out = printed(report)
    sure = "  Sure    nothing else that was tried is more than 2 % faster (95 %) · 9 of 27 settings"
    assert f"{sure} tried\n" in out
    assert out.count("Sure") == 1  # where eager is kept, its reason says it
    assert "Open" not in out


@pytest.mark.parametrize("name", ["forward_exploration", "optimizer_step"])
@pytest.mark.parametrize("word", ["open", "low"])
def test_what_is_not_sure_comes_with_the_command_that_settles_it(
    report: dict[str, Any], name: str, word: str
) -> None:
    command = "autocompile tune ppo.py:config --resume --budget 5m"
    open_ = {"word": word, "decided": False, "open": "lite may be faster", "command": command}
    report["phases"][name]["confidence"] = open_
    out = printed(report)
    assert f"  {word.capitalize():<8}lite may be faster   → {command}\n" in out
    row = next(line for line in out.splitlines() if line.startswith(name))
    assert f"   {word} " in row
    assert ("Sure" in out) is (name != "forward_exploration")


def test_two_processes_are_not_called_sure(report: dict[str, Any]) -> None:
    exploration(report)["best"]["confirmed_processes"] = 2  # an older report calls it decided
    assert "  Low     confirmed in 2 of 3 fresh processes\n" in printed(report)


def test_what_is_not_on_this_machine_is_told_once_for_all_phases(report: dict[str, Any]) -> None:
    report["phases"]["optimizer_step"]["unusable"]["ipex"] = "needs torch 2.8"
    out = printed(report, use="x")
    assert "\nNot on this machine: cudagraphs, ipex   → autocompile doctor\n" in out
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
    assert "inductor max-autotune" in out
    assert "Sure" not in out and "Open" not in out


def test_failures_are_grouped_with_their_logs(report: dict[str, Any]) -> None:
    out = printed(report, verbose=True)
    assert "      2   inductor   compile_error   InductorError: IndexError" in out
    assert "      1   openvino   crashed         SIGSEGV in compile" in out
    assert "this is 2.13.0 → autocompile doctor ipex" in out
    assert "runs/ppo_breakout-0003/trials/0010/log.txt" in out
    choices = "batch sizes 1, 4 and 16 by default, 16 from num_envs_per_env_runner"
    assert choices in " ".join(out.split())


def test_what_was_left_untried_is_no_failure(report: dict[str, Any]) -> None:
    phase = exploration(report)
    answered = {**phase["failures"][2], "message": "not tried: dear", "answered": True}
    phase["failures"] = [phase["failures"][1], answered]
    phase["trials"][7]["answered"] = True
    failed, untried = printed(report, verbose=True).split("  What was not tried\n")
    assert "openvino   crashed   SIGSEGV in compile" in failed.split("  What failed\n")[1]
    assert "ipex      unsupported   not tried: dear\n" in untried
    console = Console(file=io.StringIO())
    render_trials(report, console)
    rows = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any(row.split()[:5] == "7 1 not tried ipex:".split() for row in rows)


def test_what_only_a_flag_would_bring_comes_last(report: dict[str, Any]) -> None:
    dropped = {"the model has no convolutions": 3, "onnxrt has no modes": 12}
    exploration(report)["dropped"] = {"--guards only by name": 40, **dropped}
    line = "Skipped onnxrt has no modes (12) · the model has no convolutions (3) · --guards only"
    assert line in printed(report, verbose=True)


def test_an_interrupted_run_says_so_first(report: dict[str, Any]) -> None:
    report["interrupted"] = True
    report["phases"]["optimizer_step"] |= {"trials": [], "best": None, "verdict": "failed"}
    report["phases"]["optimizer_step"] |= {"reason": "not started", "state": "not started"}
    out = printed(report)
    assert out.startswith("Interrupted: these are the results so far.\n\n")
    assert "optimizer_step        no result yet        –            not started\n" in out


def test_notes_of_the_phase_and_of_the_best_are_shown(report: dict[str, Any]) -> None:
    exploration(report)["notes"] = ["eager differs from itself"]
    exploration(report)["best"]["notes"] = ["one round was throttled"]
    assert "  Note    one round was throttled\n" in printed(report)
    assert "  Note    eager differs from itself\n" in printed(report, verbose=True)


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
    out = printed(report, use="x" * 300, verbose=True)
    assert "\x1b" not in out
    assert message in out
    assert "x" * 300 in out
    assert not set(out) & set("─│┌┐└┘━┃╭╮╯╰")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_terminal_line_never_breaks_inside_a_figure(report: dict[str, Any], width: int) -> None:
    lines = bare(printed(report, width, verbose=True)).splitlines()
    assert max(map(len, lines)) <= max(width, 80)
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
    assert b"1.41x [1.39, 1.43]" in raw.getvalue()


def test_the_gain_in_the_algorithm_is_told_or_the_command_that_measures_it(
    report: dict[str, Any],
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


def test_use_that_needs_a_file_says_what_writes_it(report: dict[str, Any]) -> None:
    use = 'tuned(config, "tuned.json")     after    autocompile export last -o tuned.json'
    assert f"\nUse     {use}\n" in printed(report, use=use)
    narrow = 'Use     tuned(config, "tuned.json")\nafter   autocompile export last -o tuned.json\n'
    assert narrow in bare(printed(report, 80, use=use))


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
