"""The answer of a phase at a batch size: its verdict, how sure it is, and what goes on."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fakes import failed, measured
from made_records import CHANNELS_LAST, LITE, MAX, Run

from autocompile.estimate.answer import Outlook, answer, answers
from autocompile.estimate.limits import Limits
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.store.record import Record
from autocompile.store.report import Answer, leading_size
from autocompile.store.run import Searched, Untried

OPENVINO = CompileConfig("openvino_onnx")
COMMAND, LONGER = "go on", "go on for longer"


def outlook(**facts: Any) -> Outlook:
    """Of a run that is over, whose search has nothing left."""
    run = {
        name: facts.pop(name)
        for name in ("state", "wall_s", "spent_trials", "calls")
        if name in facts
    }
    searched = {"configs": 4, "compiled": 3, "untried": 0, "rest": (), **facts}
    return Outlook(searched=Searched(**searched), command=COMMAND, longer=LONGER, **run)


def of(run: Run, limits: Limits | None = None, **facts: Any) -> Answer:
    return answer(run.batch_size, run.records, limits, outlook(**facts))


def raced(*speedups: float) -> Run:
    """A setting that is 1.3 times as fast, in as many sets as there are figures."""
    run = Run()
    run.race(run.search(LITE, 1.3), *speedups)
    return run


def at(size: int, run: Run, first: int) -> list[Record]:
    """The records of a run at another batch size, numbered from ``first``."""
    return [
        dataclasses.replace(
            r,
            number=r.number + first,
            batch_size=size,
            repeats=None if r.repeats is None else r.repeats + first,
        )
        for r in run.records
    ]


# --- the verdict ----------------------------------------------------------------------------------


def test_a_setting_that_is_surely_faster_is_the_answer_with_its_figures() -> None:
    found = of(raced(1.3, 1.3, 1.3))
    assert (found.verdict, found.confidence, found.why) == ("faster", "high", "")
    assert found.best is not None and found.best.config == LITE
    assert found.best.confirmed_processes == 3
    assert found.best.call_s == pytest.approx(1e-3 / 1.3, rel=0.01)
    assert found.best.eager_call_s == pytest.approx(1e-3)
    assert found.command == ""


def test_where_nothing_is_faster_eager_is_kept_and_the_next_is_named() -> None:
    run = Run()
    run.race(run.search(LITE, 0.9), 0.9, 0.9, 0.9)
    found = of(run)
    assert (found.verdict, found.confidence) == ("keep_eager", "high")
    assert found.best is not None and found.best.config == EAGER
    assert found.next is not None and found.next.config == LITE


def test_where_nothing_compiled_has_ended_nobody_knows_whether_something_is_faster() -> (
    None
):
    run = Run()
    run.search(CompileConfig("eager", memory_format="channels_last"), 1.0)
    found = of(run, untried=60)
    assert (found.verdict, found.confidence) == ("unknown", "")
    assert found.best is None
    assert found.command == LONGER


def test_what_has_not_passed_all_checks_is_no_answer_and_is_named() -> None:
    run = Run()
    run.search(LITE, 1.5, checks="first")
    found = of(run)
    assert (found.verdict, found.best, found.command) == ("unknown", None, LONGER)
    assert "lite was 1.50x in its first trial" in found.reason
    assert "has not passed all checks" in found.reason
    # A limit that eager breaks makes it no answer either.
    assert of(run, Limits(latency_s=0.8e-3)).verdict == "unknown"


def test_beside_what_has_passed_all_checks_one_that_has_not_makes_the_answer_low() -> (
    None
):
    run = raced(1.3, 1.3, 1.3)
    run.search(MAX, 2.0, checks="first")
    found = of(run)
    assert (found.verdict, found.confidence) == ("faster", "low")
    assert found.best is not None and found.best.config == LITE
    assert "max-autotune was 2.00x in its first trial" in found.why
    assert found.command == COMMAND


def test_what_the_later_checks_found_belongs_to_the_answer() -> None:
    run = Run()
    lite = run.search(LITE, 1.3, checks="first", notes=["of the trial"])
    said = {"weights_live": True, "notes": ["a learning-rate schedule recompiles"]}
    run.race(lite, 1.3, **said)
    for number in (2, 3):
        run.side(lite, measured(1.3, checks="first"), race=number)
    found = of(run)
    assert found.verdict == "faster" and found.best is not None
    assert found.best.weights_live is True
    assert found.best.notes == ("of the trial", "a learning-rate schedule recompiles")


def test_what_took_the_time_is_said_where_nothing_compiled_has_ended() -> None:
    run = Run()
    run.add(CompileConfig(), dataclasses.replace(failed("interrupted"), wall_s=52.0))
    reason = of(run, untried=60).reason
    assert "plain torch.compile() was stopped after 52 s, in step compile" in reason
    alone = Run().records
    reason = answer(4, alone, None, outlook(wall_s=90.0)).reason
    assert "trials in eager mode took 2 s of 90 s" in reason


def test_a_failure_is_an_end_and_a_compile_that_was_cut_off_is_none() -> None:
    run = Run()
    run.add(CompileConfig(), failed("compile_error"))
    found = of(run, untried=0)
    assert (found.verdict, found.confidence) == ("keep_eager", "high")
    assert found.reason == "every setting other than eager failed: 1 × compile_error"


def test_where_nothing_can_be_compiled_nobody_knows_and_no_command_would_tell() -> None:
    found = of(Run(), compiled=0, unusable={"inductor": "no compiler"})
    assert (found.verdict, found.command, found.best) == ("unknown", "", None)
    assert found.reason.endswith("(inductor: no compiler)")


def test_where_a_rule_left_out_all_that_was_asked_for_the_reason_says_so() -> None:
    no_optimizer = "the optimizer has no compiled implementation here"
    dropped = {"--freezing tries more": 7, no_optimizer: 3}
    found = of(Run(), compiled=0, dropped=dropped)
    assert (found.verdict, found.reason) == (
        "unknown",
        f"no compiled setting was measured at batch size 4 ({no_optimizer}: 3 settings left out)",
    )
    both = {"no convolutions": 1, no_optimizer: 3}
    reason = of(Run(), compiled=0, dropped=both).reason
    assert reason.endswith(
        f"({no_optimizer}: 3 settings left out; no convolutions: 1 setting left out)"
    )


def test_where_only_eager_was_asked_for_the_reason_says_so() -> None:
    found = of(Run(), compiled=0)
    assert found.verdict == "unknown" and found.command == ""
    assert found.reason.endswith(
        "was measured at batch size 4 (nothing else was asked for)"
    )


def test_a_search_that_a_number_of_trials_ended_names_it() -> None:
    found = answer(4, Run().records, None, outlook(spent_trials=1))
    assert found.verdict == "unknown" and "--trials 1 ended the search" in found.reason


def test_a_pass_of_several_calls_is_called_by_its_samples_and_calls() -> None:
    run = raced(1.3, 1.3, 1.3)
    found = of(run, untried=9, compiled=12, rest=None, calls=3)
    assert found.size == f"{run.batch_size} samples in 3 calls"
    assert f"not tried at {found.size}" in found.why
    assert of(run).size == f"batch size {run.batch_size}"


def test_failures_of_some_settings_are_not_said_of_all() -> None:
    run = Run()
    run.add(CompileConfig(), failed("compile_error"))
    reason = of(run, compiled=3, untried=2).reason
    assert reason == (
        "every setting other than eager that was tried failed: 1 × compile_error"
    )


def test_where_eager_itself_fails_there_is_no_result() -> None:
    run = Run()
    run.records.clear()
    run.add(EAGER, failed("runtime_error", "eager", "IndexError: index 16"))
    found = of(run)
    assert (found.verdict, found.reason) == (
        "failed",
        "eager mode itself fails: IndexError: index 16",
    )


def test_eager_mode_that_was_cut_off_is_no_failure() -> None:
    run = Run()
    run.records.clear()
    run.add(EAGER, failed("interrupted", "measure"))
    assert of(run).verdict == "unknown"


@pytest.mark.parametrize("change", [{"verdict": "unknown"}, {"best": None}])
def test_an_answer_has_figures_if_and_only_if_there_is_a_result(
    change: dict[str, Any],
) -> None:
    good = of(raced(1.3, 1.3, 1.3))
    with pytest.raises(ValueError, match="best does not fit"):
        dataclasses.replace(good, **change)


# --- limits ---------------------------------------------------------------------------------------


def test_eager_that_breaks_a_limit_is_not_kept() -> None:
    """A setting that is not faster, but fits, is the answer."""
    run = Run()
    run.records[0].peak_memory_bytes = 2_000
    slower = run.search(LITE, 0.97, peak_memory_bytes=500)
    run.race(slower, 0.97, 0.97, 0.97)
    found = of(run, Limits(memory_bytes=1_000))
    assert (found.verdict, found.confidence) == ("within_limits", "high")
    assert found.best is not None and found.best.config == LITE
    assert found.best.speedup.value == pytest.approx(0.97, rel=0.01)
    assert found.reason.startswith("eager mode does not keep the limits")
    assert found.changes_something and not found.is_faster
    assert of(run, Limits(memory_bytes=10_000)).verdict == "keep_eager"


def test_what_is_faster_and_keeps_a_limit_that_eager_breaks_is_faster() -> None:
    found = of(raced(1.3, 1.3, 1.3), Limits(latency_s=0.9e-3))
    assert found.verdict == "faster"


def test_where_nothing_keeps_the_limits_the_figures_are_said() -> None:
    found = of(raced(1.3, 1.3, 1.3), Limits(latency_s=0.35e-3))
    assert found.verdict == "failed" and found.best is None
    assert "--max-latency is 0.35 ms, and the least is 0.769 ms" in found.reason
    assert "faster" not in found.reason


def test_other_batch_sizes_that_keep_the_limits_are_named() -> None:
    large, small = Run(batch_size=16), raced(1.3, 1.3, 1.3)
    large.records.clear()
    large.search(EAGER, 1.0, eager_s=20e-3)
    large.search(LITE, 1.6, eager_s=20e-3)
    records = [*large.records, *at(4, small, 100)]
    found = answers(16, records, Limits(latency_s=10e-3), outlook())
    assert found[16].verdict == "failed"
    assert found[16].reason.endswith("at batch size 4 there are settings that do")
    assert found[4].verdict == "faster"


def test_compile_time_that_is_shared_out_is_no_latency() -> None:
    """A horizon of few calls makes a call dearer, and not slower."""
    run = Run()
    run.race(run.search(LITE, 2.0, compile_s=1.0), 2.0, 2.0, 2.0)
    run.records = [dataclasses.replace(r, horizon=10_000.0) for r in run.records]
    found = of(run, Limits(latency_s=0.55e-3))
    assert found.verdict == "faster"
    assert found.best is not None
    assert found.best.call_s == pytest.approx(0.5e-3, rel=0.01)
    assert found.best.speedup.value == pytest.approx(1 / (0.5 + 0.1), rel=0.01)


def test_new_weights_that_are_shared_out_are_no_latency() -> None:
    run = Run("forward_exploration")
    frozen = CompileConfig(freezing=True)
    costs = {"refresh_s": 0.02, "calls_per_update": 100}
    run.race(run.search(frozen, 2.0, **costs), 2.0, 2.0, 2.0)
    found = of(run, Limits(latency_s=0.55e-3))
    assert found.best is not None and found.best.config == frozen
    assert found.best.call_s == pytest.approx(0.5e-3, rel=0.01)


# --- how sure it is -------------------------------------------------------------------------------

REST = (Untried(config=OPENVINO, likely=0.06, most=0.44),)


def test_what_was_not_reached_and_may_be_faster_is_open() -> None:
    found = of(raced(1.3, 1.3, 1.3), rest=REST)
    assert found.confidence == "open"
    assert found.why == "openvino_onnx was not reached and may be 6 to 44 % faster"
    assert found.command == COMMAND


def test_a_sampler_that_cannot_say_what_is_left_makes_no_answer_high() -> None:
    run = raced(1.3, 1.3, 1.3)
    found = of(run, rest=None, compiled=90)
    assert found.confidence == "open"
    assert found.why == "89 compiled settings were not tried at batch size 4"
    assert of(run, rest=None, compiled=1).confidence == "high", "nothing is left"
    assert of(run, rest=None, compiled=None).confidence == "open"


def test_each_family_that_works_here_is_looked_at_before_an_answer_is_high() -> None:
    found = of(raced(1.3, 1.3, 1.3), unseen=("openvino_onnx", "inductor max-autotune"))
    assert found.confidence == "open"
    assert found.why == "openvino_onnx, inductor max-autotune were not tried yet"


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_nothing_is_high_while_a_run_goes_on_or_after_it_was_killed(state: str) -> None:
    assert of(raced(1.3, 1.3, 1.3), state=state).confidence == "open"
    kept = Run()
    kept.race(kept.search(LITE, 0.9), 0.9, 0.9, 0.9)
    assert of(kept, state=state).confidence == "open"


def test_what_no_race_has_confirmed_is_low_also_where_something_is_open() -> None:
    run = Run()
    run.search(LITE, 1.3)
    found = of(run, rest=REST)
    assert found.confidence == "low"
    assert found.why == (
        "confirmed in 0 of 3 fresh processes; "
        "openvino_onnx was not reached and may be 6 to 44 % faster"
    )


def test_high_says_that_nothing_is_expected_to_be_more_than_2_percent_faster() -> None:
    """What lost in the search by one process has a wide interval: no figure of it is said."""
    run = raced(1.3, 1.3, 1.3)
    run.search(MAX, 1.29)
    found = of(run)
    assert found.confidence == "high"
    assert found.reason == (
        "nothing else that was tried is expected to be more than 2 % faster"
    )


def test_what_may_be_much_faster_has_not_lost_in_the_search() -> None:
    run = raced(1.3, 1.3, 1.3)
    run.search(MAX, 1.29, noise=0.5)  # an interval from 0.9 to 2
    found = of(run)
    assert found.confidence == "open"
    assert found.why.startswith("inductor max-autotune may be up to ")
    assert found.command == COMMAND, "a race tells"
    assert found.reason == "nothing else that was tried is surely more than 2 % faster"


def test_times_that_scatter_make_no_figure() -> None:
    """As on a busy machine, where one call of a few took a thousand times as long."""
    run = raced(1.3, 1.3, 1.3)
    run.search(MAX, 1.29, noise=0.8)
    found = of(run)
    assert found.confidence == "open"
    said = "how fast inductor max-autotune is cannot be told: its times scatter around "
    assert found.why.startswith(said)
    assert "%" not in found.why


def test_what_is_surely_much_faster_and_was_not_raced_has_its_figure() -> None:
    run = raced(1.3, 1.3, 1.3)
    run.search(MAX, 3.9, noise=0.01)
    assert "% faster" in of(run).why


def test_a_command_is_given_only_while_sets_are_left() -> None:
    """After six sets each, going on would do nothing."""
    run = Run()
    one, other = run.search(LITE, 1.3), run.search(MAX, 1.3)
    run.race(one, *[1.25, 1.35] * 3, together=False)
    run.race(other, *[1.35, 1.25] * 3, together=False)
    found = of(run)
    assert (found.confidence, found.command) == ("open", "")
    assert found.why.endswith("% faster")
    few = Run()
    one, other = few.search(LITE, 1.3), few.search(MAX, 1.3)
    few.race(one, 1.25, 1.35, 1.25, together=False)
    few.race(other, 1.35, 1.25, 1.35, together=False)
    assert (of(few).confidence, of(few).command) == ("open", COMMAND)


def test_sets_that_were_left_out_are_said_and_no_more_can_follow_six() -> None:
    run = Run()
    lite = run.search(LITE, 1.3)
    for number in range(1, 7):
        slow = 1.0 if number < 3 else 1.3  # of four sets the host was slower
        run.side(lite, measured(1.3, reference_s=slow), race=number)
    found = of(run)
    assert found.confidence == "low"
    assert found.why == (
        "confirmed in 2 of 3 fresh processes (4 more left out: the machine was slower)"
    )
    assert found.command == ""


def test_what_slows_eager_down_stays_open_and_no_race_settles_it() -> None:
    run = raced(1.3, 1.3, 1.3)
    run.search(MAX, 2.5, flags=("eager_slowed",))
    found = of(run)
    assert (found.confidence, found.command) == ("open", "")
    assert "beside it eager mode ran slower than alone" in found.why


def test_of_other_batch_sizes_the_search_says_nothing() -> None:
    """What it expects of the rest is about the batch size that it went for first."""
    records = [*at(16, raced(1.3, 1.3, 1.3), 0), *at(4, raced(1.3, 1.3, 1.3), 100)]
    found = answers(16, records, Limits(), outlook(rest=REST))
    assert [*found] == [16, 4]
    assert "openvino_onnx was not reached" in found[16].why
    assert found[4].why == "2 compiled settings were not tried at batch size 4"


@pytest.mark.parametrize(
    ("own", "objective", "size"),
    [
        (None, "throughput", 16),
        (None, "latency", 1),
        (4, "throughput", 4),
        (64, "throughput", 16),  # not among those that are asked for
    ],
)
def test_the_batch_size_of_an_answer_is_the_targets_own_or_by_the_objective(
    own: int | None, objective: str, size: int
) -> None:
    assert leading_size(own, [1, 4, 16], objective) == size
    assert leading_size(None, [None], objective) is None


def test_an_answer_is_the_same_when_it_was_written_and_read() -> None:
    run = raced(1.3, 1.3, 1.3)
    run.search(CHANNELS_LAST, 1.1)
    for found in (of(run), of(Run())):
        assert Answer.from_dict(found.to_dict()) == found
