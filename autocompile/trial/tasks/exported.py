"""A side made by exported code, which a user pastes, instead of by the setting."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from autocompile.protocol.requests import ExportedCode
from autocompile.runtime.applying import process_state, set_process
from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import FORWARD, OPTIMIZER_STEP, TRAIN_STEP
from autocompile.trial.phases.phases import call_model, make_side
from autocompile.trial.phases.side import Side
from autocompile.trial.target.target import Target

__all__ = ["exported_side"]

_TRAIN_STEP = """
def train_step():
    optimizer.zero_grad(set_to_none=True)
    value = loss(forward(model, side.inputs), side.inputs)
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

    Args:
        target: built already; its model is copied.
        phase: the unit of work.
        inputs: on the right device.
        config: the setting that the code is about.
        exported: the lines, and the settings that they read.
        folder: where ``tuned.json`` is put.
    """
    side = make_side(target, phase, inputs)
    names: dict[str, Any] = {
        "torch": torch,
        "model": side.model,
        "optimizer": next(iter(side.optimizers), None),
        "side": side,
        "loss": target.loss,
        FORWARD: (lambda m, x: m.forward_train(x)) if target.is_rl else call_model,
    }
    exec(_TRAIN_STEP, names)
    (folder / "tuned.json").write_text(exported.settings.to_json(), "utf-8")
    usual = process_state()
    with _working_in(folder):
        exec(compile(exported.code, "exported", "exec"), names)
    own = process_state()
    set_process(usual)  # of eager mode; the side has its own while it runs
    side.config = config
    side.process = {name: value for name, value in own.items() if value != usual[name]}
    side.optimizers = [o for o in (names["optimizer"],) if o is not None]
    if phase == FORWARD:
        side.call = lambda: call_model(names["model"], side.inputs)
    elif phase == TRAIN_STEP:
        side.call = names[TRAIN_STEP]
    elif phase == OPTIMIZER_STEP:
        side.call = names.get("step") or (lambda: names["optimizer"].step())
    return side


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
