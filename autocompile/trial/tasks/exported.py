"""A side that runs exported code, as a program of its own would."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autocompile.protocol.requests import ExportedCode
from autocompile.runtime.applying import process_of, process_state
from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import FORWARD, OPTIMIZER_STEP, TRAIN_STEP
from autocompile.settings.tuned import TunedSet
from autocompile.trial.model.sides import OwnStep, Side, follow_step, make_side
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
    side = make_side(target, phase, inputs)
    names: dict[str, Any] = {
        "torch": torch,
        "model": side.model,
        "optimizer": next(iter(side.optimizers), None),
        "side": side,
        "loss": target.loss,
        FORWARD: target.train,
    }
    exec(_TRAIN_STEP, names)
    (folder / "tuned.json").write_text(
        TunedSet((exported.settings,)).to_json(), "utf-8"
    )
    usual, here = process_state(), os.getcwd()

    def run_code() -> Mapping[str, Any]:
        """Run it as a program of its own would; returns what it set in the process."""
        os.chdir(folder)
        try:
            with process_of(usual):  # of eager mode; the side has its own while it runs
                exec(compile(exported.code, "exported", "exec"), names)
                names["model"] = names[exported.called]
                return process_state()
        finally:
            os.chdir(here)

    step: OwnStep | None = None
    if phase == target.own_phase:
        make = target.make_step
        assert make
        # The code compiles this function, once; the user's step in it can be made anew.
        step = OwnStep(lambda: make(names["model"], names["optimizer"]))
        names["step"] = step.call
    now = run_code()
    side.config = config
    changed = {name: value for name, value in now.items() if value != usual[name]}
    side.process = {**side.process, **changed}
    side.optimizers = [o for o in (names["optimizer"],) if o is not None]
    if phase == FORWARD:
        side.unit = lambda inputs: call_model(names["model"], inputs)
    elif phase == TRAIN_STEP:
        side.unit = names[TRAIN_STEP]
    elif step is not None:
        follow_step(side, phase, step, names["step"])
    elif phase == OPTIMIZER_STEP:
        stepped = names.get(OPTIMIZER_STEP) or (lambda: names["optimizer"].step())
        side.unit = lambda _: stepped()
    return side
