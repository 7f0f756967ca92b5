"""Builds a side of each phase: a copy of the model and the call that is timed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from autocompile.errors import TargetError
from autocompile.runtime.applying import prepare_model
from autocompile.runtime.inplace import apply_config
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import (
    FORWARD,
    FORWARD_EXPLORATION,
    FORWARD_TRAIN,
    LEARNER_UPDATE,
    OPTIMIZER_STEP,
    PHASES,
    TRAIN_STEP,
)
from autocompile.trial.phases.side import Side, state_of
from autocompile.trial.target.target import Target, call_model
from autocompile.trial.verify.outputs import View

__all__ = ["make_side", "phases_of", "training_step"]

_FIRST_STEP = 1  # so that none is 0 or 1, which Dynamo takes for constants


def phases_of(target: Target) -> tuple[str, ...]:
    """The phases that this target has."""
    return tuple(
        name
        for name, phase in PHASES.items()
        if phase.is_rl in (None, target.is_rl) and (target.make_learner or not phase.needs_config)
    )


def make_side(
    target: Target,
    phase: str,
    inputs: Any,
    config: CompileConfig = EAGER,
    model: torch.nn.Module | None = None,
) -> Side:
    """One side of a phase, which compiles at the first call.

    It takes over ``model``, by default a copy of the target's.
    """
    if phase not in phases_of(target):
        raise TargetError(
            f"a {target.kind} has no phase {phase}", f"it has: {', '.join(phases_of(target))}"
        )
    model = target.fresh_model(phase) if model is None else model
    usual = {"threads": target.threads[phase]} if phase in target.threads else {}
    side = Side(model, PHASES[phase].trains, inputs, config, process=usual | config.process)
    side.held = lambda: state_of(model)
    side.view = lambda output: {"outputs": output, "inputs": side.inputs}
    if phase == FORWARD:
        model.eval()
        apply_config(model, phase, config)
        side.call = lambda: call_model(model, side.inputs)
    elif PHASES[phase].is_forward:
        apply_config(model, phase, config)
        side.call = _rl_call(side, phase)
        if phase == FORWARD_TRAIN:
            side.view = lambda output: _with_gradients(target, side, output)
    elif phase == LEARNER_UPDATE:
        _make_learner_update(target, side)
    elif PHASES[phase].steps:
        prepare_model(model, config)
        if phase == OPTIMIZER_STEP:
            _make_gradients(model)
        optimizer = target.make_optimizer(model)
        side.optimizers = [optimizer]
        step: Callable[[], Any] = lambda: optimizer.step()  # noqa: E731
        if phase == TRAIN_STEP:
            step = training_step(target, model.train(), optimizer, lambda: side.inputs)
        is_whole = config.scope == "step"
        applied: Any = apply_config(step if is_whole else model, phase, config, side.optimizers)
        side.call = applied if is_whole else step
        # Without those that nothing steps, whose gradients add up as the user's own code has it.
        steps = {id(p) for group in optimizer.param_groups for p in group["params"]}
        trained = {name: p for name, p in _parameters(model).items() if id(p) in steps}
        _compare_training(side, trained, has_loss=phase == TRAIN_STEP)
    else:
        raise NotImplementedError(f"the phase {phase} has no unit of work")
    return side


def _rl_call(side: Side, phase: str) -> Callable[[], Any]:
    """The call that env runners and learners make; exploration gets the step count ``t``."""
    method = getattr(side.model, phase)
    beneath = inspect.signature(getattr(type(side.model), f"_{phase}")).parameters.values()
    told = any(p.name == "t" or p.kind is p.VAR_KEYWORD for p in beneath)
    if phase != FORWARD_EXPLORATION or not told:
        return lambda: method(dict(side.inputs))  # a module may take things out of its batch
    side.steps["t"] = _FIRST_STEP

    def explore() -> Any:
        side.steps["t"] += 1
        return method(dict(side.inputs), t=side.steps["t"])

    return explore


def _parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _gradients(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As dense tensors, also those of tables that give sparse ones."""
    grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    return {name: g.to_dense() if g.layout is not torch.strided else g for name, g in grads.items()}


def _with_gradients(target: Target, side: Side, output: Any) -> View:
    """The view of ``forward_train``: outputs, gradients of the loss, inputs and buffers."""
    side.model.zero_grad(set_to_none=True)
    torch.autograd.backward(target.loss(output, side.inputs))
    return {
        "outputs": output,
        "inputs": side.inputs,
        "gradients": _gradients(_parameters(side.model)),
        "buffers": dict(side.model.named_buffers()),
    }


def _compare_training(
    side: Side, parameters: Mapping[str, torch.Tensor], has_loss: bool = True
) -> None:
    """Compare loss, gradients and buffers, and hold what a step changes.

    :mod:`autocompile.trial.verify.optimizer` checks what the optimizers make of the gradients.
    """

    def view(loss: Any) -> View:
        found = {"gradients": _gradients(parameters)}
        buffers = dict(side.model.named_buffers())
        return {"loss": loss, **found, "buffers": buffers} if has_loss else found

    def held() -> Any:
        states = [dict(s) for optimizer in side.optimizers for s in optimizer.state.values()]
        rest = state_of(side.model) if has_loss else _gradients(parameters)
        return parameters, rest, states

    side.parameters, side.view, side.held = parameters, view, held


def _make_gradients(model: torch.nn.Module) -> None:
    """Random gradients, the same on both sides."""
    parameters = _parameters(model)
    if not parameters:
        raise TargetError("the model has no parameters, so there is no optimizer step")
    generator = torch.Generator().manual_seed(0)
    for p in parameters.values():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float32)
        p.grad = (noise * 1e-2).to(device=p.device, dtype=p.dtype)


def training_step(
    target: Target, model: Any, optimizer: Any, inputs: Callable[[], Any]
) -> Callable[[], torch.Tensor]:
    """Forward, loss, backward and optimizer step, as people write it."""

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        given = inputs()
        output = model.forward_train(given) if target.is_rl else call_model(model, given)
        loss = target.loss(output, given)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def _make_learner_update(target: Target, side: Side) -> None:
    assert target.make_learner
    updates = target.make_learner(side.model)
    side.optimizers = updates.optimizers
    apply_config(side.model, LEARNER_UPDATE, side.config, side.optimizers)
    side.call = lambda: updates.update(side.inputs)
    side.forget = updates.forget_metrics
    _compare_training(side, updates.parameters)
