"""A race in one process: every side is verified and timed in turns; who fails is out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TARGETS, Bench
from in_process import Try

from autocompile.protocol.requests import TimingLimits
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Choice, Tuned, TunedSet
from autocompile.store.reading import plain
from autocompile.store.record import AT_WORK, Measurement, Outcome
from autocompile.trial import worker
from autocompile.trial.channel import Channel
from autocompile.trial.tasks import session

NET = """
import itertools, os, sys
import torch
import torch._dynamo
from torch._dynamo import register_backend

torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).flatten(1))

def get_model():
    return Net()

def get_inputs(batch_size):
    return (torch.randn(batch_size, 3, 4, 4),)

def get_optimizer(model):
    return torch.optim.Adam(model.parameters())

def get_step(model, optimizer):
    def step(inputs):
        optimizer.zero_grad()
        loss = model(*inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step

def raising(error):
    def backend(graph, inputs):
        raise error
    return backend

register_backend(lambda graph, inputs: graph.forward, name="honest")
register_backend(
    lambda graph, inputs: lambda *args: tuple(map(torch.zeros_like, graph(*args))), name="zeros"
)
# A step has no outputs: it changes its inputs, or should.
register_backend(lambda graph, inputs: lambda *args: (), name="idle")
register_backend(raising(ValueError("this backend cannot do it")), name="raises")
register_backend(raising(SystemExit("gone")), name="exits")

def late(name, do):
    # Right for as long as it is verified, and more calls than that.
    def backend(graph, inputs):
        calls = itertools.count(1)
        return lambda *args: do(graph(*args)) if next(calls) > 5 else graph(*args)
    register_backend(backend, name=name)

def fail(outputs):
    raise ValueError("no more")

FACTORS = itertools.count()
compiled_product = torch.compile(lambda x, by: x * by, backend="eager", dynamic=False)

def compile_anew(outputs):
    compiled_product(torch.ones(2), next(FACTORS))
    return outputs

late("wears_out", lambda outputs: tuple(out + 1 for out in outputs))
late("fails_later", fail)
late("exits_later", lambda outputs: sys.exit("gone"))
late("recompiles", compile_anew)

# Of each graph its weights' strides, the cache and how often it was called.
@register_backend
def seen(graph, inputs):
    weights = [x.stride() for x in inputs if isinstance(x, torch.nn.Parameter) and x.dim() == 4]
    found = {"weights": weights, "calls": 0, "cache": os.environ.get("TORCHINDUCTOR_CACHE_DIR")}
    sys.modules["test_race"].SEEN.append(found)

    def run(*args):
        found["calls"] += 1
        return graph(*args)

    return run
"""
SEEN: list[dict[str, Any]] = []
ROUNDS = 5


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)  # where the caches are
    for name in (
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
    ):  # each side has its own
        monkeypatch.setenv(name, str(tmp_path / "nobodys"))
    SEEN.clear()
    return tmp_path / "net.py"


def a_race(*configs: CompileConfig | str, **more: Any) -> dict[str, Any]:
    """The request, of settings or names of backends; their numbers are 10, 11, 12, ..."""
    settings = [CompileConfig(c) if isinstance(c, str) else c for c in configs]
    sides = [
        {
            "repeats": number,
            "config": c.to_dict(),
            "cache": f"cache{number}",
            "is_warm": True,
            "checks": more.get("checks", "first"),
        }
        for number, c in enumerate(settings, 10)
    ]
    limits = plain(TimingLimits.exactly(ROUNDS, more.pop("max_s", 60.0), 0.001))
    return {
        "kind": "trial",
        "sides": sides,
        "limits": limits,
        **more,
    }


def outcome_of_all(result: dict[str, Any]) -> str:
    """A trial ends as its only side does; one of several goes on without those that fail."""
    sides = result["sides"]
    return sides[0]["outcome"] if len(sides) == 1 else "ok"


def outcomes(result: dict[str, Any]) -> list[tuple[str, str]]:
    assert result["outcome"] == outcome_of_all(result), result
    assert [side["number"] for side in result["sides"]] == [
        10 + index for index in range(len(result["sides"]))
    ]
    return [(side["outcome"], side["step"]) for side in result["sides"]]


def rounds_of(side: dict[str, Any]) -> int:
    measurement = Measurement.from_dict(side["measurement"])
    assert len(measurement.eager_s) == len(measurement.compiled_s)
    return len(measurement.eager_s)


OK = ("ok", "exit")
LAST = {"memory_format": "channels_last"}


def test_sides_of_all_kinds_are_timed_for_as_many_rounds_beside_the_same_eager_blocks(
    try_it: Try, net: Path
) -> None:
    eager = CompileConfig("eager", memory_format="channels_last")
    whole = CompileConfig("aot_eager", fullgraph=True)
    request = a_race("aot_eager", eager, "honest", whole)
    request["sides"][2]["is_warm"] = False  # of a cold cache no compile time is told
    result = try_it(net, **request)
    assert outcomes(result) == [OK] * 4
    assert [rounds_of(side) for side in result["sides"]] == [ROUNDS] * 4
    assert len({tuple(side["measurement"]["eager_s"]) for side in result["sides"]}) == 1
    assert (
        len({tuple(side["measurement"]["compiled_s"]) for side in result["sides"]}) == 4
    )
    assert [side["compile_s"] is not None for side in result["sides"]] == [
        True,
        False,
        False,
        True,
    ]
    assert all(0 < side["reference_s"] < 1 for side in result["sides"])


def test_who_fails_is_out_and_the_others_go_on(try_it: Try, net: Path) -> None:
    before = torch._dynamo.optimize
    backends = (
        "zeros honest raises wears_out flux_capacitor fails_later exits recompiles exits_later "
        "aot_eager"
    ).split()
    result = try_it(net, **a_race(*backends))
    found = dict(zip(backends, outcomes(result), strict=True))
    assert found == {
        "zeros": ("wrong_output", "verify"),
        "honest": OK,
        "raises": ("compile_error", "compile"),
        "wears_out": ("wrong_output", "verify"),
        "flux_capacitor": ("unsupported", "compile"),
        "fails_later": ("runtime_error", "measure"),
        "exits": ("compile_error", "compile"),
        "recompiles": ("recompile_limit", "measure"),
        "exits_later": ("runtime_error", "measure"),
        "aot_eager": OK,
    }
    sides = dict(zip(backends, result["sides"], strict=True))
    assert "(call 1)" in sides["zeros"]["message"]
    assert "(after the timing)" in sides["wears_out"]["message"]
    assert sides["raises"]["message"] == "ValueError: this backend cannot do it"
    assert (
        sides["exits"]["message"]
        == sides["exits_later"]["message"]
        == "SystemExit: gone"
    )
    assert "recompiled while it was timed" in sides["recompiles"]["message"]
    assert rounds_of(sides["honest"]) == rounds_of(sides["aot_eager"]) == ROUNDS
    measured = {name for name in backends if sides[name]["measurement"] is not None}
    assert measured == {name for name, how in found.items() if how == OK}
    assert torch._dynamo.optimize is before
    assert int((net.parent / AT_WORK).read_text()) == -1, (
        "after a race it is nobody's turn"
    )


@pytest.mark.parametrize("backend", ["zeros", "fails_later"])
def test_where_nobody_is_left_eager_is_not_timed_alone(
    try_it: Try, net: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    sizes: list[int] = []
    made = session.Rounds

    def rounds(sides: Any, *args: Any) -> Any:
        sizes.append(len(sides))
        return made(sides, *args)

    monkeypatch.setattr(session, "Rounds", rounds)
    (side,) = try_it(net, **a_race(backend))["sides"]
    assert side["outcome"] != "ok" and side["measurement"] is None
    assert sizes == ([] if backend == "zeros" else [2])


def test_an_error_of_the_models_own_is_nobodys(try_it: Try, net: Path) -> None:
    with net.open("a") as file:
        file.write("\ndef get_inputs(batch_size):\n    raise ValueError('no data')\n")
    result = try_it(net, **a_race("honest"))
    assert (result["outcome"], result["step"]) == ("runtime_error", "eager")
    assert all(side["outcome"] == "interrupted" for side in result["sides"])


def test_a_step_is_raced_with_other_implementations_of_the_optimizer(
    try_it: Try, net: Path
) -> None:
    fused = CompileConfig("eager", optimizer="fused")
    request = a_race("honest", fused, "idle", phase="optimizer_step", batch_size=None)
    result = try_it(net, **request)
    assert outcomes(result)[:2] == [OK] * 2
    assert outcomes(result)[2] == ("wrong_output", "verify")


@pytest.mark.parametrize(
    ("configs", "more"),
    [
        (("aot_eager", CompileConfig("aot_eager", **LAST)), {"phase": "train_step"}),
        ((CompileConfig("aot_eager", autocast="bfloat16"),), {"takes_turns": True}),
    ],
    ids=["from the same weights", "as eager of this precision does"],
)
def test_other_work_is_raced(
    try_it: Try, net: Path, configs: Any, more: dict[str, Any]
) -> None:
    assert outcomes(try_it(net, **a_race(*configs, **more))) == [OK] * len(configs)


# --- no side runs the code of another -------------------------------------------------------------

STATIC = {"dynamic": False}
SETTINGS = ({}, LAST, STATIC, {**STATIC, **LAST}, {"dynamic": True})


@pytest.mark.parametrize("settings", [SETTINGS, SETTINGS[::-1]])
def test_each_side_runs_code_of_its_own(
    try_it: Try, net: Path, settings: tuple[dict[str, Any], ...]
) -> None:
    """Dynamo would take another's wherever guards do not forbid it."""
    result = try_it(
        net, **a_race(*(CompileConfig("seen", **each) for each in settings))
    )
    assert outcomes(result) == [OK] * len(settings)
    last, first = [(27, 1, 9, 3)], [(27, 9, 3, 1)]
    assert [each["weights"] for each in SEEN] == [
        last if "memory_format" in each else first for each in settings
    ]
    assert all(each["calls"] > ROUNDS for each in SEEN)
    caches = [Path(each["cache"]).name for each in SEEN]
    assert caches == [f"cache{10 + number}" for number in range(len(settings))]


def test_more_sides_than_dynamo_compiles_one_function_for_by_default(
    try_it: Try, net: Path
) -> None:
    many = torch._dynamo.config.recompile_limit + 2
    more = [f"honest{number}" for number in range(many)]
    with net.open("a") as file:
        file.write(f"\nfor name in {more}:\n    late(name, lambda outputs: outputs)\n")
    assert outcomes(try_it(net, **a_race(*more))) == [OK] * many


# --- turns ---------------------------------------------------------------------------------------


class Watched(Channel):
    """Writes down at which steps the machine was asked for."""

    asked: list[str] = []  # noqa: RUF012

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        if not self._depth:
            self.asked.append(self.current.value)
        with super().exclusive():
            yield


@pytest.mark.parametrize("takes_turns", [False, True])
def test_processes_that_take_turns_ask_for_each_round(
    try_it: Try, net: Path, monkeypatch: pytest.MonkeyPatch, takes_turns: bool
) -> None:
    monkeypatch.setattr(worker, "Channel", Watched)
    Watched.asked.clear()
    result = try_it(net, **a_race("honest", "aot_eager", takes_turns=takes_turns))
    assert [rounds_of(side) for side in result["sides"]] == [ROUNDS] * 2
    assert Watched.asked[:3] == ["eager", "compile", "compile"], (
        "verified once it is compiled"
    )
    turns = ["measure"] * ROUNDS if takes_turns else []
    assert Watched.asked[3:-2] == ["verify", *turns], (
        "measuring begins once it is alone"
    )
    assert Watched.asked[-2:] == ["verify", "verify"], "and after the timing"


def test_a_race_that_takes_too_long_has_three_rounds(try_it: Try, net: Path) -> None:
    (side,) = try_it(net, **a_race("honest", max_s=0.0, takes_turns=True))["sides"]
    assert rounds_of(side) == 3


# --- whose turn it was ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backends", [("honest", "segfaults", "zeros"), ("honest", "leaves")]
)
def test_a_process_that_dies_leaves_whose_turn_it_was(
    bench: Bench,
    backends: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # where the caches are
    target = str(TARGETS / "faulty_backends.py")
    more = {"target": target, "device": "cpu", "phase": "forward", "batch_size": 4}
    number = bench.begin(a_race(*backends, **more))
    ending = bench.end(number)
    assert ending.outcome is Outcome.CRASHED, ending.message
    file = bench.job_factory.folder.trial(number) / AT_WORK
    assert int(file.read_text()) == 11


# --- exported code -------------------------------------------------------------------------------


def exported(code: str, config: CompileConfig | str, **more: Any) -> dict[str, Any]:
    """The request to run exported code that is about a setting."""
    request = a_race(config, **more)
    choice = Choice(
        CompileConfig("honest"), 4, {"value": 1.0, "low": 1.0, "high": 1.0}, 3
    )
    settings = json.loads(
        TunedSet((Tuned({"forward": (choice,)}, {}, "net.py"),)).to_json()
    )
    request["sides"][0]["exported"] = {"code": code, "settings": settings}
    return request


ONE_THREAD = (
    "torch.set_num_threads(1)\nmodel = model.to(memory_format=torch.channels_last)"
)
STEP = 'optimizer_step = torch.compile(optimizer.step, backend="seen")'
TRAIN_STEP = 'train_step = torch.compile(train_step, backend="seen")'
MAKE = "optimizer = torch.optim.Adam(model.parameters(), "


@pytest.mark.parametrize(
    ("code", "phase", "outcome"),
    [
        ('model = torch.compile(model, backend="seen")', "forward", OK),
        ('import autocompile\nautocompile.apply(model, "tuned.json")', "forward", OK),
        (
            'model = torch.compile(model, backend="zeros")',
            "forward",
            ("wrong_output", "verify"),
        ),
        ("model = modell", "forward", ("compile_error", "compile")),
        (f"{MAKE}fused=True)", "optimizer_step", OK),
        (STEP, "optimizer_step", OK),
        (f"{MAKE}lr=0.1, fused=True)", "optimizer_step", ("wrong_output", "verify")),
        (f"{MAKE}fused=True)\n{TRAIN_STEP}", "train_step", OK),
    ],
)
def test_exported_code_is_what_runs_and_is_verified(
    try_it: Try, net: Path, code: str, phase: str, outcome: tuple[str, str]
) -> None:
    result = try_it(net, **exported(code, "honest", phase=phase))
    assert outcomes(result) == [outcome]
    if "seen" in code:
        assert sum(each["calls"] for each in SEEN) > ROUNDS


@pytest.mark.parametrize(
    ("code", "scope"),
    [
        ('model = torch.compile(model, backend="seen")', "model"),
        ('step = torch.compile(step, backend="seen")', "step"),
        (f"{MAKE}fused=True)\nmodel = torch.compile(model, backend='seen')", "model"),
    ],
)
def test_exported_code_surrounds_a_step_of_ones_own(
    try_it: Try, net: Path, code: str, scope: str
) -> None:
    request = exported(code, CompileConfig("honest", scope=scope), phase="step")
    assert outcomes(try_it(net, **request)) == [OK]
    assert sum(each["calls"] for each in SEEN) > ROUNDS


@pytest.mark.usefixtures("_newer_switches")
def test_exported_code_runs_for_a_target_that_uses_torchs_newer_switches_of_precision(
    try_it: Try, net: Path
) -> None:
    result = try_it(net, **exported(ONE_THREAD, CompileConfig("eager", threads=1)))
    assert outcomes(result) == [OK], result["sides"]


def test_what_exported_code_sets_for_the_process_is_not_eagers(
    try_it: Try, net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with net.open("a") as file:
        file.write("\ntorch.set_num_threads(2)\n")
    seen: list[tuple[bool, int]] = []
    made = session.Rounds

    def rounds(sides: Any, *args: Any) -> Any:
        for side in sides:
            with side.context():
                seen.append((side is sides[0], torch.get_num_threads()))
        return made(sides, *args)

    monkeypatch.setattr(session, "Rounds", rounds)
    result = try_it(net, **exported(ONE_THREAD, CompileConfig("eager", threads=1)))
    assert outcomes(result) == [OK]
    assert seen == [(True, 2), (False, 1)]
