"""Sides: copies of a model with the call of a phase, and all that a call depends on."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocompile.errors import TargetError
from autocompile.runtime.applying import apply_config, prepare_model, process_of
from autocompile.settings import phases
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.trial.model.calls import Calls
from autocompile.trial.model.own_step import optimizers_made
from autocompile.trial.model.target import Target, call_model
from autocompile.trial.values import copies, copy_tree, is_writable, pieces
from autocompile.trial.verify.outputs import View

# Relative to each parameter's RMS: it shows in the output, and what is computed stays of a kind.
_PERTURBATION = 0.1
_OF_MODULES = frozenset(vars(torch.nn.Module()))  # attributes that every module has


@dataclass
class Side:
    """One copy of the model with the call of a phase, eager or compiled."""

    model: torch.nn.Module
    grad: bool
    inputs: Any = None
    config: CompileConfig = EAGER
    unit: Callable[[Any], Any] = lambda inputs: (
        None
    )  # what is done with the inputs of one call
    is_timed: bool = (
        False  # whether a pass of several calls drops their results, as a loop would
    )
    # Of the result of ``call``, what is compared with the other side.
    view: Callable[[Any], View] = lambda output: {"outputs": output}
    held: Callable[[], Any] = lambda: None  # the tensors that calls change
    optimizers: list[Any] = field(default_factory=list)
    parameters: Mapping[str, torch.Tensor] = field(
        default_factory=dict
    )  # that optimizers train
    # Numbers that calls count up and pass on, such as the steps so far.
    counters: dict[str, Any] = field(default_factory=dict)
    forget: Callable[[], None] = lambda: None  # drops data that calls accumulate
    # Parameters whose gradients are a part of the state, as they are for a user's own step, which
    # may add to them, or be another program where they exist.
    with_gradients: list[torch.Tensor] = field(default_factory=list)
    process: Mapping[str, Any] = field(
        default_factory=dict
    )  # set while it runs, such as threads
    # Makes the user's own step anew, so that it keeps nothing of the calls before. What has been
    # compiled of it stays: a program compiles its step once.
    remake: Callable[[], None] = lambda: None
    remade: int = 0  # how often
    # Parameters before a call whose updates are compared, not its gradients.
    before: list[torch.Tensor] | None = None
    kept: State = field(default_factory=lambda: State())  # at the last ``keep``

    def __post_init__(self) -> None:
        # What is timed, a pass: ``unit`` with ``inputs``, or with those of each call in turn.
        self.call: Callable[[], Any] = self._pass

    def _pass(self) -> Any:
        if not isinstance(self.inputs, Calls):
            return self.unit(self.inputs)
        results = []
        for inputs in self.inputs:
            result = self.unit(inputs)
            if (
                not self.is_timed
            ):  # copied, since the next call of a CUDA graph overwrites it
                results.append(copy_tree(result))
        return results

    @property
    def each(self) -> list[Callable[[], Any]]:
        """The calls of a pass of several, without a copy of their results."""
        return [functools.partial(self.unit, inputs) for inputs in self.inputs]

    @property
    def is_eager(self) -> bool:
        return self.config.is_eager

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """The phase's grad mode, and the threads and precision of the setting."""
        with process_of(self.process), torch.set_grad_enabled(self.grad):
            yield

    def run(self) -> Any:
        with self.context():
            return self.call()

    def keep(self) -> None:
        """Save the state, for calls to start from; frees what was kept before."""
        self.kept = State()
        self.kept = State.saved(self)

    def restore(self) -> None:
        """Go back to the state at the last :meth:`keep`."""
        self.kept.load(self)

    def adopt(self, other: Side) -> None:
        """Take the state that another side has kept."""
        other.kept.load(self)

    def begin_anew(self, other: Side) -> None:
        """Take the state that another side has kept; what a user's own step keeps begins anew."""
        self.remake()
        self.remade += 1
        self.adopt(other)

    def changing(self) -> dict[str, torch.Tensor]:
        """The tensors that calls change, by names that are the same on both sides."""
        leaves = pytree.tree_flatten_with_path(self.held())[0]
        tensors = (
            (pytree.keystr(path), x)
            for path, x in leaves
            if isinstance(x, torch.Tensor)
        )
        return {name: x for name, x in tensors if is_writable(x)}

    def dictionaries(self) -> dict[str, dict[str, Any]]:
        """Dictionaries that may hold plain numbers, such as counts of steps or of calls."""
        found = {"steps": self.counters}
        found |= {f"module {name}": vars(m) for name, m in self.model.named_modules()}
        for n, optimizer in enumerate(self.optimizers):
            parts = [vars(optimizer), *optimizer.param_groups]
            found |= {f"optimizer {n}, {m}": part for m, part in enumerate(parts)}
            found |= {f"optimizer {n}, {m}": s for m, s in states_of(optimizer).items()}
        return found


@dataclass(frozen=True)
class State:
    """What calls of a side change, by names that are the same on all sides of a phase.

    Attributes:
        values: of tensors, such as parameters, buffers and an optimizer's moments.
        numbers: plain numbers in attributes and dictionaries, such as counts of steps.
        optimizers: a state of each that has its form, for one that has not stepped yet.
        gradients: of ``Side.with_gradients``, in their order; None where there is none.
    """

    values: Mapping[str, torch.Tensor] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    optimizers: Sequence[Any] = ()
    gradients: Sequence[torch.Tensor | None] = ()

    @classmethod
    def saved(cls, side: Side) -> State:
        """Copies of what a side has now."""
        numbers = {
            name: {k: v for k, v in each.items() if type(v) in (int, float)}
            for name, each in side.dictionaries().items()
        }
        changing, trained = side.changing(), side.with_gradients
        grads = [p.grad for p in trained if p.grad is not None]
        copied = copies([*changing.values(), *grads])
        values = dict(zip(changing, copied, strict=False))
        made = iter(copied[len(changing) :])
        gradients = [None if p.grad is None else next(made) for p in trained]
        optimizers = [optimizer.state_dict() for optimizer in side.optimizers]
        return cls(values, numbers, optimizers, gradients)

    def load(self, side: Side) -> None:
        """Put it into a side, in place, so that compiled code stays valid."""
        for optimizer, state in zip(side.optimizers, self.optimizers, strict=False):
            if state["state"] and not optimizer.state:  # it has not stepped yet
                optimizer.load_state_dict(state)
        bakes = side.config.bakes_weights  # then a write costs a refresh
        with torch.no_grad():
            # Looked up again, since a call may replace a buffer's tensor.
            for name, tensor in side.changing().items():
                value = self.values.get(name)
                if value is None or tensor.shape != value.shape:
                    continue
                if not (bakes and torch.equal(tensor, value.to(tensor.device))):
                    tensor.copy_(value)
            for p, gradient in zip(side.with_gradients, self.gradients, strict=False):
                _set_gradient(p, gradient)
        side.forget()
        # Not booleans: Dynamo may have changed flags of the compiled side.
        for name, mine in side.dictionaries().items():
            kept = self.numbers.get(name, {})
            mine.update({k: v for k, v in kept.items() if type(mine.get(k)) is type(v)})


def _set_gradient(p: torch.Tensor, value: torch.Tensor | None) -> None:
    """Let a parameter have this gradient or none, in its own memory where that is still there."""
    if value is None or p.grad is None or p.grad.layout is not value.layout:
        p.grad = None if value is None else value.to(p.device, copy=True)
        return
    try:
        p.grad.copy_(value)
    except RuntimeError:  # a CUDA graph has taken the memory back
        p.grad = value.to(p.device, copy=True)


def states_of(optimizer: Any) -> dict[str, dict[str, Any]]:
    """The state of each parameter that has one, by its place in the groups."""
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        f"parameter {n}": optimizer.state[p]
        for n, p in enumerate(every)
        if p in optimizer.state
    }


def state_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Buffers, then other tensors in attributes of its modules, also in lists and dictionaries."""
    buffers = list(model.buffers())
    known = {
        x.untyped_storage().data_ptr()
        for x in (*model.parameters(), *buffers)
        if _has_one(x)
    }
    values = (
        v for m in model.modules() for n, v in vars(m).items() if n not in _OF_MODULES
    )
    leaves = pytree.tree_leaves(
        [v for v in values if isinstance(v, (torch.Tensor, list, tuple, dict))]
    )
    plain = {id(x): x for x in leaves if isinstance(x, torch.Tensor) and _has_one(x)}
    return buffers + [
        x for x in plain.values() if x.untyped_storage().data_ptr() not in known
    ]


def _has_one(x: torch.Tensor) -> bool:
    return x.layout is torch.strided and not x.is_nested and x.numel() > 0


def random_states() -> list[bytes]:
    """States of all generators that a model may draw from."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    others = [random.getstate(), np.random.get_state()]
    return [s.numpy().tobytes() for s in states] + [
        repr(state).encode() for state in others
    ]


def perturb(model: torch.nn.Module, seed: int) -> None:
    """Change every floating parameter and buffer in place, equally for equal seeds.

    Buffers keep their signs and zeros, since they may be variances or masks.
    """
    torch.manual_seed(seed + 1)  # each call sets its own seed
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                parts = pieces(p.detach())
                squares = sum(float(x.double().square().sum()) for x in parts)
                size = max((squares / max(1, p.numel())) ** 0.5, 1e-3) * _PERTURBATION
                for x in parts:
                    x.add_((torch.randn(x.shape, device=x.device) * size).to(p))
        for b in model.buffers():
            if b.is_floating_point() and is_writable(b):
                b.mul_((1 + _PERTURBATION * torch.rand(b.shape, device=b.device)).to(b))


def make_side(
    target: Target,
    phase: str,
    inputs: Any,
    config: CompileConfig = EAGER,
    model: torch.nn.Module | None = None,
    is_whole: bool = False,
) -> Side:
    """One side of a phase, which compiles at the first call; it takes over ``model``.

    ``is_whole``: an eager setting is of the whole step, as under autocast, not of the model alone.
    """
    known = phases.PHASES[phase]
    is_whole = is_whole or config.scope == "step"
    model = target.fresh_model(phase) if model is None else model
    usual = {"threads": target.threads[phase]} if phase in target.threads else {}
    side = Side(
        model,
        known.trains,
        inputs,
        config,
        process=usual | config.process,
    )
    side.held = lambda: state_of(model)
    side.view = lambda output: {"outputs": output, "inputs": side.inputs}
    if phase == phases.FORWARD:
        model.eval()
        apply_config(model, phase, config)
        side.unit = functools.partial(call_model, model)
    elif known.method:
        assert target.library
        apply_config(model, phase, config)
        side.unit = target.library.make_call(model, phase, side.counters)
        if known.has_backward:
            side.view = lambda output: _with_gradients(target, side, output)
    elif known.is_update:
        assert target.library
        assert target.library.make_updates
        updates = target.library.make_updates(model)
        side.optimizers = updates.optimizers
        apply_config(model, phase, config, side.optimizers)
        side.unit, side.forget = updates.update, updates.forget
        _compare_training(side, updates.parameters)
    elif phase == phases.INFERENCE_STEP:
        _take_own_step(target, side, model.eval(), phase, None, is_whole)
    else:
        prepare_model(model, config)
        if phase == phases.OPTIMIZER_STEP:
            _make_gradients(model)
        optimizer = target.make_optimizer(model)
        side.optimizers = [optimizer]
        if phase == phases.STEP:
            _take_own_step(target, side, model.train(), phase, optimizer, is_whole)
            return side
        step: Callable[[Any], Any] = lambda _: optimizer.step()  # noqa: E731
        if phase == phases.TRAIN_STEP:
            step = _training_step(target, model.train(), optimizer)
        compiles = step if is_whole else model
        applied: Any = apply_config(
            compiles, phase, config, side.optimizers, device=target.device
        )
        side.unit = applied if is_whole else step
        result = "loss" if phase == phases.TRAIN_STEP else ""
        _compare_training(side, _trained(side), result)
    return side


def _take_own_step(
    target: Target,
    side: Side,
    model: torch.nn.Module,
    phase: str,
    optimizer: Any,
    is_whole: bool,
) -> None:
    """Let a side call the user's step, compiled as a whole or with a compiled model in it."""
    assert target.make_step
    make, given = target.make_step, side.optimizers
    step = OwnStep(lambda: make(model, optimizer))
    if is_whole:
        prepare_model(model, side.config)
        unit = apply_config(step.call, phase, side.config, given, device=target.device)
    else:
        apply_config(model, phase, side.config, given)
        unit = step.call
    follow_step(side, phase, step, unit)


class OwnStep:
    """The step that a user's ``get_step`` returns, which can be made anew.

    ``call`` stays the same function: what is compiled of it is compiled once, as in a program,
    while the state that a step keeps begins anew. Dynamo looks through it to the user's code, and
    compiles again only if that depends on an object that ``get_step`` makes.
    """

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self._make = make
        self._now: list[Callable[[Any], Any]] = []
        now = self._now

        def call(inputs: Any) -> Any:
            return now[0](inputs)

        self.call = call

    def make(self) -> None:
        """Call ``get_step`` again."""
        self._now[:] = [self._make()]


def follow_step(
    side: Side, phase: str, step: OwnStep, unit: Callable[[Any], Any]
) -> None:
    """Let a side call a user's own step as ``unit``, and compare and set back what that changes.

    That is what it returns, buffers, and what it trains, also with optimizers that it has made, and
    gradients that it leaves.
    """
    given = side.optimizers

    def remake() -> None:
        with optimizers_made() as made:
            step.make()
        side.optimizers = [*given, *made]
        if phase == phases.STEP:
            _compare_training(side, _trained(side), "outputs")
            side.with_gradients = [*side.parameters.values()]

    if phase == phases.INFERENCE_STEP:
        side.view = lambda output: {
            "outputs": output,
            "inputs": side.inputs,
            "buffers": dict(side.model.named_buffers()),
        }
    side.unit, side.remake = unit, remake
    remake()


def _trained(side: Side) -> dict[str, torch.Tensor]:
    """Without those that nothing steps, whose gradients add up as the user's own code has it."""
    groups = [
        group for optimizer in side.optimizers for group in optimizer.param_groups
    ]
    steps = [p for group in groups for p in group["params"] if p.requires_grad]
    names = {id(p): name for name, p in side.model.named_parameters()}
    return {
        names.get(id(p), f"parameter {n} of optimizers"): p for n, p in enumerate(steps)
    }


def _parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _gradients(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As dense tensors, also those of tables that give sparse ones."""
    grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    return {
        name: g.to_dense() if g.layout is not torch.strided else g
        for name, g in grads.items()
    }


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
    side: Side, parameters: Mapping[str, torch.Tensor], result: str = "loss"
) -> None:
    """Compare result, gradients and buffers, and hold what a step changes.

    ``result`` names what a call returns in views; a step of the optimizer alone returns nothing.
    """

    def view(output: Any) -> View:
        changes: View = {"gradients": _gradients(parameters)}
        if side.before is not None:
            pairs = zip(parameters.items(), side.before, strict=True)
            updates = {n: p.detach() - old.to(p.device) for (n, p), old in pairs}
            if any(bool(x.any()) for x in updates.values()):  # else nothing has stepped
                changes = {"updates": updates}
        if not result:
            return changes
        return {result: output, **changes, "buffers": dict(side.model.named_buffers())}

    def held() -> Any:
        states = [states_of(optimizer) for optimizer in side.optimizers]
        rest = state_of(side.model) if result else _gradients(parameters)
        return parameters, rest, states

    side.parameters, side.view, side.held = parameters, view, held


def _make_gradients(model: torch.nn.Module) -> None:
    """Random gradients, the same on both sides."""
    parameters = _parameters(model)
    if not parameters:
        raise TargetError(
            "the model has no parameters to train, so there is no optimizer step"
        )
    generator = torch.Generator().manual_seed(0)
    for p in parameters.values():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float32)
        p.grad = (noise * 1e-2).to(device=p.device, dtype=p.dtype)


def _training_step(target: Target, model: Any, optimizer: Any) -> Callable[[Any], Any]:
    """Forward, loss, backward and optimizer step, as people write it."""

    def step(inputs: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = target.loss(target.train(model, inputs), inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step
