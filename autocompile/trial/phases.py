"""The units of work that are timed, each as two sides with the same weights and inputs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocompile.config import EAGER, CompileConfig
from autocompile.errors import TargetError
from autocompile.runtime.compiling import (
    RL_PHASES,
    compile_function,
    compile_model,
    prepare_model,
    set_precision,
    uses_cuda_graphs,
)
from autocompile.runtime.optimizers import set_implementation
from autocompile.trial.state import is_expanded
from autocompile.trial.target import Target
from autocompile.trial.view import View, dense

__all__ = ["PHASES", "Side", "call_model", "make_side", "note_setting", "phases_of"]

PHASES = ("forward", *RL_PHASES, "optimizer_step", "train_step")
_TRAINING = ("forward_train", "optimizer_step", "train_step")

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class Side:
    """Eager or compiled: one copy of the model, and what a phase does with it.

    Attributes:
        model: this side's own copy.
        call: the timed unit; takes no argument.
        view: turns what ``call`` gave into what is compared with the other side.
        restore: puts parameters and optimizer state back to where ``keep`` saw them.
        grad: whether gradients are recorded while it runs.
        inputs: this side's current inputs; ``call`` reads them anew each time.
        held: the tensors that calls change, as they are now.
        saved: their values when ``keep`` saw them.
        optimizer: what ``call`` steps, if it does.
        numbers: the optimizer's plain numbers when ``keep`` saw them.
        is_eager: nothing of it is compiled.
        reuses_outputs: a call may overwrite what the one before returned, by torch's contract.
        threads: for torch's operators while it runs; None for as many as there are.
        precision: of products of float32 matrices while it runs.
        bakes: what was compiled holds the weights: writing to one costs a refresh.
        draws_itself: it may draw other random numbers than eager does from the same seed.
    """

    model: torch.nn.Module
    grad: bool
    inputs: Any = None
    call: Callable[[], Any] = lambda: None
    view: Callable[[Any], View] = lambda output: {"outputs": output}
    saved: list[torch.Tensor] = field(default_factory=list)
    optimizer: Any = None
    numbers: list[dict[str, Any]] = field(default_factory=list)
    held: Callable[[], Any] = lambda: None
    is_eager: bool = True
    reuses_outputs: bool = False
    threads: int | None = None
    precision: str = "default"
    bakes: bool = False
    draws_itself: bool = False

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """The grad mode that the phase runs in, and what the setting asks of the process."""
        usual = torch.get_num_threads()
        # Asked only where it is set: torch refuses to answer where its newer switches were used.
        own = None if self.precision == "default" else torch.get_float32_matmul_precision()
        set_precision(self.precision)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            with torch.enable_grad() if self.grad else torch.no_grad():
                yield
        finally:
            if own is not None:
                torch.set_float32_matmul_precision(own)
            if self.threads is not None:
                torch.set_num_threads(usual)

    def run(self) -> Any:
        """One call in its context."""
        with self.context():
            return self.call()

    def keep(self) -> None:
        """Remember what calls change, as it is now."""
        self.saved = [t.detach().clone() for t in self.changing]
        self.numbers = [
            {key: value for key, value in each.items() if type(value) in (int, float)}
            for each in self._dictionaries()
        ]

    def restore(self) -> None:
        """Put it back, tensors in place: nothing that was compiled needs to look again."""
        self._take(self.saved, self.numbers)

    def adopt(self, other: Side) -> None:
        """Start from the state that another side has kept."""
        self._take(other.saved, other.numbers)

    @property
    def changing(self) -> list[torch.Tensor]:
        """The tensors that calls change, in an order that both sides share."""
        leaves = (t for t in pytree.tree_leaves(self.held()) if isinstance(t, torch.Tensor))
        return [t for t in leaves if not is_expanded(t)]

    def _dictionaries(self) -> list[dict[str, Any]]:
        """Where an optimizer may count its steps as plain numbers; torch's own use tensors."""
        if self.optimizer is None:
            return []
        return [*self.optimizer.param_groups, *self.optimizer.state.values()]

    def _take(self, values: list[torch.Tensor], numbers: list[dict[str, Any]]) -> None:
        # Looked up anew, because a call may put another tensor in a buffer's place.
        with torch.no_grad():
            for tensor, value in zip(self.changing, values, strict=False):
                if tensor.shape == value.shape and not (self.bakes and torch.equal(tensor, value)):
                    tensor.copy_(value)
        # Flags are left alone: Dynamo may have changed those of the side that it has compiled.
        for own, kept in zip(self._dictionaries(), numbers, strict=False):
            own.update({k: v for k, v in kept.items() if type(own.get(k)) is type(v)})


def phases_of(target: Target) -> tuple[str, ...]:
    """The phases that this target has."""
    if target.is_rl:
        return (*RL_PHASES, "optimizer_step", "train_step")
    return ("forward", "optimizer_step", "train_step")


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Call a plain module with what ``get_inputs`` gave."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def make_side(target: Target, phase: str, inputs: Any, config: CompileConfig = EAGER) -> Side:
    """One side of a phase, on the device where the target's model is.

    Args:
        target: built already; its model is copied.
        phase: one of :data:`PHASES`.
        inputs: on the right device; not used by ``optimizer_step``.
        config: how to compile; eager by default. Nothing is compiled before the first call.

    Raises:
        TargetError: the target does not have this phase.
    """
    if phase not in phases_of(target):
        raise TargetError(
            f"a {target.kind} has no phase {phase}", f"it has: {', '.join(phases_of(target))}"
        )
    model = copy.deepcopy(target.model_of(phase))
    side = Side(model, grad=phase in _TRAINING, inputs=inputs)
    note_setting(side, config)
    side.held = lambda: dict(model.named_buffers())
    side.view = lambda output: {"outputs": output, "inputs": dense(side.inputs)}
    if phase == "forward":
        model.eval()
        compiled = compile_model(model, config, phase)
        side.call = lambda: call_model(compiled, side.inputs)
    elif phase in RL_PHASES:
        compile_model(model, config, phase)
        method = getattr(model, phase)
        side.call = lambda: method(side.inputs)
        if phase == "forward_train":
            side.view = lambda output: _gradients_view(target, side, output)
    else:
        prepare_model(model, config)
    if phase == "optimizer_step":
        _make_optimizer_step(target, side, config)
    elif phase == "train_step":
        _make_train_step(target, side, config)
    return side


def note_setting(side: Side, config: CompileConfig) -> None:
    """What of a setting whoever calls a side has to know."""
    side.is_eager, side.reuses_outputs = config.is_eager, uses_cuda_graphs(config)
    side.threads, side.precision = config.threads, config.precision
    side.bakes = config.bakes_weights
    side.draws_itself = config.backend == "inductor" and not config.is_eager


def _parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _gradients_view(target: Target, side: Side, output: Any) -> View:
    """Outputs, the gradients of the loss, and what a call may change beside them."""
    side.model.zero_grad(set_to_none=True)
    torch.autograd.backward(target.loss(output, side.inputs))
    named = _parameters(side.model).items()
    gradients = {name: p.grad for name, p in named if p.grad is not None}
    buffers = dict(side.model.named_buffers())
    inputs = dense(side.inputs)
    return {"outputs": output, "inputs": inputs, "gradients": gradients, "buffers": buffers}


def _updates(side: Side, before: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """How far each parameter has moved: a step that does nothing differs by all of it."""
    return {n: p.detach() - before[n] for n, p in _parameters(side.model).items()}


def _make_optimizer_step(target: Target, side: Side, config: CompileConfig) -> None:
    """``optimizer.step()`` with the same made-up gradients on both sides.

    The step is wrapped in a function of its own, since ``Optimizer.step`` breaks the graph by
    design; the eager side has an optimizer of its own, because Dynamo may change the flags of the
    one it has seen.
    """
    parameters = _parameters(side.model)
    if not parameters:
        raise TargetError("the model has no parameters, so there is no optimizer step")
    generator = torch.Generator().manual_seed(0)
    for p in parameters.values():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float32)
        p.grad = (noise * 1e-2).to(device=p.device, dtype=p.dtype)
    before = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = side.optimizer = target.make_optimizer(side.model)
    set_implementation(optimizer, config.optimizer)

    def step() -> None:
        optimizer.step()

    side.call = compile_function(step, config)
    side.view = lambda _: {"updates": _updates(side, before)}
    gradients = [p.grad for p in parameters.values()]
    side.held = lambda: (parameters, gradients, [dict(s) for s in side.optimizer.state.values()])


def _make_train_step(target: Target, side: Side, config: CompileConfig) -> None:
    """Forward, loss, backward and optimizer step, compiled as one function."""
    model = side.model.train()
    before = {name: p.detach().clone() for name, p in _parameters(model).items()}
    optimizer = side.optimizer = target.make_optimizer(model)
    set_implementation(optimizer, config.optimizer)
    forward: Any = model.forward_train if target.is_rl else None

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        output = forward(side.inputs) if forward else call_model(model, side.inputs)
        loss = target.loss(output, side.inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    def view(loss: torch.Tensor) -> View:
        named = _parameters(model).items()
        gradients = {n: p.grad for n, p in named if p.grad is not None}
        return {
            "loss": loss,
            "gradients": gradients,
            "updates": _updates(side, before),
            "buffers": dict(model.named_buffers()),
        }

    side.call = compile_function(step, config, model)
    side.view = view
    side.held = lambda: (
        _parameters(model),
        dict(model.named_buffers()),
        [dict(s) for s in side.optimizer.state.values()],
    )
