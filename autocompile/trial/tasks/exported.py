"""A side that runs exported code, as a program of its own would."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from autocompile.protocol.requests import ExportedCode
from autocompile.runtime.applying import process_of, process_state
from autocompile.runtime.strategies import in_ddp
from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import FORWARD, OPTIMIZER_STEP, TRAIN_STEP
from autocompile.settings.tuned import TunedSet
from autocompile.trial.model.sides import (
    OwnCalls,
    OwnStep,
    Remade,
    Side,
    Training,
    make_side,
)
from autocompile.trial.model.target import Target, call_model

_TRAIN_STEP = """
def train_step(inputs):
    optimizer.zero_grad(set_to_none=True)
    value = loss(forward(model, inputs), inputs)
    value.backward()
    optimizer.step()
    return value.detach()
"""


def exported_side(
    target: Target,
    phase: str,
    inputs: Any,
    config: CompileConfig,
    exported: ExportedCode,
    folder: Path,
) -> Side:
    """The side of a program that defines a model, an optimizer and a step, and runs the code.

    ``tuned.json``, which the code may read, is put into the folder, where it runs.
    """
    # A program splits parameters before it makes an optimizer of them, and wraps the model once
    # the code has compiled it.
    before = target.strategy if target.strategy == "fsdp2" else ""
    plain = CompileConfig("eager", fsdp=config.fsdp)
    side = make_side(replace(target, strategy=before), phase, inputs, plain)
    names = _program(target, side)
    own = _own_step(target, side, names)
    (folder / "tuned.json").write_text(
        TunedSet((exported.settings,)).to_json(), "utf-8"
    )
    side.process = {**side.process, **_run(exported, names, folder)}
    side.config = config
    if target.strategy and isinstance(side, Training):
        side.follow_ranks()
        if target.strategy == "ddp":
            names["model"] = in_ddp(names["model"], config)
    side.optimizers = [o for o in (names["optimizer"],) if o is not None]
    if own is not None:
        own.follow(names["step"])
    elif phase == FORWARD:
        side.unit = lambda inputs: call_model(names["model"], inputs)
    elif phase == TRAIN_STEP:
        side.unit = names[TRAIN_STEP]
    elif phase == OPTIMIZER_STEP:
        step = names.get(OPTIMIZER_STEP) or (lambda: names["optimizer"].step())
        side.unit = lambda _: step()
    return side


def _program(target: Target, side: Side) -> dict[str, Any]:
    """What a program has before it runs exported code, by the names that the code uses."""
    names: dict[str, Any] = {
        "torch": torch,
        "model": side.model,
        "optimizer": next(iter(side.optimizers), None),
        "side": side,
        "loss": target.loss,
        FORWARD: target.train,
    }
    exec(_TRAIN_STEP, names)
    return names


@dataclass(frozen=True)
class _Own:
    """The side of a user's own step, which exported code compiles."""

    side: OwnStep | OwnCalls
    step: Remade

    def follow(self, compiled: Any) -> None:
        """Time what the exported code has made of the step."""
        self.side.follow(self.step, compiled)


def _own_step(target: Target, side: Side, names: dict[str, Any]) -> _Own | None:
    """Put the user's own step, if it is what is timed, into the names of the program."""
    if not isinstance(side, (OwnStep, OwnCalls)):
        return None
    make = target.make_step
    assert make
    # The code compiles this function, once; the user's step in it can be made anew.
    step = Remade(lambda: make(names["model"], names["optimizer"]))
    names["step"] = step.call
    return _Own(side, step)


def _run(exported: ExportedCode, names: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the code in the folder, and return what it has changed of the process's state.

    The code changes ``names``; its compiled model is ``model`` then.
    """
    usual, here = process_state(), os.getcwd()
    os.chdir(folder)
    try:
        with process_of(usual):  # of eager mode; the side has its own while it runs
            exec(compile(exported.code, "exported", "exec"), names)
            names["model"] = names[exported.called]
            now = process_state()
    finally:
        os.chdir(here)
    return {name: value for name, value in now.items() if value != usual[name]}
