"""Options: each is one field of a Request, and is there wherever it has to be."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pydoc
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeExecutor, probed
from made_records import run_of
from mypy import api as mypy_api
from scripts import Listener, script, tune
from typer.main import get_command

import autocompile
from autocompile.api import Parts, tune_with
from autocompile.cli import options
from autocompile.cli.commands import app
from autocompile.errors import RunError, TargetError, UsageError
from autocompile.estimate.limits import Limits
from autocompile.request import SAMPLERS, Request
from autocompile.settings.option import FLAG, Kept, declared, kept_names
from autocompile.settings.searchspace import SearchSpace
from autocompile.settings.tuned import Tuned
from autocompile.store.resuming import resuming

EVERY = list(declared(Request))
FACTS = {"environment": {}, "target": {}, "phases": ["forward"]}
# A value of every option that is not its default, as it is typed.
TYPED = {
    "phases": "forward",
    "effort": "quick",
    "budget_s": "10m",
    "device": "cpu",
    "objective": "latency",
    "limits.latency_s": "5ms",
    "limits.memory_bytes": "2GiB",
    "limits.compile_s": "90s",
    "limits.percentiles": "p95=10ms",
    "space.backends": "inductor,eager",
    "space.modes": "default",
    "space.batch_sizes": "1,4",
    "space.options": "none",
    "space.fullgraph": "true",
    "space.dynamic": "none,false",
    "space.recompile_limit": "16",
    "space.scope": "model",
    "space.freezing": "false",
    "space.memory_format": "channels_last",
    "space.optimizer": "default",
    "space.threads": "2",
    "space.precision": "high",
    "space.autocast": "bfloat16",
    "trials": "7",
    "sampler": "random",
    "pythons": "",
    "calls": "calls.json",
    "tolerance": "0.05",
    "horizon": "500",
    "calls_per_update": "3",
    "seed": "11",
    "ranks": "2",
    "strategy": "own",
    "space.ddp": "one_bucket",
    "space.fsdp": "kept",
    "jobs": "2",
    "timeout_s": "90.5",
    "memory_limit_bytes": "3GB",
    "isolation": "spawn",
    "ray": "auto",
    "accelerators": "T4,cpu",
    "run_dir": "mine",
    "space": "space.toml",
}
VALUES: dict[str, Any] = {
    "phases": ("train_step",),
    "effort": "quick",
    "budget_s": 600.0,
    "device": "cpu",
    "objective": "latency",
    "limits": Limits(latency_s=0.005, percentiles={"p95": 0.01}),
    "space": SearchSpace(batch_sizes=(1, 4), dynamic=(None, False)),
    "trials": 7,
    "sampler": "random",
    "pythons": ("old=/usr/bin/python3",),
    "tolerance": 0.05,
    "horizon": 500,
    "calls_per_update": 3,
    "seed": 11,
    "ranks": 2,
    "strategy": "own",
    "jobs": 2,
    "timeout_s": 90.5,
    "memory_limit_bytes": 3 * 10**9,
    "isolation": "spawn",
    "ray": "auto",
}


def name_of(each: Any) -> str:
    return ".".join(each.path)


# Where an option is ---------------------------------------------------------------------


@pytest.mark.parametrize("each", EVERY, ids=name_of)
def test_every_option_is_on_the_command_line_with_its_help(each: Any) -> None:
    command = get_command(app).commands["tune"]  # type: ignore[attr-defined]
    (param,) = [p for p in command.params if each.option.flag in p.opts]
    assert param.help
    first = next(e for e in EVERY if e.option.flag == each.option.flag)
    assert param.help == first.option.help
    assert param.rich_help_panel == first.option.panel


@pytest.mark.parametrize("each", EVERY, ids=name_of)
def test_every_option_reads_what_is_typed_for_it(each: Any) -> None:
    if each.option.kind is FLAG:
        assert each.option.kind.read(each.option.flag, ["True"]) is True
        return
    typed = TYPED[name_of(each)]
    value = each.option.kind.read(each.option.flag, [typed] if typed else [])
    assert (value is not None and value != each.default) or not typed
    if name_of(each) not in ("calls", "run_dir", "space") and each.path[0] != "space":
        again = each.option.kind.write(value)
        assert each.option.kind.read(each.option.flag, again) == value


def test_every_option_of_this_machine_is_in_the_signature_and_in_its_documentation() -> (
    None
):
    parameters = inspect.signature(autocompile.tune).parameters
    documented = pydoc.render_doc(autocompile.tune)
    for each in dataclasses.fields(Request):
        said = each.metadata.get("option")
        if said is None or not said.panel:
            continue
        assert (each.name in parameters) is not said.is_typed_only, each.name
        if not said.is_typed_only:
            is_group = each.name in ("limits", "space")
            about = f"{each.name}: a " if is_group else f"{each.name}: {said.help}."
            assert about in (inspect.getdoc(autocompile.tune) or "")
            assert parameters[each.name].kind is inspect.Parameter.KEYWORD_ONLY
            assert each.name in documented
    assert list(parameters)[:2] == ["target", "inputs"]
    inner = {"executor", "clock", "began", "command", "only", "asked", "machine"}
    assert not inner & set(parameters)


def test_a_type_checker_sees_the_options(tmp_path: Path) -> None:
    """Of the same declaration: no second list of names and types."""
    (tmp_path / "user.py").write_text(
        "import autocompile\n"
        'autocompile.tune("m.py", budget_s=60.0, limits=autocompile.Limits(compile_s=9.0))\n'
        'autocompile.tune("m.py", efort="quick")\n'
        'autocompile.tune("m.py", budget_s="2m")\n'
    )
    found, _, _ = mypy_api.run([str(tmp_path / "user.py")])
    lines = [line for line in found.splitlines() if ": error: " in line]
    assert [line.split(":")[1] for line in lines] == ["3", "4"], found
    assert 'Unexpected keyword argument "efort"' in lines[0]
    assert 'Argument "budget_s"' in lines[1]


def test_a_sampler_with_a_name_is_one_that_there_is() -> None:
    (each,) = [e for e in EVERY if e.path == ("sampler",)]
    assert each.option.kind.words == SAMPLERS


def test_a_run_keeps_what_it_was_asked_for(target: Path) -> None:
    asked = {n: v for n, v in VALUES.items() if n not in ("pythons", "ray")}
    several = {
        **probed().payload["target"],
        "workload": {"calls": 3, "kinds": 2},
        "phases": ["train_step"],
    }
    executor = FakeExecutor(script, probed(target=several))
    result = tune(target, executor, **asked, run_dir="mine")
    kept = json.loads((Path(result.run_dir) / "run.json").read_text())["request"]
    for name in kept_names(Request, Kept.RUN | Kept.RESUME | Kept.LAST):
        assert name in kept, name
    request = Request.from_dict(kept)
    for name, value in asked.items():
        assert getattr(request, name) == value, name


@pytest.mark.parametrize("without", ["ranks", "ray"])  # which do not go together
def test_a_request_is_the_same_after_a_round_through_json(without: str) -> None:
    request = Request("net.py", **{n: v for n, v in VALUES.items() if n != without})
    again = Request.from_dict(json.loads(json.dumps(request.to_dict())))
    assert again == request
    assert again.kept(Kept.RUN) == request.kept(Kept.RUN)


def test_several_ranks_are_no_matter_of_a_cluster() -> None:
    with pytest.raises(UsageError, match="--ranks and --ray do not go together"):
        Request("net.py", ranks=2, ray="auto")


@pytest.mark.parametrize("name", [n for n in kept_names(Request, Kept.RESUME)])
def test_the_command_that_resumes_repeats_what_is_kept_for_it(name: str) -> None:
    request = Request("net.py", **{name: VALUES[name]})
    line = resuming(
        run_of({**FACTS, "request": request.to_dict()}), "runs/net-0001"
    ).split()
    (each,) = [e for e in EVERY if e.path == (name,)]
    assert each.option.flag in line
    typed = line[line.index(each.option.flag) + 1]
    assert each.option.kind.read(each.option.flag, [typed]) == VALUES[name]


@pytest.mark.parametrize(
    "name", [n for n in kept_names(Request, Kept.RUN) if n != "only"]
)
def test_a_resumed_run_has_what_it_was_begun_with(name: str) -> None:
    if name not in VALUES:
        pytest.skip("calls are read of a file")
    earlier = Request("net.py", **{name: VALUES[name]})
    assert getattr(Request("net.py").resumed(earlier), name) == VALUES[name]
    assert Request("./net.py", **{name: VALUES[name]}).resumed(earlier) == earlier
    if name != "pythons":
        other = Request("net.py", **{name: VALUES[name]})
        with pytest.raises(UsageError, match=r"other options\n.*, now -"):
            other.resumed(Request("net.py"))


def test_what_is_kept_for_verify_is_in_the_settings_of_a_run(target: Path) -> None:
    names = set(kept_names(Request, Kept.VERIFY)) - {"calls"}
    asked = {name: VALUES[name] for name in names}
    asked["limits"] = Limits(latency_s=60.0, compile_s=60.0)
    of_ranks = {**probed().payload["target"], "phases": ["train_step"]}
    executor = FakeExecutor(script, probed(target=of_ranks))
    result = tune(target, executor, **asked, trials=4)
    tuned = Tuned.from_dict(json.loads(result.export("json")))
    assert set(tuned.decided_by) == names
    request = Request.decided("net.py", tuned.decided_by)
    assert all(getattr(request, name) == asked[name] for name in names)


def test_only_what_differs_from_the_default_is_kept() -> None:
    assert Request("net.py").kept(Kept.RUN | Kept.SUITE | Kept.VERIFY) == {}
    assert Request.known({"target": "net.py", "new": 1}).kept(Kept.VERIFY) == {}
    newer = {"target": "net.py", "seed": 3, "space": {"tiling": ["wide"]}}
    assert Request.known(newer).kept(Kept.VERIFY | Kept.RUN) == {"seed": 3}
    with pytest.raises(RunError, match="tiling"):
        Request.from_dict(newer)


# What is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "what", "hint"),
    [
        ({"budgets_s": 3}, "tune() has no option 'budgets_s'", "budget_s=..."),
        ({"budget": 3}, "tune() has no option 'budget'", "budget_s=..."),
        (
            {"max_latency": 0.1},
            "tune() has no option 'max_latency'",
            "limits=autocompile.Limits(latency_s=...)",
        ),
        (
            {"batch_size": (4,)},
            "tune() has no option 'batch_size'",
            "space=autocompile.SearchSpace(batch_sizes=...)",
        ),
        (
            {"effort": "quik"},
            "effort is 'quik', and takes one of quick",
            "effort='quick'",
        ),
        ({"jobs": 1.5}, "jobs is 1.5, and takes a whole number above 0", None),
        ({"seed": -1}, "seed is -1, and takes a whole number from 0 up", None),
        ({"timeout_s": True}, "timeout_s is True, and takes a number above 0", None),
        ({"budget_s": float("inf")}, "budget_s is inf", None),
    ],
)
def test_a_mistake_in_python_names_the_option_and_the_nearest(
    target: Path, given: dict[str, Any], what: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        autocompile.tune("net.py", **given)
    assert caught.value.what.startswith(what)
    assert caught.value.hint == hint
    assert not Path("runs").exists()


def test_what_is_about_other_machines_is_no_option_of_this_one(target: Path) -> None:
    with pytest.raises(UsageError, match="uses this machine") as caught:
        autocompile.tune("net.py", ray="auto")
    assert caught.value.hint == "autocompile tune net.py --ray auto"


def test_none_stands_for_the_default_and_is_not_asked_for() -> None:
    request = Request.of("net.py", {"seed": None, "effort": None, "device": None})
    assert request == Request("net.py")
    assert request.asked == frozenset()
    assert Request.of("net.py", {"seed": 0}).asked == {"seed"}


def test_a_phase_may_be_given_as_one_word(target: Path) -> None:
    executor = FakeExecutor(script)
    result = tune(target, executor, phases="forward", trials=3)
    assert list(result.verdict) == ["forward"]
    assert Request("net.py", phases="forward, train_step").phases == (
        "forward",
        "train_step",
    )
    with pytest.raises(UsageError, match="a phase is named twice: forward, forward"):
        Request("net.py", phases=("forward", "forward"))


def test_a_request_of_ones_own_may_be_tuned(target: Path) -> None:
    space = SearchSpace(batch_sizes=(4,))
    request = Request("net.py", space=space, trials=4)
    result = tune_with(request, Parts(FakeExecutor(script), Listener()))
    assert result.verdict == {"forward": "faster"}


# What is wrong with the target, and not with the request --------------------------------


def test_a_size_that_the_targets_inputs_do_not_have_is_about_the_target(
    target: Path,
) -> None:
    facts = {**probed().payload["target"], "fixed_batch_size": 4}
    executor = FakeExecutor(script, probed(target=facts))
    with pytest.raises(TargetError, match="have batch size 4"):
        tune(target, executor, space=SearchSpace(batch_sizes=(8,)))


def test_a_backend_that_another_target_may_register_is_about_the_target(
    target: Path,
) -> None:
    with pytest.raises(TargetError, match="is not registered by the target"):
        tune(target, FakeExecutor(script), space=SearchSpace(backends=("own",)))


def test_a_run_that_stands_beside_others_is_made_on_their_machine(target: Path) -> None:
    there = {**probed().payload["environment"], "torch": "2.12.0"}
    parts = Parts(FakeExecutor(script), machine=there)
    with pytest.raises(RunError, match="another torch") as caught:
        tune_with(Request("net.py"), parts)
    assert "2.12.0 then, 2.13.0 now" in caught.value.text()
    assert not list(Path().glob("runs/*"))


def test_what_was_typed_becomes_the_fields_that_it_is_of() -> None:
    typed = {("limits", "latency_s"): 0.01, ("seed",): 3}
    given = options.given(typed)
    assert Request.of("net.py", given).limits == Limits(latency_s=0.01)
    assert Request.of("net.py", given).seed == 3
    assert Request.of("net.py", given).asked == {"limits", "seed"}


@pytest.mark.parametrize("group", ["space", "limits"])
def test_an_unknown_key_of_a_group_is_named(group: str) -> None:
    with pytest.raises(UsageError, match=f"{group}: key 'backened' is none of"):
        Request.of("model.py", {group: {"backened": 1}})


def test_a_refusal_to_resume_names_options_and_values_as_they_are_typed() -> None:
    earlier = Request.of("model.py", {"limits": {"latency_s": 5.0}})
    asked = Request.of("model.py", {"limits": {"latency_s": 4.0}})
    with pytest.raises(UsageError) as caught:
        dataclasses.replace(asked, asked=("limits",)).resumed(earlier)
    said = str(caught.value)
    assert "it has --max-latency 5, now --max-latency 4 was asked for" in said
    assert "Limits(" not in said
