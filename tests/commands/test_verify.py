"""Settings of a file, tried once more: scripted trials, and the command on a real one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeExecutor, failed, measured, probed
from scripts import tune

from autocompile.commands.verify import REQUIREMENTS, Check, check, request_for
from autocompile.errors import UsageError
from autocompile.estimate.limits import Limits
from autocompile.execute.executor import Ending
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.option import named_numbers
from autocompile.settings.searchspace import SearchSpace
from autocompile.settings.tuned import Choice, Tuned, TunedSet
from autocompile.store.reading import plain
from autocompile.store.recorded_calls import RecordedCalls

NET = """
import torch
def get_model(): return torch.nn.Linear(8, 8)
def get_inputs(batch_size): return (torch.randn(batch_size, 8),)
"""
FAST = CompileConfig(mode="max-autotune")
WAS = {"value": 1.5, "low": 1.4, "high": 1.6}


def settings(
    config: CompileConfig = FAST, size: int | None = 4, phase: str = "forward"
) -> Tuned:
    return Tuned({phase: (Choice(config, size, WAS, 3),)}, {}, "net.py")


def verified(
    target: Path, wanted: Tuned, speed: Mapping[str, float], **broken: Ending
) -> tuple[Check, FakeExecutor]:
    def script(request: Mapping[str, Any]) -> Ending:
        config = request["config"]
        name = "eager" if config["backend"] == "eager" else config["mode"]
        return broken.get(name.replace("-", "_")) or measured(speed[name], noise=0.005)

    executor = FakeExecutor(script)
    (one,) = check(wanted, tune(target, executor=executor, only=wanted, trials=4))
    return one, executor


SPEED = {"eager": 1.0, "default": 1.2, "max-autotune": 1.5}


def test_only_the_settings_are_tried_beside_eager_and_the_default(target: Path) -> None:
    one, executor = verified(target, settings(), SPEED)
    tried = {(r["config"]["backend"], r["config"]["mode"]) for r in executor.requests}
    assert tried == {
        ("eager", "default"),
        ("inductor", "default"),
        ("inductor", "max-autotune"),
    }
    assert {r["batch_size"] for r in executor.requests} == {4}
    assert (one.verdict, one.message, one.was) == ("fastest", "", WAS)
    assert one.speedup is not None and one.speedup["value"] == pytest.approx(
        1.5, rel=0.02
    )


@pytest.mark.parametrize(
    ("config", "speed", "verdict"),
    [
        (FAST, {**SPEED, "max-autotune": 1.1}, "default"),
        (FAST, {"eager": 1.0, "default": 0.9, "max-autotune": 0.8}, "eager"),
        (EAGER, {"eager": 1.0, "default": 1.4}, "default"),
    ],
)
def test_what_is_faster_by_now_is_named(
    target: Path, config: CompileConfig, speed: Mapping[str, float], verdict: str
) -> None:
    one, _ = verified(target, settings(config), speed)
    assert one.verdict == verdict and "is as fast or faster here" in one.message


def test_what_no_longer_works_is_a_failure_in_words(target: Path) -> None:
    wrong = failed("wrong_output", "verify", message="outputs differ by 3")
    one, _ = verified(target, settings(), SPEED, max_autotune=wrong)
    assert (one.verdict, one.message) == (
        "failed",
        "wrong_output in verify: outputs differ by 3",
    )


def test_eager_mode_that_is_still_best_is_good(target: Path) -> None:
    one, _ = verified(target, settings(EAGER), {"eager": 1.0, "default": 0.9})
    assert one.verdict == "fastest" and one.speedup == {
        "value": 1.0,
        "low": 1.0,
        "high": 1.0,
    }


def test_gates_ask_for_what_they_name() -> None:
    one = Check(
        "forward",
        4,
        "x",
        "fastest",
        "",
        WAS,
        WAS,
        graphs=2,
        recompiles=1,
        compile_s=30.0,
    )
    given = ["speedup=1e-3,max-recompiles=0,max-graphs=2.0", "max-compile-time=1.5e1ms"]
    assert list(named_numbers("--require", given, REQUIREMENTS).values()) == [
        0.001,
        0.0,
        2.0,
        0.015,
    ]
    given = ["speedup=1.3,max-recompiles=1", "max-graphs=2", "max-compile-time=2m"]
    required = named_numbers("--require", given, REQUIREMENTS)
    assert required["max-compile-time"] == 120.0
    assert one.unmet(required) == []
    assert one.unmet({"speedup": 1.45}) == [
        "forward at 4: speedup is 1.4, and 1.45 is required"  # the lower end counts
    ]
    found = one.unmet({"max-graphs": 1, "max-recompiles": 0, "max-compile-time": 10})
    names = [text.split(":")[1].split()[0] for text in found]
    assert names == ["max-graphs", "max-recompiles", "max-compile-time"]
    undecided = Check("forward", 4, "x", "open", "there was no time to try it")
    assert undecided.unmet({"speedup": 1.05, "max-graphs": 1}) == [
        "forward at 4: speedup was not measured: there was no time to try it",
        "forward at 4: max-graphs was not measured: there was no time to try it",
    ]
    measured = replace(one, verdict="open")
    assert measured.unmet({"speedup": 1.45}) == []
    lost = Check("forward", 4, "x", "failed")
    assert lost.unmet({"speedup": 1.0, "max-graphs": 1}) == [
        "forward at 4: speedup is 0, and 1 is required"
    ]


def test_the_command_verifies_a_file(
    work: Path, typed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "net.py").write_text(NET)
    (work / "tuned.json").write_text(TunedSet((settings(EAGER),)).to_json())
    done = typed("verify", "tuned.json", "--json", "--progress", "none")
    (one,) = json.loads(done.stdout)["checks"]
    assert (one["phase"], one["batch_size"], one["setting"]) == ("forward", 4, "eager")
    # Which is fastest, and whether it can be told, is a matter of what else the machine does.
    assert one["verdict"] in ("fastest", "default", "open"), done.stderr
    assert done.returncode == (1 if one["verdict"] == "default" else 0)
    assert not (work / "runs").exists()


def test_the_command_ends_with_1_where_a_requirement_is_not_met(
    work: Path, typed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = FakeExecutor(lambda request: measured(1.0))
    monkeypatch.setattr("autocompile.api.LocalExecutor", lambda **_: script)
    (work / "net.py").write_text(NET)
    (work / "tuned.json").write_text(TunedSet((settings(EAGER),)).to_json())
    told = "--progress", "none", "--require", "speedup=2"
    done = typed("verify", "tuned.json", "--json", *told)
    (one,) = json.loads(done.stdout)["checks"]
    assert one["verdict"] == "fastest", done.stderr
    assert done.returncode == 1
    (unmet,) = json.loads(done.stdout)["unmet"]
    assert unmet == "forward at 4: speedup is 1, and 2 is required"
    assert not (work / "runs").exists()


def test_what_there_was_no_time_to_try_is_open(target: Path) -> None:
    executor = FakeExecutor(lambda request: measured(1.0))
    wanted = settings()
    (one,) = check(wanted, tune(target, executor, only=wanted, trials=1))
    assert (one.verdict, one.message) == ("open", "there was no time to try it")


def test_a_budget_that_ends_before_anything_is_tried_is_an_error(
    work: Path, typed: Callable[..., Any]
) -> None:
    (work / "net.py").write_text("import time\ntime.sleep(60)\n" + NET)
    (work / "tuned.json").write_text(TunedSet((settings(),)).to_json())
    done = typed("verify", "tuned.json", "--progress", "none", "--budget", "2s")
    assert done.returncode == 2
    assert "net.py took the whole budget of 2 s" in done.stderr


@pytest.mark.parametrize("outcome", ["interrupted", "infrastructure"])
def test_a_trial_that_says_nothing_about_the_setting_is_open(
    target: Path, outcome: str
) -> None:
    one, _ = verified(target, settings(), SPEED, max_autotune=failed(outcome))
    assert one.verdict == "open"


def test_where_eager_mode_fails_each_check_does(target: Path) -> None:
    broken = failed("runtime_error", "eager", message="no such file")
    one, _ = verified(target, settings(), SPEED, eager=broken)
    assert one.verdict == "failed"
    assert one.message == "eager mode: runtime_error in eager: no such file"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("def get_model(): raise ValueError('no, weights')", "no, weights"),
        (
            "import torch\ndef get_model(): raise torch.OutOfMemoryError('too large')",
            "too large",
        ),
        ("", "there is no file net.py"),
    ],
)
def test_that_nothing_can_be_verified_is_an_error(
    work: Path,
    typed: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    said: str,
) -> None:
    if model:
        (work / "net.py").write_text(model)
    (work / "tuned.json").write_text(TunedSet((settings(),)).to_json())
    told = "--progress", "none"
    done = typed("verify", "tuned.json", "--json", *told)
    assert done.returncode == 2
    assert said in json.dumps(json.loads(done.stdout)["error"])
    assert done.stderr.startswith("error: ")
    for path in re.findall(
        r"/tmp/\S*autocompile-verify\S*", done.stderr
    ):  # none that is gone
        assert Path(path).exists()


def test_figures_of_an_algorithm_stay_with_the_run_whose_settings_they_are_of(
    target: Path, typed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def run() -> None:
        executor = FakeExecutor(lambda request: measured(1.0))
        runs.append(
            Path(tune(target, executor=executor, trials=8, progress="none").run_dir)
        )

    def compare(*_: Any) -> dict[str, Any]:
        run()  # meanwhile somebody tunes once more
        return {"figures": {"update_s": {}}}

    run()
    monkeypatch.setattr("autocompile.rllib.gain.compare_in_algorithm", compare)
    done = typed("verify", "last", "--in-algorithm", "--json")
    assert done.returncode == 0, done.stderr
    assert [(one / "in_algorithm.json").exists() for one in runs] == [True, False]


def recorded(*lengths: int, model: str = "Linear") -> RecordedCalls:
    calls = [
        {"args": [{"tensor": {"shape": [n, 8], "dtype": "float32"}}]} for n in lengths
    ]
    distinct = [{**call, "kwargs": {}} for call in calls]
    order = [*range(len(calls))]
    return RecordedCalls.from_dict(
        {"model": model, "distinct": distinct, "order": order}
    )


def test_settings_are_tried_by_what_decided_when_they_were_found(target: Path) -> None:
    def script(request: Mapping[str, Any]) -> Ending:
        return measured(1.0 if request["config"]["backend"] == "eager" else 1.5)

    facts = probed().payload["target"] | {"workload": {"calls": 3, "kinds": 2}}
    calls = recorded(3, 5)
    recorded(7, 9).write(target.parent / "other.json")
    for given, wanted in ((None, calls), ("other.json", recorded(7, 9))):
        executor = FakeExecutor(script, probe=probed(target=facts))
        only = replace(settings(), decided_by={"calls": plain(calls)})
        tune(target, executor=executor, only=only, trials=4, calls=given)
        assert all(
            RecordedCalls.from_dict(r["calls"]) == wanted for r in executor.requests
        )
    executor = FakeExecutor(script)
    result = tune(
        target,
        executor=executor,
        only=replace(settings(), decided_by={"horizon": 500}),
        trials=4,
    )
    assert {r.horizon for r in result.trials if r.role == "search"} == {500}


def test_a_setting_is_judged_by_the_limits_it_was_chosen_by(target: Path) -> None:
    """Plain compile is faster, and takes longer to compile than was allowed."""

    def script(request: Mapping[str, Any]) -> Ending:
        config = request["config"]
        if config["backend"] == "eager":
            return measured(1.0, noise=0.005)
        if config["mode"] == "default":
            return measured(1.5, noise=0.005, compile_s=30.0)
        return measured(1.3, noise=0.005, compile_s=5.0)

    verdicts = []
    for decided in ({"limits": {"compile_s": 10.0}}, {}):
        wanted = replace(settings(), decided_by=decided)
        result = tune(target, executor=FakeExecutor(script), only=wanted, trials=4)
        (one,) = check(wanted, result)
        verdicts.append(one.verdict)
    assert verdicts == ["fastest", "default"]


def test_a_setting_is_judged_with_the_tolerance_it_was_found_with(target: Path) -> None:
    executor = FakeExecutor(lambda request: measured(1.0))
    decided = {"tolerance": 0.05, "calls_per_update": 500, "seed": 7}
    wanted = replace(settings(), decided_by=decided)
    tune(target, executor=executor, only=wanted, trials=4)
    for name, value in decided.items():
        assert {r.get(name) for r in executor.requests} == {value}, name


def test_what_a_limit_has_chosen_is_written_and_verified_by_that_limit(
    target: Path,
) -> None:
    """Plain compile is faster, and takes longer to compile than was allowed."""

    def script(request: Mapping[str, Any]) -> Ending:
        config = request["config"]
        if config["backend"] == "eager":
            return measured(1.0, noise=0.005)
        if config["mode"] == "max-autotune":
            return measured(1.3, noise=0.005, compile_s=5.0)
        return measured(1.5, noise=0.005, compile_s=30.0)

    asked: Any = {"limits": Limits(compile_s=10.0), "tolerance": 0.05, "seed": 3}
    space = SearchSpace(batch_sizes=(4,))
    found = tune(target, FakeExecutor(script), space=space, **asked)
    assert found.config["forward"].mode == "max-autotune"
    kept = Tuned.from_dict(json.loads(found.export("json")))
    executor = FakeExecutor(script)
    (one,) = check(kept, tune(target, executor, only=kept, trials=6))
    assert (one.verdict, one.message) == ("fastest", "")
    assert {(r["tolerance"], r["seed"]) for r in executor.requests} == {(0.05, 3)}


def test_what_is_given_goes_before_what_decided(target: Path) -> None:
    decided = {"tolerance": 0.05, "seed": 3, "calls_per_update": 7}
    entry = replace(settings(), decided_by=decided)
    given = {"timeout_s": 9.0, "device": "cpu", "budget_s": 5.0}
    request = request_for(entry, "net.py", given)
    assert {n: getattr(request, n) for n in decided} == decided
    assert {n: getattr(request, n) for n in given} == given
    assert request.phases == ("forward",)
    assert request_for(entry, "net.py", {"seed": 4}).seed == 4


@pytest.mark.parametrize(
    "more",
    [
        {
            "calls": {
                "model": "Net",
                "distinct": [{"args": [{"code": "x"}], "kwargs": {}}],
            }
        },
        {"calls": "import os"},
        {"calls": {**vars(recorded(3)), "order": [4]}},
        {"horizon": "long"},
        {"objective": 95},
        {"tolerance": 2},
        {"limits": {"latency": 1}},
        {"timeout_s": 1.0},
    ],
)
def test_what_decided_is_read_as_data(work: Path, more: dict[str, Any]) -> None:
    data = {**settings().to_dict(), "decided_by": more}
    (work / "tuned.json").write_text(json.dumps(data))
    (entry,) = TunedSet.read("tuned.json").entries
    with pytest.raises(UsageError, match="decided"):
        request_for(entry, "aot:eager", {})


@pytest.mark.parametrize("options", [(), ("--calls", "third.json")])
def test_the_command_takes_the_calls_of_the_settings_or_those_it_is_given(
    work: Path, typed: Callable[..., Any], options: tuple[str, ...]
) -> None:
    """Each are of another model, which the trial's process says."""
    (work / "net.py").write_text(NET)
    kept = replace(
        settings(EAGER), decided_by={"calls": plain(recorded(3, 5, model="Other"))}
    )
    (work / "tuned.json").write_text(TunedSet((kept,)).to_json())
    recorded(3, 5, model="Third").write(work / "third.json")
    done = typed("verify", "tuned.json", *options, "--progress", "none")
    assert done.returncode == 2
    assert f"another model: it names {'Third' if options else 'Other'}" in done.stderr
