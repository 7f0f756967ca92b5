"""The life of a program with Accelerate, which holds the lines that are exported for it."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import life
import pytest
import torch
from life import CLIP, CONFIG, STEPS, Life, Net, Values, batch, loss_of, values

from autocompile import export as exporting
from autocompile.settings.config import CompileConfig
from autocompile.store.report import Report

pytest.importorskip("accelerate")
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was", "_one_thread", "_alone")

SAMPLE = Path(__file__).parents[1] / "data" / "report.json"
PLAIN = "accelerator = Accelerator()\nmodel, optimizer = accelerator.prepare(model, optimizer)"


@pytest.fixture
def _alone() -> Iterator[None]:
    """What Accelerate keeps for the process is that of one program."""
    yield
    for each in (AcceleratorState, GradientState, PartialState):
        each._reset_state()


def exported(config: CompileConfig) -> str:
    """The lines for a target of this optimizer, of which a setting won."""
    data: dict[str, Any] = json.loads(SAMPLE.read_text("utf-8"))
    phase = copy.deepcopy(data["phases"]["forward_exploration"])
    phase["answer"]["best"]["config"] = config.to_dict()
    data["phases"] = {"train_step": phase}
    made = {"class": "AdamW", "arguments": {**life.ADAM}, "lr": life.ADAM["lr"]}
    own = {"optimizer": "get_optimizer() of the target"}
    data["target"] = {"spec": "model.py", "kind": "functions", "choices": own}
    data["target"]["optimizer"] = made
    return exporting.export(Report.from_dict(data), "accelerate")


class Program:
    """The lines in a program, with Accelerate's own loop."""

    def __init__(self, lines: str, accelerator: Any = None) -> None:
        for each in (AcceleratorState, GradientState, PartialState):
            if accelerator is None:
                each._reset_state()
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), **life.ADAM)
        names: dict[str, Any] = {"torch": torch, "Accelerator": Accelerator}
        if accelerator is not None:  # the program's second model
            names["accelerator"] = accelerator
            lines = re.sub(r"^accelerator = .*$", "", lines, flags=re.MULTILINE)
        names |= {"model": model, "optimizer": optimizer}
        exec(lines, names)
        self.accelerator = names["accelerator"]
        self.model, self.optimizer = names["model"], names["optimizer"]
        self.is_tuned, self.number = "plugin" in lines, 0
        # As Accelerator(gradient_accumulation_steps=...) sets it.
        self.accelerator.gradient_accumulation_steps = life.ACCUMULATED

    @property
    def net(self) -> Any:
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def train(self, steps: int = STEPS) -> Values:
        self.model.train()
        for _ in range(steps * life.ACCUMULATED):
            with self.accelerator.accumulate(self.model):
                x, labels = batch(self.number)
                dtype = next(self.model.parameters()).dtype
                loss = loss_of(self.model(x.to(dtype)), labels)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.number += 1
        return values(self.net)

    def evaluate(self) -> Values:
        self.model.eval()
        with torch.no_grad():
            outputs = [
                self.model(batch(i, size)[0]) for i, size in enumerate(life.EVALUATION)
            ]
        return {"outputs": torch.cat(outputs)}

    def save(self, folder: Path) -> None:
        self.accelerator.save_state(str(folder))
        (folder / "number").write_text(str(self.number))

    def load(self, folder: Path) -> None:
        self.accelerator.load_state(str(folder))
        self.number = int((folder / "number").read_text())

    def demand_in_effect(self) -> None:
        if self.is_tuned:
            assert self.model is not self.net and not self.net.uncompiled
            weight = next(p for p in self.model.parameters() if p.dim() == 4)
            assert weight.is_contiguous(memory_format=torch.channels_last)
            assert all(group["fused"] for group in self.optimizer.param_groups)


def go_on(lines: str, saved: str, after: str) -> None:
    program = Program(lines)
    program.load(Path(saved))
    program.train()
    program.demand_in_effect()
    program.save(Path(after))


def program_life(lines: str, folder: Path, fresh: bool) -> Life:
    program = Program(lines)
    yield life.BEGUN, values(program.net)
    yield life.TRAINED, program.train()
    program.demand_in_effect()

    saved, after = (folder / f"{n}-{program.is_tuned}" for n in ("saved", "after"))
    program.save(saved)
    again = Program(PLAIN)
    again.load(saved)
    yield life.SAVED, values(again.net)
    if program.is_tuned and fresh:
        life.in_fresh_process(go_on, lines, str(saved), str(after))
    else:
        go_on(lines, str(saved), str(after))
    program = Program(lines)
    program.load(after)
    yield life.RESUMED, values(program.net)

    yield life.EVALUATED, program.evaluate()
    yield life.GONE_ON, program.train()
    program.demand_in_effect()

    program.save(saved)
    untuned = Program(PLAIN)
    untuned.load(saved)
    yield life.UNTUNED, untuned.train()

    program = Program(lines)
    program.load(saved)
    for stage, way in (
        (life.DEEPCOPIED, copy.deepcopy),
        (life.PICKLED, lambda made: pickle.loads(pickle.dumps(made))),
    ):
        before = values(program.net)
        copied = copy.copy(program)
        copied.model, copied.optimizer = way((program.model, program.optimizer))
        found = copied.train(5)
        copied.demand_in_effect()  # torch.compile's own module is copied with its compiling
        torch.testing.assert_close(values(program.net), before, rtol=0, atol=0)
        yield stage, found

    for dtype in (torch.float64, torch.float32):
        program.model.to(dtype)
        program.optimizer.load_state_dict(program.optimizer.state_dict())
        if dtype == torch.float64:
            yield life.CONVERTED, program.train(5)
            program.demand_in_effect()

    program.net.body.requires_grad_(False)
    before = values(program.net.body)
    yield life.FROZEN, program.train(5)
    assert torch.equal(before["0.weight"], program.net.body[0].weight)
    program.net.body.requires_grad_(True)
    yield life.UNFROZEN, program.train(5)
    assert not torch.equal(before["0.weight"], program.net.body[0].weight)
    program.demand_in_effect()

    program.optimizer.add_param_group({"params": [*program.net.add().parameters()]})
    before = values(program.net.added)
    yield life.ADDED, program.train(5)
    assert not torch.equal(before["weight"], program.net.added.weight)
    program.demand_in_effect()


@pytest.mark.parametrize(
    ("backend", "fresh"),
    [
        ("aot_eager", False),
        pytest.param("aot_eager", True, marks=pytest.mark.slow),
        pytest.param("inductor", True, marks=pytest.mark.slow),
    ],
)
def test_life(backend: str, fresh: bool, tmp_path: Path) -> None:
    lines = exported(replace(CONFIG, backend=backend))
    stages = life.assert_equal_lives(
        program_life(PLAIN, tmp_path, fresh), program_life(lines, tmp_path, fresh)
    )
    assert tuple(stages) == (life.BEGUN, *life.STAGES)


@pytest.mark.slow
def test_a_thread_beside() -> None:
    lives = []
    for lines in (PLAIN, exported(CONFIG)):
        program = Program(lines)
        with life.thread_beside(program.net):
            lives.append(program.train())
        program.demand_in_effect()
    torch.testing.assert_close(lives[1], lives[0], rtol=1e-3, atol=1e-5)


def test_two_models_have_the_lines_each() -> None:
    lives = []
    for lines in (PLAIN, exported(CONFIG)):
        first = Program(lines)
        second = Program(lines, first.accelerator)
        second.number = 7
        for program in (first, second, first):
            program.train(3)
            program.demand_in_effect()
        both = {"first": first, "second": second}
        lives.append(
            {f"{k}.{n}": x for k, p in both.items() for n, x in values(p.net).items()}
        )
    torch.testing.assert_close(lives[1], lives[0], rtol=1e-3, atol=1e-5)
