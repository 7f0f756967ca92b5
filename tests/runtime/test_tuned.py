"""The file of settings, and ``autocompile.apply`` in plain torch."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import json
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import pytest
import torch
from fakes import FakeExecutor, measured
from scripts import tune

import autocompile
from autocompile.errors import UsageError
from autocompile.runtime import apply
from autocompile.runtime.apply import InTraining
from autocompile.runtime.applying import (
    apply_config,
    apply_to_optimizer,
    apply_to_phase,
)
from autocompile.runtime.machine import describe
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.tuned import Choice, Tuned, TunedSet

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")

CPU = torch.device("cpu")
SPEEDUP = {"value": 1.5, "low": 1.4, "high": 1.6}
AOT = CompileConfig("aot_eager")  # captures graphs and needs no C++ compiler


def settings(**phases: Any) -> Tuned:
    here = {
        k: v for k, v in describe(CPU).items() if k in ("torch", "device", "threads")
    }
    found = {
        name: tuple(Choice(config, size, SPEEDUP, 3) for size, config in sizes.items())
        for name, sizes in phases.items()
    }
    return Tuned(
        found, here, "model.py", {name: min(s) for name, s in phases.items() if min(s)}
    )


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
    )


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    config = CompileConfig(options={"cpp_wrapper": True}, memory_format="channels_last")
    made = settings(forward={4: config, 16: EAGER})
    path = tmp_path / "tuned.json"
    path.write_text(TunedSet((made,)).to_json())
    assert TunedSet.read(path).entries == (made,)
    written = json.loads(TunedSet((made,)).to_json())["phases"]["forward"][0]["config"]
    assert written == {  # what is as usual is not there
        "backend": "inductor",
        "options": {"cpp_wrapper": True},
        "memory_format": "channels_last",
    }


@pytest.mark.parametrize(
    ("asked", "measured_at"), [(None, 4), (1, 1), (2, 1), (3, 4), (9, 16), (500, 16)]
)
def test_the_nearest_batch_size_that_was_measured_is_taken(
    asked: int | None, measured_at: int
) -> None:
    made = Tuned(
        {"forward": tuple(Choice(AOT, n) for n in (1, 4, 16))}, {}, "", {"forward": 4}
    )
    choice = made.at("forward", asked)
    assert choice is not None and choice.batch_size == measured_at
    assert made.at("train_step", asked) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot read"),
        ("[]", "holds no settings"),
        ('{"schema": 1, "phases": {}}', "holds no settings"),
        ('{"autocompile_settings": 99}', "no settings of schema 1"),
        ('{"autocompile_settings": 1, "phases": {"forward": [{}]}}', "is damaged"),
        ('{"autocompile_settings": 1, "phases": [1]}', "is damaged"),
        (
            '{"autocompile_settings": 1, "machines": []}',
            "is damaged: it lists no machines",
        ),
        (
            '{"autocompile_settings": 1, "machines": {}}',
            "is damaged: it lists no machines",
        ),
        ('{"autocompile_settings": 1, "machines": [1]}', "holds no settings"),
        ('{"autocompile_settings": 9, "machines": [{}]}', "holds no settings"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_is_none_is_a_usage_error(
    text: str | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "tuned.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=words):
        TunedSet.read(path)


def test_apply_compiles_in_place_and_new_weights_take_effect_until_it_is_taken_back() -> (
    None
):
    model, plain, x = net(), net(), torch.randn(4, 8)
    keys, before = list(model.state_dict()), graphs()
    assert autocompile.apply(model, settings(forward={4: AOT})) is model
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x))
        other = {k: v + 1 for k, v in model.state_dict().items()}
        for each in (model, plain):
            each.load_state_dict(other)
        torch.testing.assert_close(model(x), plain(x))
    assert list(model.state_dict()) == keys
    assert graphs() - before == 1
    autocompile.apply(model, settings(forward={4: EAGER}))
    torch.testing.assert_close(model(x), plain(x))  # with gradients: a graph of its own
    assert graphs() - before == 1


def test_apply_tells_of_another_torch_and_of_what_nothing_confirms() -> None:
    here = settings(forward={4: AOT})
    elsewhere = Tuned(here.phases, {**here.fingerprint, "torch": "1.0"}, "", {})
    with pytest.warns(UserWarning, match=r"torch 1\.0, here"):
        autocompile.apply(net(), elsewhere)
    single = Tuned({"forward": (Choice(AOT, 4, SPEEDUP, 1),)}, here.fingerprint)
    with pytest.warns(UserWarning, match="one process only"):
        autocompile.apply(net(), single)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autocompile.apply(net(), here)


def test_of_several_machines_the_entry_of_the_models_device_is_applied(
    tmp_path: Path,
) -> None:
    fused = CompileConfig("eager", optimizer="fused")
    here, elsewhere = settings(forward={4: AOT}), settings(optimizer_step={None: fused})
    name = {"device_name": describe(CPU)["device_name"]}
    here = dataclasses.replace(here, fingerprint={**here.fingerprint, **name})
    gpu = {"device": "cuda:0", "device_name": "Tesla T4"}
    elsewhere = dataclasses.replace(elsewhere, fingerprint=gpu)
    path = tmp_path / "tuned.json"
    path.write_text(TunedSet((elsewhere, here)).to_json())
    before, model = graphs(), net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autocompile.apply(model, path)
    model(torch.randn(4, 8))
    assert graphs() == before + 1
    with pytest.raises(
        UsageError, match=r"no settings for optimizer_step \(choose from: forward"
    ):
        autocompile.apply(model, path, "optimizer_step")
    path.write_text(TunedSet((elsewhere, replaced_name(here, "a CPU"))).to_json())
    told = r"device_name a CPU, here .*\): results are the same"
    with pytest.warns(UserWarning, match=told):
        autocompile.apply(model, path)


def replaced_name(made: Tuned, name: str) -> Tuned:
    return dataclasses.replace(
        made, fingerprint={**made.fingerprint, "device_name": name}
    )


def test_where_nothing_is_known_of_a_machine_nothing_differs() -> None:
    here = {"torch": torch.__version__, "device": "cpu"}
    assert Tuned({}, {}).differences(here) == []
    assert Tuned({}, {"device": "cuda:1"}).differences({"device": "cuda:0"}) == []
    assert Tuned({}, {"device": "cuda:0"}).differences(here) == [
        "device cuda, here cpu"
    ]


def test_apply_refuses_what_it_cannot_do_in_words() -> None:
    both = settings(forward_exploration={4: AOT}, forward_inference={4: AOT})
    other = settings(forward={4: CompileConfig("ipex", environment="ipex")})
    step_only = settings(optimizer_step={None: AOT})
    for made, phase, words in (
        (
            settings(forward={4: AOT}),
            "train_step",
            r"no settings for train_step \(choose from: f",
        ),
        (both, None, "2 forward phases; name one"),
        (both, "forward_exploration", "a Sequential has no forward_exploration"),
        (step_only, "optimizer_step", "are about an optimizer"),
        (other, None, "needs the interpreter ipex"),
    ):
        with pytest.raises(UsageError, match=words):
            autocompile.apply(net(), made, phase)


def test_an_update_of_a_library_is_not_applied_to_a_plain_model() -> None:
    fused = CompileConfig(
        mode="max-autotune", optimizer="fused"
    )  # which torch does not compile
    assert fused.of_optimizer == CompileConfig("eager", optimizer="fused")
    with pytest.raises(
        UsageError, match="a Sequential has no learner_update"
    ) as caught:
        autocompile.apply(net(), settings(learner_update={4: AOT}), "learner_update")
    assert caught.value.hint == "from autocompile.rllib import tuned"


def test_blocks_are_compiled_no_longer_once_another_setting_is_applied() -> None:
    class Blocks(torch.nn.Sequential):
        """Its blocks are seen as regions."""

    model, x = (
        torch.nn.Sequential(Blocks(*net()[:2], torch.nn.Linear(16, 8))),
        torch.randn(4, 8),
    )
    model.append(copy.deepcopy(model[0]))
    regional = settings(forward={4: CompileConfig("aot_eager", scope="regional")})
    with torch.no_grad():
        right = model(x)
        for after in (EAGER, AOT):
            autocompile.apply(model, regional)
            model(x)
            assert all(block._compiled_call_impl for block in model)
            autocompile.apply(model, settings(forward={4: after}))
            assert not any(block._compiled_call_impl for block in model)
            torch.testing.assert_close(model(x), right)


def test_another_phase_of_the_same_module_keeps_its_compiled_blocks() -> None:
    regional = CompileConfig("aot_eager", scope="regional")
    model = Explorer()
    model.linear = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(2))
    )
    for phase in ("forward_exploration", "forward"):
        apply_to_phase(model, phase, regional)
    model.explore(torch.ones(4, 8))
    apply_to_phase(model, "forward", EAGER)
    assert all(block._compiled_call_impl for block in model.linear)
    apply_to_phase(model, "forward_exploration", EAGER)
    assert not any(block._compiled_call_impl for block in model.linear)


def test_models_of_one_class_are_compiled_each_however_many_there_are() -> None:
    made, x = settings(forward={4: AOT}), torch.randn(4, 8)
    for _ in range(10):  # Dynamo's limit is eight for a piece of code
        before, model = graphs(), net()
        autocompile.apply(model, made)
        model(x)
        assert graphs() == before + 1


@pytest.mark.skipif(
    "isolate_recompiles" not in inspect.signature(torch.compile).parameters,
    reason="this torch.compile has no isolate_recompiles",
)
def test_a_limit_is_of_its_own_compile_alone() -> None:
    """Two of one function, with more programs together than each may have."""

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    config = CompileConfig("aot_eager", dynamic=False, recompile_limit=16)
    here = describe(torch.device("cpu"))
    tuned = Tuned(
        {"forward": (Choice(config, None, {"value": 1.5}, 3),)}, here, "model.py"
    )
    models = [autocompile.apply(Twice(), tuned) for _ in range(2)]
    captured = torch._dynamo.utils.counters["stats"]
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        before = captured["unique_graphs"]
        for model, size in itertools.product(models, range(2, 14)):
            model(torch.ones(size))
    assert captured["unique_graphs"] == before + 2 * 12


def test_what_fails_goes_on_uncompiled_where_that_is_asked_for() -> None:
    model, x = net(), torch.randn(4, 8)
    compiled = apply_to_phase(
        model, "forward", CompileConfig("no_such_backend"), or_eager=True
    )
    assert compiled is not None
    torch.testing.assert_close(model(x), net()(x))
    assert "no_such_backend" in compiled.failed
    with pytest.raises(RuntimeError):  # the caller's own mistake stays one
        model(torch.randn(4, 3))
    apply_to_phase(model, "forward", CompileConfig("no_such_backend"))
    with pytest.raises(Exception, match="no_such_backend"):
        model(x)


class Explorer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 2)

    def _forward_exploration(self, batch: torch.Tensor) -> torch.Tensor:
        return self.linear(batch)

    def explore(self, batch: torch.Tensor) -> torch.Tensor:
        return self._forward_exploration(batch)


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_a_copy_of_a_module_has_its_own_weights_and_is_not_compiled(way: Any) -> None:
    model, x = Explorer(), torch.randn(4, 8)
    apply_to_phase(model, "forward_exploration", AOT)
    first, before, other = model.explore(x), graphs(), way(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    assert other.explore(x).abs().max() == 0
    assert graphs() == before
    torch.testing.assert_close(model.explore(x), first)
    assert not first.requires_grad  # as RLlib's own method would


def test_the_optimizer_of_a_model_steps_by_the_settings() -> None:
    made = settings(
        optimizer_step={None: CompileConfig("aot_eager", optimizer="for_loop")}
    )
    model, plain = net(), net()
    optimizer, usual = (
        torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, plain)
    )
    autocompile.apply(model, made, "optimizer_step", optimizer=optimizer)
    before = graphs()
    for _ in range(3):
        step(model, optimizer)
        step(plain, usual)
    assert graphs() > before
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


class Seen(torch.nn.Module):
    """Notes the threads and the precision of its calls and of its backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.states = (
            torch.nn.Parameter(torch.ones(8, 2)),
            list[tuple[str, Any]](),
        )
        self.weight.register_hook(lambda _: self.note("backward"))

    def note(self, when: str) -> None:
        precision = torch.get_float32_matmul_precision()
        self.states.append((when, (torch.get_num_threads(), precision)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.note("forward")
        return x @ self.weight

    def train_once(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """What a step of a training loop saw, and what the process had between."""
        self.states.clear()
        optimizer.zero_grad()
        loss = self(torch.ones(4, 8)).sum()
        self.note("between")
        loss.backward()
        optimizer.step()
        self.note("after")
        return dict(self.states)


@pytest.mark.parametrize("phases", ["forward and optimizer_step", "train_step"])
def test_threads_and_precision_hold_while_that_runs_which_they_are_of(
    phases: str,
) -> None:
    usual = torch.get_num_threads(), torch.get_float32_matmul_precision()
    calls = CompileConfig("eager", threads=usual[0] + 1, precision="high")
    steps = CompileConfig("eager", threads=usual[0] + 2)
    model = Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: model.note("step"))
    of_calls, of_steps = (usual[0] + 1, "high"), (usual[0] + 2, usual[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # also that the second is of other threads
        if phases == "train_step":
            of_steps = of_calls
            autocompile.apply(
                model, settings(train_step={4: calls}), phases, optimizer=optimizer
            )
        else:
            made = settings(forward={4: calls}, optimizer_step={None: steps})
            autocompile.apply(model, made, "optimizer_step", optimizer=optimizer)
            autocompile.apply(model, made)
    seen = {"forward": of_calls, "backward": of_calls, "step": of_steps}
    for _ in range(2):
        found = model.train_once(optimizer)
        assert found == {**seen, "between": usual, "after": usual}


class Noting(torch.autograd.Function):
    """Notes the precision in which gradients pass."""

    seen: ClassVar[list[str]] = []

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        Noting.seen.append(torch.get_float32_matmul_precision())
        return gradient


class Wrapped(torch.nn.Linear):
    """Notes the precision of its own backward pass."""

    def forward(self, x: torch.Tensor) -> Any:
        return Noting.apply(super().forward(x))


def test_what_the_process_has_is_put_back_whatever_ends_first() -> None:
    usual, Noting.seen = torch.get_float32_matmul_precision(), []
    first, second, third = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), Wrapped(4, 4)
    for model, precision in ((first, "high"), (second, "medium"), (third, "high")):
        config = CompileConfig("eager", precision=precision)
        autocompile.apply(model, settings(forward={4: config}))
    before = Noting.apply(torch.ones(2, 4, requires_grad=True))
    between = Noting.apply(first(before))
    third(second(between)).sum().backward()
    assert torch.get_float32_matmul_precision() == usual
    assert Noting.seen == ["high", "medium", "high"], (
        "of third, after second's, after first's"
    )
    (first(torch.ones(2, 4)).sum() + second(torch.ones(2, 4)).sum()).backward()
    assert torch.get_float32_matmul_precision() == usual


def test_two_threads_that_call_at_once_leave_the_process_as_it_was() -> None:
    usual, inside, go_on = torch.get_float32_matmul_precision(), Event(), Event()

    def hold(*_: Any) -> None:
        inside.set()
        assert go_on.wait(20)

    models = [torch.nn.Linear(4, 4) for _ in range(2)]
    models[0].register_forward_hook(hold)
    for model, precision in zip(models, ("high", "medium"), strict=True):
        config = CompileConfig("eager", precision=precision)
        autocompile.apply(model, settings(forward={4: config}))
    thread = Thread(target=models[0], args=(torch.ones(2, 4),))
    thread.start()
    assert inside.wait(20)
    models[1](torch.ones(2, 4))
    assert torch.get_float32_matmul_precision() == "high", "of the one that goes on"
    go_on.set()
    thread.join()
    assert torch.get_float32_matmul_precision() == usual


@pytest.mark.usefixtures("_newer_switches")
def test_a_precision_holds_also_where_torchs_newer_switches_were_used() -> None:
    seen: list[tuple[str, str]] = []

    def switches(*_: Any) -> None:
        both = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
        seen.append(tuple(each.fp32_precision for each in both))

    model = net()
    model.register_forward_hook(switches)
    autocompile.apply(
        model, settings(forward={4: CompileConfig("eager", precision="medium")})
    )
    switches()
    model(torch.ones(4, 8))
    switches()
    assert seen[0] == seen[2] and seen[1] == ("tf32", "bf16") != seen[0]


def test_a_trainers_optimizers_step_on_the_threads_that_are_named_as_applied() -> None:
    usual, model = torch.get_num_threads(), Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: model.note("step"))
    made = settings(
        forward={4: AOT},
        optimizer_step={None: CompileConfig("eager", threads=usual + 1)},
    )
    said = InTraining(made).apply(model, [optimizer])
    assert said.endswith(f"optimizer step: eager · {usual + 1} threads")
    assert model.train_once(optimizer)["step"][0] == usual + 1
    assert torch.get_num_threads() == usual


def test_the_threads_of_a_step_that_is_compiled_as_a_whole_hold_in_it() -> None:
    usual, seen = torch.get_num_threads(), []
    config = CompileConfig("aot_eager", scope="step", threads=usual + 1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    @torch.compiler.disable
    def note() -> None:
        seen.append(torch.get_num_threads())

    def train_step(x: torch.Tensor) -> torch.Tensor:
        note()
        return x + 1

    made = settings(train_step={4: config})
    stepped = autocompile.apply(train_step, made, "train_step", optimizer=optimizer)
    stepped(torch.ones(2))
    assert seen == [usual + 1] and torch.get_num_threads() == usual


@pytest.mark.parametrize("schedule_first", [True, False])
def test_a_schedule_works_beside_a_compiled_step_and_another_takes_its_place(
    schedule_first: bool,
) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = (
        torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if schedule_first else None
    )
    first = apply_to_optimizer(optimizer, AOT)
    schedule = schedule or torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    second = apply_to_optimizer(optimizer, AOT)
    assert first is not None and second is not None and first is not second
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            step(model, optimizer)
            schedule.step()
        assert optimizer.param_groups[0]["lr"] == 0.25
        apply_to_optimizer(optimizer, EAGER)
        before = model[0].bias.detach().clone()
        step(model, optimizer)
    assert (first.calls, second.calls) == (0, 2) and second.graphs
    assert not torch.equal(before, model[0].bias)


def test_an_implementation_stays_when_a_state_is_loaded_and_is_in_none_that_is_saved() -> (
    None
):
    fused, model = CompileConfig("eager", optimizer="fused"), net()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    apply_to_optimizer(optimizer, fused)
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["fused"]
    step(model, optimizer)
    assert not optimizer.state_dict()["param_groups"][0]["fused"]
    apply_to_optimizer(optimizer, EAGER)
    assert not optimizer.param_groups[0]["fused"], "what was set before is taken back"
    step(model, optimizer)


def conv_net() -> torch.nn.Module:
    torch.manual_seed(0)
    conv, flat = torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten()
    return torch.nn.Sequential(conv, torch.nn.ReLU(), flat, torch.nn.Linear(288, 2))


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        model(x).square().sum().backward()
        optimizer.step()
    return [p.detach().contiguous() for p in model.parameters()]


LAID_OUT = CompileConfig(
    "eager", memory_format="channels_last", optimizer="fused", scope="model"
)
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": partial(torch.optim.Adam, lr=1e-2),
    "amsgrad": partial(torch.optim.AdamW, lr=1e-2, amsgrad=True),
    "momentum": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    "fused already": partial(torch.optim.Adam, lr=1e-2, fused=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("when", ["before", "after", "model alone"])
def test_a_state_of_before_trains_the_weights_that_it_is_of(
    kind: str, when: str
) -> None:
    """Fused kernels of a CPU take moments as plain memory, whatever their strides."""
    model, make = conv_net(), OPTIMIZERS[kind]
    optimizer = make(model.parameters())
    trained(model, optimizer)
    weights = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    want = trained(model, optimizer)

    model = conv_net()
    model.load_state_dict(weights)
    optimizer = make(model.parameters())
    if when != "after":
        optimizer.load_state_dict(state)
    applied = [] if when == "model alone" else [optimizer]
    apply_config(model, "train_step", LAID_OUT, applied)
    if when == "after":
        optimizer.load_state_dict(state)
    torch.testing.assert_close(trained(model, optimizer), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_state_that_is_loaded_after_a_compiled_step_was_applied(
    is_whole: bool,
) -> None:
    """Compiled steps call no hooks."""
    model = conv_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    trained(model, optimizer)
    weights = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    want = trained(model, optimizer)

    model = conv_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    config = dataclasses.replace(LAID_OUT, backend="aot_eager", optimizer="compiled")
    apply_config(model, "train_step", config, [optimizer])
    model.load_state_dict(weights)
    state["param_groups"][0]["fused"] = True
    optimizer.load_state_dict(state)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))

    def one() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().sum().backward()
        optimizer.step()

    once = torch.compile(one, backend="aot_eager") if is_whole else one
    for _ in range(3):
        once()
    got = [p.detach().contiguous() for p in model.parameters()]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_each_group_gets_its_own_implementation_back_and_new_ones_the_set_one() -> None:
    first, second, third = (torch.nn.Linear(2, 2) for _ in range(3))
    groups = [
        {"params": first.parameters(), "fused": True},
        {"params": second.parameters()},
    ]
    optimizer = torch.optim.Adam(groups)
    apply_to_optimizer(optimizer, CompileConfig("eager", optimizer="for_loop"))
    optimizer.add_param_group({"params": [*third.parameters()]})
    assert [g["fused"] for g in optimizer.param_groups] == [False, False, False]
    saved = [g["fused"] for g in optimizer.state_dict()["param_groups"]]
    assert saved == [True, None, None]
    apply_to_optimizer(optimizer, EAGER)
    assert [g["fused"] for g in optimizer.param_groups] == [True, None, None]


def test_a_gradient_that_is_assigned_trains_the_weights_that_it_is_of() -> None:
    results = []
    for config in (EAGER, LAID_OUT):
        model = conv_net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        apply_config(model, "train_step", config, [optimizer])
        for p in model.parameters():
            drawn = torch.Generator().manual_seed(3)
            p.grad = torch.randn(p.shape, generator=drawn)
        optimizer.step()
        results.append([p.detach().contiguous() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0])


def test_a_state_that_was_saved_goes_on_in_an_untuned_program(tmp_path: Path) -> None:
    model = conv_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    apply_config(model, "train_step", LAID_OUT, [optimizer])
    trained(model, optimizer)
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "saved")
    want = trained(model, optimizer)
    weights, state = torch.load(tmp_path / "saved")
    for fused in (False, True):
        model = conv_net()
        model.load_state_dict(weights)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=fused)
        flags = optimizer.state_dict()["param_groups"][0]
        optimizer.load_state_dict(copy.deepcopy(state))
        assert not optimizer.param_groups[0]["fused"] and flags["fused"] == fused
        optimizer.param_groups[0]["fused"] = fused
        got = trained(model, optimizer)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:the settings were measured elsewhere")
def test_a_result_compiles_a_model_by_its_best_setting(target: Path) -> None:
    speeds = {"eager": 1.0, "aot_eager": 1.5}
    executor = FakeExecutor(
        lambda request: measured(speeds[request["config"]["backend"]])
    )
    space = autocompile.SearchSpace(backends=("aot_eager",), batch_sizes=(4, 16))
    result = tune(target, executor=executor, space=space, trials=6, progress="none")
    assert result.verdict == {"forward": "faster"}
    model = net()
    assert result.compile(model) is model
    assert model._compiled_call_impl.config == result.config["forward"]
    with pytest.raises(UsageError, match="no settings for train_step"):
        result.compile(model, "train_step")


@pytest.mark.filterwarnings("ignore:the settings were measured elsewhere")
@pytest.mark.filterwarnings("ignore:the setting of forward was measured in one process")
def test_a_program_keeps_its_memory_as_trials_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(apply, "keep_in_program", lambda: kept.append("kept"))
    found = settings(forward={4: AOT})
    autocompile.apply(net(), found, "forward", keep_memory=False)
    autocompile.apply(net().to("meta"), found, "forward")
    assert not kept
    autocompile.apply(net(), found, "forward")
    InTraining(found, keep_memory=False).apply(net(), [])
    assert kept == ["kept"]
    InTraining(found).apply(net(), [])
    assert kept == ["kept", "kept"]


FAULTS = """
import resource, sys, torch, autocompile
def faults(count=30):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        x = torch.empty(4_000_000).fill_(1.0)  # 16 MB, given back after each
        del x
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / count
from autocompile.runtime.kept_memory import keep_in_program
before = faults()
keep_in_program()
faults(3)
print(before, faults())
"""


def test_memory_that_is_kept_costs_no_page_faults() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    command = [sys.executable, "-c", FAULTS]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True)
    before, after = map(float, shown.stdout.split())
    assert before > 100 > 10 > after, shown
