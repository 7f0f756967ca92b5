"""The life of a plain torch program."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import life
import pytest
import torch
from life import BATCH, CLIP, CONFIG, STEPS, Life, Net, Values, batch, loss_of, values
from torch import nn

import autocompile
from autocompile.runtime.applying import Compiled
from autocompile.settings.config import CompileConfig

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was", "_one_thread")

Make = Callable[[Any], torch.optim.Optimizer]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, **life.ADAM)


class Program:
    """A training loop with its model and optimizer, tuned if there are settings."""

    def __init__(
        self, settings: Path | None, make: Make = adamw, model: nn.Module | None = None
    ) -> None:
        self.model = model or Net()
        self.optimizer = make(self.model.parameters())
        self.settings, self.number = settings, 0
        self.apply()

    def apply(self) -> None:
        self.before = getattr(self.model, "uncompiled", 0)
        if self.settings:
            autocompile.apply(
                self.model, self.settings, "train_step", optimizer=self.optimizer
            )

    def train(self, steps: int = STEPS) -> Values:
        self.model.train()
        for _ in range(steps):
            for _ in range(life.ACCUMULATED):
                x, labels = batch(self.number)
                dtype = next(self.model.parameters()).dtype
                loss = loss_of(self.model(x.to(dtype)), labels)
                (loss / life.ACCUMULATED).backward()
                self.number += 1
            nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return values(self.model)

    def evaluate(self) -> Values:
        self.model.eval()
        with torch.no_grad():
            outputs = [
                self.model(batch(i, size)[0]) for i, size in enumerate(life.EVALUATION)
            ]
        return {"outputs": torch.cat(outputs)}

    def save(self, path: Path) -> None:
        states = self.model.state_dict(), self.optimizer.state_dict(), self.number
        torch.save(states, path)

    def load(self, path: Path) -> None:
        weights, state, self.number = torch.load(path)
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(state)

    def copied(self, way: Callable[[Any], Any]) -> Program:
        """A copy, which is untuned until the settings are applied to it."""
        other = copy.copy(self)
        other.model, other.optimizer = way((self.model, self.optimizer))
        return other

    def demand_in_effect(self) -> None:
        """Nothing ran uncompiled since the settings were applied, and the optimizer is fused."""
        if self.settings:
            compiled = vars(self.model)["_compiled_call_impl"]
            assert isinstance(compiled, Compiled) and compiled.calls
            assert getattr(self.model, "uncompiled", 0) == self.before
            assert not compiled.failed
            weight = next(p for p in self.model.parameters() if p.dim() == 4)
            assert weight.is_contiguous(memory_format=torch.channels_last)
            if step := vars(self.optimizer).get("_autocompile_step"):
                assert step.compiled.calls and not step.compiled.failed
            else:
                assert all(group["fused"] for group in self.optimizer.param_groups)


def go_on(settings: str, saved: str, after: str, name: str, loads_first: str) -> None:
    """What the fresh process does."""
    make = MAKE[name]
    program = Program(Path(settings) if settings and not loads_first else None, make)
    program.load(Path(saved))
    if settings and loads_first:
        program.settings = Path(settings)
        program.apply()
    program.train()
    program.demand_in_effect()
    program.save(Path(after))


def through_pickle(made: Any) -> Any:
    return pickle.loads(pickle.dumps(made))


def program_life(
    settings: Path | None, folder: Path, name: str, loads_first: bool = False
) -> Life:
    make = MAKE[name]
    program = Program(settings, make)
    yield life.BEGUN, values(program.model)
    yield life.TRAINED, program.train()
    program.demand_in_effect()

    saved, after = (folder / f"{part}-{bool(settings)}" for part in ("saved", "after"))
    program.save(saved)
    yield life.SAVED, torch.load(saved)[0]
    texts = str(settings or ""), str(saved), str(after), name, "y" * loads_first
    if settings:
        life.in_fresh_process(go_on, *texts)
    else:
        go_on(*texts)
    program = Program(settings, make)
    program.load(after)
    yield life.RESUMED, values(program.model)

    yield life.EVALUATED, program.evaluate()
    yield life.GONE_ON, program.train()
    program.demand_in_effect()

    program.save(saved)
    untuned = Program(None, make)
    untuned.load(saved)
    assert not untuned.optimizer.param_groups[0]["fused"]
    yield life.UNTUNED, untuned.train()

    for stage, way in (
        (life.DEEPCOPIED, copy.deepcopy),
        (life.PICKLED, through_pickle),
    ):
        before = values(program.model)
        copied = program.copied(way)
        # It says so: see "What holds in a program's life" in the documents.
        assert copied.model._compiled_call_impl is None
        assert not copied.optimizer.param_groups[0]["fused"]
        copied.train(5)
        copied.apply()
        found = copied.train(5)
        copied.demand_in_effect()
        torch.testing.assert_close(values(program.model), before, rtol=0, atol=0)
        yield stage, found

    program.model.to(torch.float64)
    program.optimizer.load_state_dict(program.optimizer.state_dict())
    yield life.CONVERTED, program.train(5)
    program.demand_in_effect()
    program.model.to(torch.float32)
    program.optimizer.load_state_dict(program.optimizer.state_dict())

    program.model.body.requires_grad_(False)
    before = values(program.model.body)
    found = program.train(5)
    weights = {"0.weight", "3.weight"}
    assert all(torch.equal(before[n], found[f"body.{n}"]) for n in weights)
    yield life.FROZEN, found
    program.model.body.requires_grad_(True)
    yield life.UNFROZEN, program.train(5)
    assert not torch.equal(before["0.weight"], values(program.model)["body.0.weight"])
    program.demand_in_effect()

    program.optimizer.add_param_group({"params": [*program.model.add().parameters()]})
    yield life.ADDED, program.train(5)
    program.demand_in_effect()
    before = values(program.model.added)
    program.train(1)
    assert not torch.equal(before["weight"], program.model.added.weight)


MAKE: dict[str, Make] = {
    "adamw": adamw,
    "amsgrad": functools.partial(torch.optim.Adam, amsgrad=True, **life.ADAM),
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
}
COMPILED = replace(CONFIG, optimizer="compiled")
INDUCTOR = replace(CONFIG, backend="inductor")
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "phases", "loads_first"),
    [
        ("adamw", {"train_step": CONFIG}, False),
        pytest.param("amsgrad", {"train_step": CONFIG}, True, marks=slow),
        pytest.param("momentum", {"train_step": CONFIG}, True, marks=slow),
        pytest.param("adamw", {"train_step": COMPILED}, True, marks=slow),
        pytest.param("adamw", {"train_step": INDUCTOR}, False, marks=slow),
    ],
)
def test_life(
    name: str, phases: dict[str, CompileConfig], loads_first: bool, tmp_path: Path
) -> None:
    path = life.settings(tmp_path, **phases)
    stages = life.assert_equal_lives(
        program_life(None, tmp_path, name),
        program_life(path, tmp_path, name, loads_first),
    )
    assert tuple(stages) == (life.BEGUN, *life.STAGES)


def scaled(settings: Path | None, clips: bool) -> Values:
    """Trains under float16 with a scaler, as torch's documents write it."""
    program = Program(settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
    for number in range(STEPS):
        for part in range(life.ACCUMULATED):
            x, labels = batch(number * life.ACCUMULATED + part)
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(program.model(x), labels) / life.ACCUMULATED
            scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(program.optimizer)
            nn.utils.clip_grad_norm_(program.model.parameters(), CLIP / 4)
        scaler.step(program.optimizer)
        scaler.update()
        program.optimizer.zero_grad()
    program.demand_in_effect()
    return {**values(program.model), "scale": torch.tensor(scaler.get_scale())}


@pytest.mark.parametrize("clips", [pytest.param(False, marks=slow), True])
def test_float16_with_a_scaler(clips: bool, tmp_path: Path) -> None:
    path = life.settings(tmp_path, train_step=CONFIG)
    want, got = (scaled(settings, clips) for settings in (None, path))
    # Gradients are rounded to 11 bits: the two orders of sums differ by 5e-4 of one.
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)
    assert got["scale"] == want["scale"]


class Generator(nn.Module):
    """Makes images of numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.net = nn.ConvTranspose2d(4, 3, 8)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.net(z))


def against(settings: Path | None) -> Values:
    """Two models of one program, each trained through the other."""
    first = Program(settings)
    second = Program(settings, model=Generator())
    for number in range(STEPS):
        z = torch.randn(BATCH, 4, 1, 1, generator=torch.Generator().manual_seed(number))
        labels = torch.zeros(BATCH, dtype=torch.long)
        loss = loss_of(first.model(second.model(z).detach()), labels)
        loss = loss + loss_of(first.model(batch(number)[0]), 1 - labels)
        loss.backward()
        first.optimizer.step()
        first.optimizer.zero_grad()
        loss_of(first.model(second.model(z)), 1 - labels).backward()
        second.optimizer.step()
        for each in (first, second):
            each.optimizer.zero_grad()
    first.demand_in_effect()
    assert (
        all(group["fused"] for group in second.optimizer.param_groups) or not settings
    )
    return {**values(first.model), **values(second.model)}


def test_two_models_in_one_program(tmp_path: Path) -> None:
    path = life.settings(tmp_path, train_step=CONFIG)
    want, got = against(None), against(path)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


class Wide(Net):
    """Another class of model: Dynamo compiles both at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def beside(settings: Path | None, others_settings: Path | None) -> Values:
    """Trains one model while a thread evaluates a copy of it, and another trains a third one."""
    program, ended = Program(settings), threading.Event()
    served = copy.deepcopy(program.model).eval()
    other = Program(others_settings, model=Wide())
    found, failed = dict[str, Any](), list[BaseException]()

    def serve() -> None:
        outputs = []
        while not (ended.is_set() and outputs):
            with torch.no_grad():
                outputs.append(served(batch(0)[0]))
        found["served"] = outputs

    def train() -> None:
        found["other"] = other.train()

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=[work]) for work in (serve, train)]
    for thread in threads:
        thread.start()
    mine = program.train()
    threads[1].join()
    ended.set()
    threads[0].join()
    assert not failed, failed
    first, *others = found["served"]
    assert all(torch.equal(first, each) for each in others)
    program.demand_in_effect()
    others = {f"other.{name}": x for name, x in found["other"].items()}
    return {**mine, **others, "served": first}


@pytest.mark.parametrize("both_tuned", [pytest.param(False, marks=slow), True])
def test_threads_beside(both_tuned: bool, tmp_path: Path) -> None:
    path = life.settings(tmp_path, train_step=CONFIG)
    want, got = beside(None, None), beside(path, path if both_tuned else None)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
