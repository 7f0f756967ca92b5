"""Which setting is best, what is as good, and when that is decided."""

from __future__ import annotations

import dataclasses

import pytest
from fakes import failed, measured
from made_records import CHANNELS_LAST, LITE, MAX, Run

from autocompile.estimate.candidates import candidates
from autocompile.estimate.decision import (
    SETS,
    Decision,
    as_calls_grow,
    decide,
    decide_all,
    finalists,
    is_out,
)
from autocompile.estimate.limits import Limits
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.store.record import Record


def decided(run: Run, limits: Limits | None = None) -> Decision:
    decision = decide(candidates(run.records), limits)
    assert decision is not None
    return decision


def best(run: Run, limits: Limits | None = None) -> CompileConfig:
    return decided(run, limits).best.record.config


def test_without_a_measured_eager_mode_nothing_is_decided() -> None:
    run = Run()
    run.search(LITE, 1.5)
    assert decide(candidates(run.records[1:])) is None
    assert decide_all(run.records[1:]) == {}


def test_each_batch_size_is_decided_by_itself() -> None:
    small, large = Run(batch_size=1), Run(batch_size=16)
    small.search(LITE, 1.5)
    large.search(LITE, 0.8)
    moved = [dataclasses.replace(r, number=r.number + 10) for r in large.records]
    found = decide_all([*small.records, *moved])
    assert {size: d.best.record.config for size, d in found.items()} == {
        1: LITE,
        16: EAGER,
    }


@pytest.mark.parametrize(
    ("speedup", "noise", "faster"),
    [(1.2, 0.002, True), (1.008, 0.0, False), (1.2, 0.4, False)],
)
def test_faster_is_more_than_1_percent_and_by_the_whole_interval(
    speedup: float, noise: float, faster: bool
) -> None:
    run = Run()
    lite = run.search(LITE, speedup, noise=noise)
    if noise < 0.1:
        run.race(lite, *[speedup] * 6)
    assert decided(run).is_faster is faster
    assert best(run) == (LITE if faster else EAGER)


def test_what_has_not_passed_all_checks_is_raced_and_not_best() -> None:
    run = Run()
    run.search(LITE, 2.0, checks="first")
    decision = decided(run)
    assert decision.best.record.config == EAGER
    assert [c.record.config for c, _ in decision.open] == [LITE]
    assert [c.record.config for c in finalists(decision)] == [LITE]
    run.race(1, 2.0, checks="first")  # its process ended before the later checks did
    assert best(run) == EAGER and finalists(decided(run))
    assert (
        as_calls_grow(candidates(run.records), Limits())[-1][0].record.config == EAGER
    )
    run.side(1, measured(2.0), race=2)
    assert best(run) == LITE


def test_what_fails_in_its_race_gives_its_place_to_the_next() -> None:
    run = Run()
    wrong = run.search(MAX, 2.0, checks="first")
    run.search(LITE, 1.5, checks="first")
    run.side(wrong, failed("stale_weights", "verify"))
    assert [c.record.config for c in finalists(decided(run))] == [LITE]


def test_where_eager_may_not_be_chosen_what_is_not_checked_leads_its_race() -> None:
    run = Run()
    run.search(LITE, 2.0, checks="first")
    leading = decided(run, Limits(latency_s=0.6e-3))
    assert leading.best.record.config == LITE and not leading.best.is_verified
    assert finalists(leading)


def test_a_sure_gain_is_not_lost_to_a_leader_that_is_not_sure() -> None:
    run = Run()
    lite, wild = run.search(LITE, 1.2), run.search(MAX, 1.2)
    run.race(lite, 1.2, 1.2, 1.2)
    run.race(wild, 0.8, 1.3, 1.8, together=False)
    decision = decided(run)
    assert decision.best.record.config == LITE
    assert decision.open[0][0].record.config == MAX


@pytest.mark.parametrize(
    ("default_s", "other_s", "wins"),
    [
        (1.0, 1.0, DEFAULT_INDUCTOR),
        (1.0, 0.7, DEFAULT_INDUCTOR),
        (9.0, 1.0, CHANNELS_LAST),
    ],
)
def test_within_1_percent_the_cheapest_to_compile_and_then_the_plainest_wins(
    default_s: float, other_s: float, wins: CompileConfig
) -> None:
    run = Run()
    one = run.search(CHANNELS_LAST, 1.3, compile_s=other_s)
    other = run.plain(1.3, compile_s=default_s)
    run.race(one, 1.307, 1.307, 1.307)
    run.race(other, 1.3, 1.3, 1.3)
    decision = decided(run)
    assert decision.best.record.config == wins
    assert {c.record.config for c in decision.ties} == {CHANNELS_LAST, DEFAULT_INDUCTOR}
    assert decision.ties[0] is decision.best


def test_by_more_than_1_percent_the_faster_wins_however_plain_the_other() -> None:
    run = Run()
    run.race(run.search(MAX, 1.3, compile_s=30.0), 1.326, 1.326, 1.326)
    run.race(run.plain(1.3), 1.3, 1.3, 1.3)
    assert best(run) == MAX
    assert len(decided(run).ties) == 1


def test_what_was_raced_goes_before_what_was_only_searched() -> None:
    run = Run()
    run.race(run.search(LITE, 1.4), 1.3, 1.3, 1.3)
    run.search(MAX, 1.6)
    run.search(CHANNELS_LAST, 1.29)
    decision = decided(run)
    assert decision.best.record.config == LITE
    assert decision.rivals[0].record.config == MAX
    assert decision.open[0][0].record.config == MAX  # and may be better still
    assert [c.record.config for c in finalists(decision)] == [LITE, MAX]


@pytest.mark.parametrize(
    ("speedup", "out"), [(1.3, False), (1.28, False), (1.15, True)]
)
def test_out_is_who_is_slower_by_more_than_the_zone_with_95_percent(
    speedup: float, out: bool
) -> None:
    run = Run()
    run.race(run.search(LITE, 1.3), 1.3, 1.3, 1.3)
    run.race(run.search(MAX, 1.3), *[speedup] * 3)
    decision = decided(run)
    other = next(c for c in decision.rivals if c.record.config == MAX)
    assert is_out(other, decision.best) is out
    assert is_out(decision.best, decision.best) is False


def test_a_decision_is_open_while_one_may_be_more_than_2_percent_better() -> None:
    run = Run()
    lite, other = run.search(LITE, 1.3), run.search(MAX, 1.3)
    run.race(lite, 1.31)
    run.race(other, 1.30)
    decision = decided(run)
    ((rival, most),) = decision.open
    assert rival is not decision.best
    assert 0.02 < most < 0.1
    assert decision.ceiling == pytest.approx(most)


def test_three_sets_that_agree_settle_what_lies_within_the_zone() -> None:
    run = Run()
    run.race(run.search(LITE, 1.3), *[1.3] * 6)
    run.race(run.search(MAX, 1.3), *[1.3] * 6)
    decision = decided(run)
    assert decision.open == ()
    assert 0 < decision.ceiling < 0.02
    assert len(decision.ties) == 2


def test_where_eager_is_kept_it_is_open_while_something_may_be_faster() -> None:
    run = Run()
    run.search(LITE, 1.015, noise=0.1)
    decision = decided(run)
    assert not decision.is_faster
    assert decision.ties == (decision.best,)
    assert [c.record.config for c, _ in decision.open] == [LITE]


@pytest.mark.parametrize(("late", "is_best"), [(2.4, True), (1.08, False)])
def test_what_is_found_after_the_race_counts_if_it_is_much_faster(
    late: float, is_best: bool
) -> None:
    run = Run()
    plain = run.plain(1.01)
    run.race(plain, 1.01, 1.01, 1.01)
    run.search(LITE, late)
    decision = decided(run)
    assert (decision.best.record.config == LITE) is is_best
    assert decision.is_faster is is_best
    assert LITE in [c.record.config for c in finalists(decision)]  # it is raced now


def test_what_slows_eager_down_beside_it_is_no_rival() -> None:
    run = Run()
    run.search(LITE, 2.5, flags=("eager_slowed",))
    decision = decided(run)
    assert not decision.is_faster
    assert decision.rivals == decision.open == ()  # nothing to race
    assert [c.record.config for c, _ in decision.doubtful] == [LITE]
    assert decision.ceiling > 1.3


def test_what_does_not_keep_the_limits_is_neither_best_nor_open() -> None:
    run = Run()
    run.search(MAX, 1.6)  # nobody knows its memory
    run.search(LITE, 1.3, peak_memory_bytes=10)
    decision = decided(run, Limits(memory_bytes=100))
    assert decision.best.record.config == LITE
    assert decision.open == ()


def test_eager_of_another_environment_is_a_setting_like_any_other() -> None:
    elsewhere = CompileConfig("eager", environment="new")
    run = Run()
    run.search(elsewhere, 1.0, eager_s=0.5e-3)
    run.search(LITE, 1.2)
    decision = decided(run)
    assert decision.best.record.config == elsewhere
    assert decision.is_faster
    assert elsewhere in [c.record.config for c in finalists(decision)]


def test_finalists_are_those_that_may_be_best_and_the_default_beside_them() -> None:
    run = Run()
    run.plain(1.0)
    modes = [
        "lite",
        "max-autotune",
        "reduce-overhead",
        "max-autotune-no-cudagraphs",
        "x",
        "y",
    ]
    for i, mode in enumerate(modes):
        run.search(CompileConfig(mode=mode), 1.30 - 0.002 * i)
    run.search(CompileConfig(dynamic=True), 1.1)  # surely slower than the leader
    chosen = [c.record.config for c in finalists(decided(run))]
    assert chosen == [*(CompileConfig(mode=m) for m in modes[:4]), DEFAULT_INDUCTOR]


def test_what_leads_is_raced_beside_the_best_of_its_parts() -> None:
    run = Run()
    graphs = CompileConfig(mode="reduce-overhead")
    both = CompileConfig(options={"triton.cudagraphs": True, "combo_kernels": True})
    run.search(both, 1.5)
    for other in ("x", "y", "z"):
        run.search(CompileConfig(mode=other), 1.49)
    # Eager was out of the ordinary in its process: it may be as fast as the leader.
    run.search(graphs, 1.1, eager_s=0.75e-3)
    assert [c.record.config for c in finalists(decided(run))][-1] == graphs
    run.race(0, 1.0)
    run.race(1, 1.5)
    assert graphs not in [c.record.config for c in finalists(decided(run))], (
        "one part is enough"
    )


def test_the_default_is_raced_no_longer_than_it_takes_to_compare_with_it() -> None:
    run = Run()
    run.race(run.plain(1.0), *[1.0] * SETS[0])
    run.race(run.search(LITE, 1.3), *[1.3] * SETS[0])
    assert [c.record.config for c in finalists(decided(run))] == [LITE]


def test_where_only_eager_can_be_best_nobody_is_raced() -> None:
    run = Run()
    assert finalists(decided(run)) == []
    run.search(LITE, 0.5)
    run.plain(0.6)
    assert finalists(decided(run)) == []


def test_eager_is_compared_by_the_sets_alone_whatever_its_trial_of_the_search_saw() -> (
    None
):
    """Both sides vary, and the one search trial of eager was in another state of the host."""
    for in_search_s, speedup, is_faster in ((2e-3, 0.95, False), (0.5e-3, 1.1, True)):
        run = Run()
        run.records.clear()
        run.search(EAGER, 1.0, eager_s=in_search_s)
        lite = run.search(LITE, speedup)
        for number, wobble in enumerate((0.99, 1.0, 1.01), 1):
            run.side(
                lite, measured(speedup * wobble, eager_s=1e-3 * wobble), race=number
            )
        assert decided(run).is_faster is is_faster


def test_the_ceiling_counts_what_lost_in_the_search_too() -> None:
    run = Run()
    run.race(run.search(LITE, 1.5), *[1.5] * 3)
    run.search(MAX, 1.49)
    decision = decided(run)
    assert decision.open == ()
    assert 0.02 < decision.ceiling < 0.08


def test_who_is_surely_no_better_makes_room_for_who_may_be() -> None:
    run = Run()
    options = ("a", "b", "c", "d")
    equals = [LITE, *(CompileConfig(options=((name, True),)) for name in options)]
    for config in equals:
        run.race(run.search(config, 1.5), *[1.5] * 3)
    run.search(MAX, 1.9)
    decision = decided(run)
    assert [c.record.config for c, _ in decision.open] == [MAX]
    assert [c.record.config for c in finalists(decision)] == [LITE, MAX]


def test_the_order_of_the_records_does_not_matter() -> None:
    run = Run()
    run.race(run.search(MAX, 1.3), 1.3, 1.31, 1.3)
    run.race(run.plain(1.3), 1.3, 1.3, 1.31)
    run.search(LITE, 1.2)

    def answer(records: list[Record]) -> list[int]:
        decision = decide(candidates(records))
        assert decision is not None
        return [c.record.number for c in decision.ties]

    assert answer(run.records) == answer(run.records[::-1])


def test_one_slow_process_alone_does_not_end_a_setting() -> None:
    """Beside a busy neighbour a process can be 20 % slower from its start to its end."""
    run = Run()
    plain, lite = run.plain(1.04), run.search(LITE, 1.15)
    run.race(plain, 1.04)
    run.race(lite, 0.9)
    assert lite in {c.record.number for c in finalists(decided(run))}
    run.side(plain, measured(1.04, raced_in=2000), race=2)
    run.side(lite, measured(0.9, raced_in=2000), race=2)
    assert lite not in {c.record.number for c in finalists(decided(run))}


@pytest.mark.parametrize("passes", [100.0, 10_000.0])
def test_a_longer_program_pays_for_a_longer_compile(passes: float) -> None:
    run = Run()
    run.search(LITE, 1.25, compile_s=0.2)
    run.search(MAX, 2.0, compile_s=3.2)
    run.plain(1.9, compile_s=30.0)  # never the best
    run.search(
        CHANNELS_LAST, 1.24, compile_s=0.1
    )  # half as long to compile, and as fast
    run.records = [dataclasses.replace(r, horizon=passes) for r in run.records]
    found = as_calls_grow(candidates(run.records), Limits())
    assert [(c.record.config, round(n)) for c, n in found] == [
        (EAGER, 0),
        (CHANNELS_LAST, round(0.1 / (1e-3 - 1e-3 / 1.24))),
        (MAX, round(3.1 / (1e-3 / 1.24 - 1e-3 / 2))),
    ]
    few = as_calls_grow(candidates(run.records), Limits(compile_s=0.15))
    assert [c.record.config for c, _ in few] == [EAGER, CHANNELS_LAST]


def test_where_nothing_is_faster_eager_mode_stays_for_any_number_of_calls() -> None:
    run = Run()
    run.search(LITE, 1.01)
    assert [n for _, n in as_calls_grow(candidates(run.records), Limits())] == [0.0]
