"""What was measured while something else was in the way decides nothing where something was not."""

from __future__ import annotations

import dataclasses
import math
import random
import types
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autocompile.api import tune
from autocompile.calm import Calm, calmness, pace_of, slows_eager
from autocompile.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.execute.executor import Ending
from autocompile.preference import rank, tie_reasons, tie_set
from autocompile.ranking import Candidate, Limits, candidates
from autocompile.record import Measurement, Outcome, Record, Step
from autocompile.search.space import SearchSpace
from autocompile.stats import Interval
from autocompile.testing import FakeExecutor, measured, probed

LITE = CompileConfig(mode="lite")
USUAL_S, SLOW_S = [3e-6, 33e-6], [3e-6, 50e-6]
DISTURBED = ("noisy", "contended")
SPACE = SearchSpace(batch_sizes=(4,), fullgraph=(False,), freezing=(False,))


def modes(*names: str) -> Ending:
    return probed(modes={name: name for name in names})


def trial(
    number: int,
    config: CompileConfig = DEFAULT_INDUCTOR,
    speedup: float = 1.2,
    pace_s: list[float] | None = None,
    **more: Any,
) -> Record:
    measurement = Measurement((1e-3,) * 8, (1e-3 / speedup,) * 8, flags=more.pop("flags", ()))
    return Record(
        number, more.pop("phase", "forward"), config, 4, Outcome.OK, Step.EXIT,
        measurement=measurement, detail={"pace_s": pace_s or USUAL_S}, **more,
    )  # fmt: skip


def candidate(number: int, config: CompileConfig, speed: float, calm: Calm) -> Candidate:
    speedup = Interval(speed, speed * 0.99, speed * 1.01)
    record = trial(number, config, speed)
    return Candidate(record, speedup, speedup, 1e-3, 5, None, calm=calm)


def test_a_process_that_was_slow_from_begin_to_end_is_told_by_the_others() -> None:
    records = [trial(0, pace_s=SLOW_S), *(trial(n) for n in range(1, 5))]
    assert calmness(records)[0] is Calm.NONE
    assert calmness(records[:1])[0] is Calm.ENOUGH  # nothing is known of others


def test_what_is_usual_is_known_by_all_phases() -> None:
    others = [trial(n, phase="optimizer_step") for n in range(1, 5)]
    assert calmness([trial(0, pace_s=SLOW_S), *others])[0] is Calm.NONE


@pytest.mark.parametrize(
    ("calm", "all_of_them", "counts"),
    [(3, 8, True), (1, 8, False), (2, 8, True), (4, 20, False), (1, 7, True)],
)
def test_a_few_calm_processes_of_many_are_chance(calm: int, all_of_them: int, counts: bool) -> None:
    flags = [()] * calm + [DISTURBED] * (all_of_them - calm)
    records = [trial(number, flags=each) for number, each in enumerate(flags)]
    found = list(calmness(records).values())
    assert found.count(Calm.ENOUGH) == (calm if counts else 0)
    assert found[-1] is (Calm.SOME if counts else Calm.NONE)


def test_settings_that_slow_eager_do_not_make_a_calm_machine_a_busy_one() -> None:
    spinning = [trial(number, flags=("eager_slowed",)) for number in range(9)]
    found = calmness([*spinning, trial(9), trial(10)])
    assert (found[0], found[9], found[10]) == (Calm.NONE, Calm.ENOUGH, Calm.ENOUGH)


def test_on_a_machine_that_hardly_rests_each_setting_is_judged_by_all_its_processes() -> None:
    """One setting happens to have two calm processes, another four; both have twelve."""
    speeds = [1.11, 1.19, 1.13, 1.17, 1.15, 1.16, 1.14, 1.12, 1.18, 1.15, 1.16, 1.14]
    flags = {0: [(), (), *[DISTURBED] * 10], 1: [*[()] * 4, *[DISTURBED] * 8]}
    records = [trial(0, flags=DISTURBED), trial(1, LITE, flags=DISTURBED)]
    for index, speed in enumerate(speeds):
        for repeats, config, off in ((0, DEFAULT_INDUCTOR, 1.0), (1, LITE, 0.93)):
            more = {"repeats": repeats, "role": "confirm", "flags": flags[repeats][index]}
            records.append(trial(len(records), config, speed * off, **more))
    first, second = candidates(records)
    assert (first.confirmed, second.confirmed) == (12, 12)
    assert first.speedup.value == pytest.approx(1.15, rel=0.005)
    assert first.speedup.half_width < 0.02
    assert tie_set(first, [first, second]) == [first]


def test_one_process_is_one_witness_however_many_settings_it_answers() -> None:
    cool = [0.5 * s for s in USUAL_S]
    twins = [trial(n, pace_s=cool, duplicate_of=0) for n in range(10, 16)]
    records = [trial(0, pace_s=cool), *(trial(n) for n in range(1, 8)), *twins]
    assert calmness(records)[1] is Calm.ENOUGH


def test_a_pace_of_another_kind_does_not_stand_in_the_way() -> None:
    """Of another device, or of an older version: of another number of parts."""
    odd = trial(0, pace_s=[1.0])
    found = calmness([odd, trial(1, pace_s=SLOW_S), *(trial(n) for n in range(2, 6))])
    assert (found[0], found[1], found[2]) == (Calm.ENOUGH, Calm.NONE, Calm.ENOUGH)


def test_each_level_of_calm_goes_before_the_next() -> None:
    some = candidate(0, DEFAULT_INDUCTOR, 1.2, Calm.SOME)
    none = candidate(1, LITE, 1.5, Calm.NONE)
    enough = candidate(2, CompileConfig(mode="max-autotune"), 1.19, Calm.ENOUGH)
    assert tie_set(some, [some, none]) == [some, none]
    assert tie_set(some, [none, some, enough]) == [enough, some, none]
    assert rank([none, some], "throughput") == [some, none]


def test_what_decided_among_equals_is_the_first_that_differs() -> None:
    best = candidate(0, DEFAULT_INDUCTOR, 1.20, Calm.ENOUGH)
    others = [
        candidate(1, LITE, 1.20, Calm.SOME),
        candidate(2, LITE, 1.18, Calm.ENOUGH),
        dear := candidate(3, LITE, 1.20, Calm.ENOUGH),
        candidate(4, LITE, 1.20, Calm.ENOUGH),
    ]
    others[2] = dataclasses.replace(dear, record=dataclasses.replace(dear.record, compile_s=9.0))
    assert tie_reasons([best, *others]) == {
        "1": "disturbed",
        "2": "seems_slower",
        "3": "compile_s",
        "4": "changes",
    }


def test_a_disturbed_trial_is_not_out_for_a_latency_that_it_may_keep() -> None:
    slow = candidate(0, LITE, 1.0, Calm.NONE)
    slow = dataclasses.replace(slow, confirmed=0, speedup=Interval(1.0, 0.7, 1.5))
    limits = Limits(latency_s=0.8e-3)
    assert slow.may_keep(limits)
    assert not slow.keeps(limits)  # and is not recommended before that is known
    assert not dataclasses.replace(slow, calm=Calm.ENOUGH).may_keep(limits)


def test_fewer_witnesses_are_less_certain_than_all() -> None:
    speeds = (1.18, 1.20, 1.22, 1.16, 1.24)
    again = [trial(n, speedup=s, repeats=0, role="confirm") for n, s in enumerate(speeds, 1)]
    one = {r.number: Calm.ENOUGH if r.number == 2 else Calm.NONE for r in again}
    few = candidates([trial(0), *again], {**one, 0: Calm.ENOUGH})[0]
    every = candidates([trial(0), *again], dict.fromkeys(range(6), Calm.ENOUGH))[0]
    assert few.speedup.value == pytest.approx(1.20)
    assert few.speedup.half_width > 2 * every.speedup.half_width


def test_what_was_never_calm_does_not_beat_an_eager_that_was(target: Path) -> None:
    """In truth compiling costs 3 %; in a slow spell one of them looks 29 % faster."""

    def script(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager" or request["config"]["mode"] == "default":
            return measured(1.0)
        return measured(1.29, flags=DISTURBED)

    executor = FakeExecutor(script, modes("default", "lite"))
    result = tune(target, executor=executor, space=SPACE)
    phase = result.to_dict()["phases"]["forward"]
    assert result.verdict == {"forward": "keep_eager"}
    assert "best 1.000x" in phase["reason"]
    notes = " ".join(phase["notes"])
    assert "in all repeats" in notes
    assert "is faster than eager" not in notes


def test_where_nothing_was_calm_what_there_is_decides_with_its_flags(target: Path) -> None:
    """A machine that is never at rest is the one that the user has."""

    def script(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0, flags=DISTURBED)
        return measured({"default": 1.2, "lite": 1.5}[request["config"]["mode"]], flags=DISTURBED)

    result = tune(target, executor=FakeExecutor(script, modes("default", "lite")), space=SPACE)
    assert result.config["forward"].mode == "lite"
    assert "contended" in result.to_dict()["phases"]["forward"]["best"]["flags"]


def test_a_leader_that_was_never_calm_makes_room_for_the_next(target: Path) -> None:
    """With quick effort one is confirmed beside the default, and that one cannot be seen."""
    truth = {"default": 1.1, "lite": 1.05, "max-autotune": 1.3}

    def script(request: Mapping[str, Any]) -> Ending:
        mode = request["config"]["mode"]
        if request["config"]["backend"] == "eager":
            return measured(1.0)
        if mode == "lite":
            return measured(1.4, flags=DISTURBED if "repeats" in request else ())
        return measured(truth[mode])

    executor = FakeExecutor(script, modes(*truth))
    result = tune(target, executor=executor, space=SPACE, effort="quick")
    assert result.config["forward"].mode == "max-autotune"


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("busy", [0.0, 0.6, 0.9, 1.0])
def test_however_much_others_disturb_the_number_of_repeats_is_bounded(
    target: Path, monkeypatch: pytest.MonkeyPatch, busy: float, is_late: bool
) -> None:
    """The default and eager are always seen, and make the others look as if they could be too."""
    names = [f"backend{n}" for n in range(25)]
    chance = random.Random(1)

    def script(request: Mapping[str, Any]) -> Ending:
        backend = request["config"]["backend"]
        if backend in ("eager", "inductor"):
            return measured(1.0 if backend == "eager" else 1.1)
        is_busy = "repeats" in request and chance.random() < busy
        speedup = 1.3 + 0.004 * names.index(backend)
        return measured(speedup, flags=DISTURBED if is_busy else ())

    if is_late:
        late = types.SimpleNamespace(monotonic=lambda: 1e12)
        monkeypatch.setattr("autocompile.search.finalists.time", late)
    usable = {"inductor": "", **dict.fromkeys(names, "")}
    probe = probed(modes={"default": "default"}, backends=usable, all_backends=list(usable))
    space = SearchSpace(
        ("inductor", *names), batch_sizes=(4,), fullgraph=(False,), freezing=(False,)
    )
    result = tune(target, executor=FakeExecutor(script, probe), space=space, budget_s=1000.0)
    repeats = Counter(r.config.backend for r in result.trials if r.repeats is not None)
    assert len(repeats) <= 2 + 6
    assert sum(repeats.values()) <= (3 * 8 if is_late else 90)
    assert repeats["backend24"] >= 1


def test_what_one_phase_saw_does_not_make_the_calm_of_another_chance() -> None:
    before = [trial(n, flags=() if n % 2 else DISTURBED) for n in range(8)]
    later = [trial(8 + n, phase="optimizer_step", flags=DISTURBED) for n in range(40)]
    found = calmness([*before, *later])
    assert [found[n] for n in range(8)].count(Calm.ENOUGH) == 4
    assert {found[n] for n in range(8, 48)} == {Calm.NONE}


def test_that_one_process_of_five_slowed_eager_is_chance() -> None:
    flags = [(), (), ("eager_slowed",), (), ()]
    repeats = [trial(n, role="confirm", repeats=0, flags=each) for n, each in enumerate(flags, 1)]
    (found,) = candidates([trial(0), *repeats])
    assert not found.slows_eager
    (found,) = candidates(
        [trial(0), *repeats[1:4], trial(9, role="confirm", repeats=0, flags=flags[2])]
    )
    assert found.slows_eager, "two of four"


def test_where_nothing_was_calm_eager_does_not_choose_the_batch_size(target: Path) -> None:
    """A large batch at which eager is fast, and a small one at which compiling pays threefold."""

    def script(request: Mapping[str, Any]) -> Ending:
        is_small = request["batch_size"] == 4
        eager_s = 1e-3 if is_small else 12e-3
        if request["config"]["backend"] == "eager":
            return measured(1.0, eager_s=eager_s, flags=DISTURBED)
        return measured(3.0 if is_small else 0.95, eager_s=eager_s, flags=DISTURBED)

    space = SearchSpace(modes=("default",), batch_sizes=(4, 64), freezing=(False,))
    result = tune(target, executor=FakeExecutor(script), space=space)
    assert result.verdict == {"forward": "faster"}
    assert result.to_dict()["phases"]["forward"]["best"]["batch_size"] == 4


@pytest.mark.parametrize(
    "pace_s", [3e-6, 5, "abc", [1e-6, "x"], [None, 1.0], {"a": 1}, [[1]], [-1.0], [math.nan]]
)
def test_a_pace_that_makes_no_sense_is_not_known(pace_s: Any) -> None:
    odd = dataclasses.replace(trial(0), detail={"pace_s": pace_s})
    assert pace_of(odd) == ()
    assert calmness([odd, trial(1)]) == {0: Calm.ENOUGH, 1: Calm.ENOUGH}


def test_a_machine_that_was_fast_while_it_was_cool_is_not_slow_for_the_rest_of_the_run() -> None:
    cool_s = [0.9 * s for s in USUAL_S]
    records = [trial(n, pace_s=cool_s if n < 6 else USUAL_S) for n in range(60)]
    found = calmness(records)
    assert sum(level is Calm.ENOUGH for level in found.values()) >= 55
    assert all(found[n] is Calm.ENOUGH for n in range(20, 60))


def test_a_disturbed_repeat_beside_two_calm_ones_takes_nothing_from_them() -> None:
    again = [trial(n, speedup=s, repeats=0, role="confirm") for n, s in ((1, 1.25), (2, 1.26))]
    more = trial(3, speedup=1.6, repeats=0, role="confirm", flags=DISTURBED)
    two, three = (candidates([trial(0), *every])[0] for every in (again, [*again, more]))
    assert two.calm is three.calm is Calm.ENOUGH
    assert two.speedup.value == three.speedup.value
    assert three.confirmed == 3  # and its flags say that one of them was in doubt
    assert "contended" in three.flags


def test_what_others_slowed_is_not_the_settings_own_doing() -> None:
    assert slows_eager(trial(0, flags=("eager_slowed",)))
    assert not slows_eager(trial(0, flags=("eager_slowed", "contended")))


def test_who_slows_eager_himself_gets_no_more_processes_for_it(target: Path) -> None:
    """No other time of day would help, and nobody else was to blame."""

    def script(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0)
        if request["config"]["mode"] == "lite":
            return measured(1.5, flags=("eager_slowed",))
        return measured(1.2)

    executor = FakeExecutor(script, modes("default", "lite"))
    result = tune(target, executor=executor, space=SPACE)
    repeats = Counter(r.config for r in result.trials if r.repeats is not None)
    assert repeats[LITE] <= 3 < repeats[DEFAULT_INDUCTOR]
    assert result.config["forward"].mode == "default"
    assert "in all repeats" not in " ".join(result.to_dict()["phases"]["forward"]["notes"])


def test_eager_is_no_setting_that_could_not_be_seen() -> None:
    eager = [trial(0, EAGER, 1.0, flags=DISTURBED)]
    eager.append(trial(1, EAGER, 1.0, flags=DISTURBED, repeats=0, role="confirm"))
    assert not candidates(eager)[0].is_unseen
