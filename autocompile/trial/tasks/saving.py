"""Compiles settings as a user's process does and saves what torch made, for a warm start."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from autocompile.protocol.requests import SaveRequest, SaveResult
from autocompile.runtime import warm_start
from autocompile.runtime.applying import apply_config, process_of
from autocompile.settings import phases
from autocompile.settings.tuned import Choice
from autocompile.store.record import Step
from autocompile.trial.channel import Channel
from autocompile.trial.measure import telemetry
from autocompile.trial.model.sides import make_side
from autocompile.trial.model.target import Target
from autocompile.trial.tasks.steps import inputs_of, load

_CALLS = 3  # an optimizer's first step makes its state, the next finds it


def save(request: SaveRequest, channel: Channel, result: SaveResult) -> None:
    """Write the file; ``graphs`` counts what is in it, ``left_out`` what is not.

    A side applies settings as users' processes do: torch's key of a
    graph depends on it.
    """
    target = load(request, channel)
    usual = torch.get_num_threads()
    warm_start.without_headers()
    channel.step(Step.COMPILE)
    todo = [
        (phase, c)
        for phase, choices in request.settings.phases.items()
        for c in choices
    ]
    # Other precisions last: torch does not undo them completely, and they are part of the key.
    for phase, choice in sorted(
        todo, key=lambda each: each[1].config.precision != "default"
    ):
        if why := _why_not(phase, choice):
            result.left_out += [why] if why not in result.left_out else []
            continue
        inputs = inputs_of(target, phase, choice.batch_size, request.header.seed)
        is_sampling = (
            phases.phase_of(phase).role == "worker" and target.device.type == "cpu"
        )
        # A remote worker has one thread.
        for threads in [usual, 1] if is_sampling else [usual]:
            with process_of({"threads": threads}), warnings.catch_warnings():
                # It warns that the settings are of another machine.
                warnings.simplefilter("ignore")
                _compile(target, phase, choice, inputs)
                telemetry.reset_dynamo(choice.config.backend)
    result.graphs = warm_start.save(Path(request.file), target.device)


def _why_not(phase: str, choice: Choice) -> str:
    """Why nothing of a choice can be saved; empty if something can."""
    config = choice.config
    if config.environment != "default":
        return f"{phase}: a setting of the interpreter {config.environment}"
    if config.scope == "step":
        return f"{phase}: it is a function of your own program, which is not known here"
    if config.freezing:
        return f"{phase}: frozen weights are built into the code, which is made anew"
    if config.is_eager or config.backend != "inductor":
        return f"{phase}: torch keeps no compiled code of the backend {config.backend}"
    return ""


def _compile(target: Target, phase: str, choice: Choice, inputs: Any) -> None:
    if target.library and phases.phase_of(phase).role == "worker":
        # With what a worker of the library starts with, not with a trial's inputs.
        model = target.fresh_model(phase)
        apply_config(model, phase, choice.config)
        if target.library.start(model, phase, choice.batch_size or 1):
            return
    side = make_side(target, phase, inputs, choice.config)
    # Not side.run(): the number of threads is part of torch's key, and the caller has set it.
    with torch.set_grad_enabled(side.grad):
        for _ in range(_CALLS):
            # The view of a forward_train makes its backward pass.
            side.view(side.call())
