"""The later checks: what only they find is found in a race, before it can be an answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import TARGETS
from in_process import Try

import autocompile
from autocompile.protocol.requests import TimingLimits
from autocompile.settings.config import CompileConfig
from autocompile.store.reading import plain
from autocompile.store.record import Checks, Outcome

LIES = TARGETS / "late_lies.py"
LIARS = TARGETS / "lying_backends.py"
FOLDS = CompileConfig("folds")
A_RACE = {"limits": plain(TimingLimits.exactly(3, 60.0, 0.001))}


def side(config: CompileConfig, number: int, checks: str) -> dict[str, object]:
    return {"config": config.to_dict(), "repeats": number, "checks": checks}


def test_a_first_trial_that_is_asked_for_its_first_calls_says_so(try_it: Try) -> None:
    sides = [{"config": FOLDS.to_dict(), "checks": "first"}]
    found = try_it(f"{LIES}:chain", sides=sides)
    assert (found["outcome"], found["checks"]) == ("ok", "first"), found["message"]
    assert found["weights_live"] is None


def test_a_first_trial_that_is_asked_for_all_finds_stale_weights(try_it: Try) -> None:
    found = try_it(f"{LIES}:chain", config=FOLDS.to_dict())
    assert (found["outcome"], found["step"]) == ("stale_weights", "verify")


def test_a_race_asks_those_that_have_not_passed_all_and_goes_on_with_the_others(
    try_it: Try,
) -> None:
    honest = CompileConfig("aot_eager")
    sides = [side(FOLDS, 1, "all"), side(honest, 2, "all"), side(honest, 3, "first")]
    found = try_it(f"{LIES}:chain", sides=sides, **A_RACE)
    wrong, right, known = found["sides"]
    assert (wrong["outcome"], wrong["checks"]) == ("stale_weights", "first")
    assert (right["outcome"], right["checks"]) == ("ok", "all")
    assert right["weights_live"] is True and right["measurement"]
    assert (known["outcome"], known["checks"]) == ("ok", "first")
    assert known["weights_live"] is None, "nothing was asked that it had passed before"


def of_run(target: str, run: Path, backend: str) -> autocompile.Result:
    return autocompile.tune(
        target,
        phases=("forward",),
        space=autocompile.SearchSpace(
            backends=(backend,),
            modes=("default",),
            fullgraph=(False,),
            freezing=(False,),
            batch_sizes=(512,),
        ),
        trials=2,  # eager mode and the setting
        budget_s=240.0,
        run_dir=run,
        progress="none",
    )


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize(
    ("model", "backend", "outcome", "words"),
    [
        ("chain", "folds", Outcome.STALE_WEIGHTS, "in-place update of the weights"),
        ("noisy", "inductor", Outcome.WRONG_OUTPUT, "times as large as eager's"),
    ],
)
def test_a_lie_that_only_later_checks_find_is_no_answer_of_a_run(
    tmp_path: Path, model: str, backend: str, outcome: Outcome, words: str
) -> None:
    result = of_run(f"{LIES}:{model}", tmp_path / "run", backend)
    mine = [r for r in result.trials if r.config.backend == backend]
    (searched,) = (r for r in mine if r.role == "search" and r.duplicate_of is None)
    assert searched.ok and searched.checks is Checks.FIRST, searched.message
    assert searched.measurement and searched.measurement.speedup.low > 1.1
    raced = [r for r in mine if r.role == "confirm"]
    assert [r.outcome for r in raced] == [outcome], "its first set is its last"
    assert words in raced[0].message
    answer = result.report.phases["forward"].answer
    assert answer.verdict == "keep_eager"
    assert outcome.value in answer.reason, answer.reason
