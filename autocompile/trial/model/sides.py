"""Sides: copies of a model with the call of a phase. Each family of phases is a class.

:class:`Side` is what all have in common: a pass of calls, the context in which they run, and the
state that they start from. A family says what is done with the inputs of one call (``unit``), what
of its result is compared (:meth:`Side.view`), and which tensors it changes (:meth:`Side.held`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocompile.errors import TargetError
from autocompile.runtime import sharding
from autocompile.runtime.applying import (
    apply_config,
    prepare_model,
    process_of,
)
from autocompile.runtime.ranks import ApartError, here
from autocompile.runtime.sharding import own_part, whole
from autocompile.runtime.strategies import splitting_of, spread
from autocompile.settings import phases
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.trial.model.calls import Calls
from autocompile.trial.model.own_step import optimizers_made
from autocompile.trial.model.state import (
    State,
    lend,
    state_of,
    states_of,
    take_back,
)
from autocompile.trial.model.target import Target, call_model
from autocompile.trial.values import copy_tree, is_writable
from autocompile.trial.verify.outputs import View

Unit = Callable[[Any], Any]
"""What is done with the inputs of one call; gives its result."""


class Side:
    """One copy of a model with the call of a phase, eager or compiled.

    Attributes:
        inputs: of the next pass: those of one call, or :class:`Calls`.
        unit: the call of the phase.
        call: what is timed, a pass: ``unit`` with ``inputs``, or with those of each call in turn.
        process: what is set in the process while it runs, such as threads.
        is_timed: whether a pass of several calls drops their results, as a loop would.
        kept: the state at the last :meth:`keep`, from which calls start.
        counters: numbers that calls count up and pass on, such as the steps so far.
        optimizers: those that a call steps.
        parameters: those that they train, by name.
        before: parameters before a call whose updates are compared, not its gradients.
        with_gradients: parameters whose gradients are a part of the state.
        remade: how often :meth:`remake` was called.
        turns: with the other sides of the process, if they give back memory for one another.
        gives_back: whether it can give back the memory of what calls change (:meth:`release`).
        left: the states of torch's generators after the last call that was compared.
    """

    gives_back = False

    def __init__(
        self,
        model: torch.nn.Module,
        grad: bool,
        inputs: Any = None,
        config: CompileConfig = EAGER,
        process: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.grad, self.inputs, self.config = model, grad, inputs, config
        self.process: Mapping[str, Any] = process or {}
        self.unit: Unit = lambda inputs: None
        self.call: Callable[[], Any] = self._pass
        self.is_timed = False
        self.kept = State()
        self.counters: dict[str, Any] = {}
        self.optimizers: list[Any] = []
        self.parameters: Mapping[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}  # of parameters, as they were when it was made
        self.before: list[torch.Tensor] | None = None
        self.with_gradients: list[torch.Tensor] = []
        self.remade = 0
        self.turns: Turns | None = None
        self._lent: list[Any] = []
        self.left: list[bytes] = []
        self.drew = False

    # What families differ in -----------------------------------------------------------------------

    def view(self, output: Any) -> View:
        """Of the result of ``call``, and of what it has changed, what is compared."""
        return {"outputs": output, "inputs": self.inputs}

    def held(self) -> Any:
        """The tensors that calls change, as a tree that is the same on all sides."""
        return state_of(self.model)

    def remake(self) -> None:
        """Make the user's own step anew, so that it keeps nothing of the calls before."""

    def forget(self) -> None:
        """Drop what calls accumulate and nothing compares."""

    # What they have in common ----------------------------------------------------------------------

    def _pass(self) -> Any:
        if not isinstance(self.inputs, Calls):
            return self.unit(self.inputs)
        results = []
        for inputs in self.inputs:
            result = self.unit(inputs)
            if not self.is_timed:
                # Copied, since the next call of a CUDA graph overwrites it.
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
        grad = torch.set_grad_enabled(self.grad)
        with process_of(self.process), grad, splitting_of(self.config):
            yield

    def run(self) -> Any:
        if self.has_released and self.turns:
            self._load(self.turns.kept())
        with self.context():
            return self.call()

    def keep(self) -> None:
        """Save the state, for calls to start from; frees what was kept before."""
        self.kept = State()
        sharding.begin_anew(self.model)
        self.kept = State.saved(self)

    def kept_parameters(self) -> dict[str, torch.Tensor]:
        """Those of the parameters that the kept state has."""
        by_id = {id(p): name for name, p in self.parameters.items()}
        return {
            by_id[id(x)]: self.kept.values[name]
            for name, x in self.changing().items()
            if id(x) in by_id and name in self.kept.values
        }

    def whole_parameters(self) -> dict[str, torch.Tensor]:
        """The parameters, gathered where ranks have parts of them."""
        return {name: whole(p.detach()) for name, p in self.parameters.items()}

    def restore(self) -> None:
        """Go back to the state at the last :meth:`keep`."""
        self._load(self.kept)

    def adopt(self, other: Side) -> None:
        """Take the state that another side has kept."""
        self._load(other.kept)

    def _load(self, state: State) -> None:
        if self.turns:
            self.turns.take(self)
        take_back(self._lent)
        sharding.begin_anew(self.model)
        state.load(self)

    def release(self) -> None:
        """Give back the memory of what calls change, until a state is loaded, if that can be."""

    def drop(self) -> None:
        """Refer to nothing any more: a side and its call refer to each other, which frees late."""
        if self.turns:
            self.turns.forget(self)
        has_cycles = sharding.is_split_model(self.model)
        vars(self).clear()
        if has_cycles:  # through hooks, which keep its memory
            gc.collect()

    @property
    def has_released(self) -> bool:
        return bool(self._lent)

    def begin_anew(self, other: Side) -> None:
        """Take the state that another side has kept; what a user's own step keeps begins anew."""
        self.remake()
        self.remade += 1
        self.adopt(other)

    def changing(self) -> dict[str, torch.Tensor]:
        """The tensors that calls change, by names that are the same on all sides.

        Of tensors that are split between ranks this rank's parts.
        """
        leaves = pytree.tree_flatten_with_path(self.held())[0]
        tensors = (
            (pytree.keystr(path), own_part(x))
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


class Turns:
    """Sides of which one at a time has memory of its own for what steps change.

    Every call begins with a state that is kept, so what a side has left there is not needed once
    another one is used. ``kept`` gives the state of a side that is used again without another.
    """

    def __init__(self, kept: Callable[[], State]) -> None:
        self.kept = kept
        self._sides = weakref.WeakSet[Side]()

    def take(self, side: Side) -> None:
        """Let a side have memory, and the others give back theirs."""
        for other in self._sides:
            if other is not side:
                other.release()
        self._sides.add(side)

    def forget(self, side: Side) -> None:
        self._sides.discard(side)


class BackwardToo(Side):
    """A forward pass of training, whose loss is computed for the comparison of its gradients."""

    loss: Callable[[Any, Any], torch.Tensor]

    def view(self, output: Any) -> View:
        self.model.zero_grad(set_to_none=True)
        torch.autograd.backward(self.loss(output, self.inputs))
        return {
            "outputs": output,
            "inputs": self.inputs,
            "gradients": _gradients(_trainable(self.model)),
            "buffers": dict(self.model.named_buffers()),
        }


class Training(Side):
    """A step that trains: its result, gradients and buffers are compared."""

    result = "loss"  # what views call that which a call returns
    gives_back = True

    def view(self, output: Any) -> View:
        ranks, buffers = here(), dict(self.model.named_buffers())
        return {
            self.result: ranks.each(pytree.tree_map(whole, output)),
            **self._changes(),
            "buffers": ranks.each(buffers),
        }

    def held(self) -> Any:
        states = [states_of(optimizer) for optimizer in self.optimizers]
        return self.parameters, state_of(self.model), states

    def follow_ranks(self) -> None:
        """Be a step of several ranks: what averages gradients knows the memory of parameters."""
        self.gives_back = False

    def release(self) -> None:
        """Give back the memory of parameters and moments, and drop gradients that steps make.

        Not of compiled code on a GPU: CUDA graphs know their addresses.
        """
        on_gpu = any(p.is_cuda for p in self.parameters.values())
        if self._lent or not self.gives_back or (on_gpu and not self.is_eager):
            return
        moments = [
            x
            for optimizer in self.optimizers
            for state in states_of(optimizer).values()
            for x in state.values()
            if isinstance(x, torch.Tensor)
        ]
        others = [*self.model.parameters(), *state_of(self.model)]
        self._lent = lend([*self.parameters.values(), *moments], others)
        if self._lent:
            self._drop_gradients()

    def _drop_gradients(self) -> None:
        for p in self.parameters.values():
            p.grad = None

    def _changes(self) -> View:
        """Gradients; or what a step made of the parameters, where these do not tell it."""
        if self.before is not None:
            pairs = zip(self.whole_parameters().items(), self.before, strict=True)
            updates = {n: p - old.to(p.device) for (n, p), old in pairs}
            if any(bool(x.any()) for x in updates.values()):  # else nothing has stepped
                return {"updates": _same_on_all_ranks(updates, "update")}
        return {"gradients": self._of_ranks(_gradients(self.parameters))}

    def _of_ranks(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gradients after a step of several ranks, which have averaged them."""
        return _same_on_all_ranks(gradients, "gradient")

    def train(self, optimizers: list[Any]) -> None:
        """Let these be the optimizers, and what they step the parameters.

        Without those that nothing steps, whose gradients add up as the user's own code has it.
        """
        self.optimizers = optimizers
        groups = [g for optimizer in optimizers for g in optimizer.param_groups]
        # Also what is frozen now: a step may freeze one part while another learns.
        steps = [p for group in groups for p in group["params"]]
        if not self._names:
            every = self.model.named_parameters()
            self._names = {id(p): name for name, p in every}
        self.parameters = {
            self._names.get(id(p), f"parameter {n} of optimizers"): p
            for n, p in enumerate(steps)
        }


class OptimizerStep(Training):
    """A step of the optimizer alone, which returns nothing: gradients are its inputs."""

    def view(self, output: Any) -> View:
        return self._changes()

    def held(self) -> Any:
        states = [states_of(optimizer) for optimizer in self.optimizers]
        return self.parameters, _gradients(self.parameters), states

    def _drop_gradients(self) -> None:
        """They are inputs, which views refer to."""

    def make_gradients(self) -> None:
        """Random gradients, the same on all sides."""
        parameters = _trainable(self.model)
        if not parameters:
            raise TargetError(
                "the model has no parameters to train, so there is no optimizer step"
            )
        for number, p in enumerate(parameters.values()):
            block = _noise(p.device).roll(number)
            count = -(-p.numel() // block.numel())
            noise = block.repeat(count)[: p.numel()]
            # No view: torch keys compiled code by that, and a backward pass leaves none.
            p.grad = (noise * 1e-2).to(p.dtype).reshape(p.shape).clone()


# Values that the random gradients of all parameters are made of: a CPU draws a billion in seven
# seconds, and each side needs them. Their number is prime, so that no two rows are equal.
_NOISE = 1_000_003


@functools.cache
def _noise(device: torch.device) -> torch.Tensor:
    """The same normal values in each process and on each device."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_NOISE, generator=generator, dtype=torch.float32).to(device)


class LibraryUpdate(Training):
    """An update by a library's own code, which has optimizers and metrics."""

    gives_back = False  # its code may refer to the memory

    def take(self, updates: Any) -> None:
        """Let these be the updates."""
        self.updates = updates
        self.optimizers, self.parameters = updates.optimizers, updates.parameters
        self.unit = updates.update

    def forget(self) -> None:
        self.updates.forget()


class OwnStep(Training):
    """A user's own step that trains, also with optimizers that it makes.

    Gradients that it leaves are a part of its state: it may add to them, and is another program
    where they exist.
    """

    result = "outputs"
    gives_back = False  # the user's code may refer to the memory

    def _of_ranks(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Those of all ranks where they differ: a step may add some up before it averages."""
        ranks = here()
        if not ranks.apart(gradients):
            return gradients
        of_others = {
            f"{name} of rank {rank}": x
            for rank, found in enumerate(ranks.each(gradients))
            for name, x in (found.items() if rank != ranks.rank else ())
        }
        return gradients | of_others

    def follow(self, own: Remade, unit: Unit) -> None:
        """Call the user's step as ``unit``, which is ``own`` or compiled of it."""
        self._own, self._given, self.unit = own, self.optimizers, unit
        self.remake()

    def remake(self) -> None:
        sharding.begin_anew(self.model)
        with optimizers_made() as made:
            self._own.make()
        self.train([*self._given, *made])
        self.with_gradients = [*self.parameters.values()]


class OwnCalls(Side):
    """A user's own step that does not train; what it leaves in buffers is compared."""

    def view(self, output: Any) -> View:
        return {**super().view(output), "buffers": dict(self.model.named_buffers())}

    def follow(self, own: Remade, unit: Unit) -> None:
        """Call the user's step as ``unit``, which is ``own`` or compiled of it."""
        self._own, self.unit = own, unit
        self.remake()

    def remake(self) -> None:
        self._own.make()


class Remade:
    """The step that a user's ``get_step`` returns, which can be made anew.

    ``call`` stays the same function: what is compiled of it is compiled once, as in a program,
    while the state that a step keeps begins anew. Dynamo looks through it to the user's code, and
    compiles again only if that depends on an object that ``get_step`` makes.
    """

    def __init__(self, make: Callable[[], Unit]) -> None:
        self._make = make
        self._now: list[Unit] = []
        now = self._now

        def call(inputs: Any) -> Any:
            return now[0](inputs)

        self.call = call

    def make(self) -> None:
        """Call ``get_step`` again."""
        self._now[:] = [self._make()]


_FAMILIES: Mapping[str, type[Side]] = {
    phases.OPTIMIZER_STEP: OptimizerStep,
    phases.TRAIN_STEP: Training,
    phases.STEP: OwnStep,
    phases.INFERENCE_STEP: OwnCalls,
}


def _family_of(phase: str) -> type[Side]:
    known = phases.PHASES[phase]
    if known.is_update:
        return LibraryUpdate
    if known.is_forward:
        return BackwardToo if known.has_backward else Side
    return _FAMILIES[phase]


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
    model = target.fresh_model(phase) if model is None else model
    usual = {"threads": target.threads[phase]} if phase in target.threads else {}
    process = usual | config.process
    side = _family_of(phase)(model, known.trains, inputs, config, process)
    is_whole = is_whole or config.scope == "step"
    if isinstance(side, LibraryUpdate):
        side.take(target.updates(model))
        apply_config(model, phase, config, side.optimizers)
    elif isinstance(side, (OwnStep, OwnCalls)):
        _prepare_own(target, side, phase, is_whole)
    elif isinstance(side, Training):
        _prepare_training(target, side, phase, is_whole)
    else:
        _prepare_forward(target, side, phase)
    return side


def _prepare_forward(target: Target, side: Side, phase: str) -> None:
    model, config = side.model, side.config
    if phase == phases.FORWARD:
        model.eval()
        apply_config(model, phase, config)
        side.unit = functools.partial(call_model, model)
        return
    assert target.library
    apply_config(model, phase, config)
    side.unit = target.library.make_call(model, phase, side.counters)
    if isinstance(side, BackwardToo):
        side.loss = target.loss


def _prepare_training(
    target: Target, side: Training, phase: str, is_whole: bool
) -> None:
    model, config = side.model, side.config
    prepare_model(model, config)
    if isinstance(side, OptimizerStep):
        side.make_gradients()
    called = spread(model, target.strategy, config)
    optimizer = target.make_optimizer(model)
    step: Unit = lambda _: optimizer.step()  # noqa: E731
    if phase == phases.TRAIN_STEP:
        model.train()
        step = _training_step(target, called, optimizer)
    applied: Any = apply_config(
        step if is_whole else model, phase, config, [optimizer], device=target.device
    )
    side.unit = applied if is_whole else step
    side.train([optimizer])
    if target.strategy:
        side.follow_ranks()


def _prepare_own(
    target: Target, side: OwnStep | OwnCalls, phase: str, is_whole: bool
) -> None:
    """Let a side call the user's step, compiled as a whole or with a compiled model in it."""
    assert target.make_step
    make, model, config = target.make_step, side.model, side.config
    called, optimizer = model, None
    if isinstance(side, OwnStep):
        prepare_model(model, config)
        called = spread(model.train(), target.strategy, config)
        optimizer = target.make_optimizer(model)
        side.optimizers = [optimizer]
    else:
        model.eval()
    given = side.optimizers
    own = Remade(lambda: make(called, optimizer))
    unit = own.call
    if is_whole:
        prepare_model(model, config)
        unit = apply_config(own.call, phase, config, given, device=target.device)
    else:
        apply_config(model, phase, config, given)
    side.follow(own, unit)
    if target.strategy and isinstance(side, OwnStep):
        side.follow_ranks()


def _same_on_all_ranks(
    tensors: dict[str, torch.Tensor], what: str
) -> dict[str, torch.Tensor]:
    """These, which replicas of one model have alike to the last bit.

    Raises:
        ApartError: they differ between ranks.
    """
    if problem := here().apart(tensors):
        raise ApartError(what, problem)
    return tensors


def _trainable(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _gradients(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As dense and whole tensors, also those of tables that give sparse ones."""
    grads = {
        name: whole(p.grad) for name, p in parameters.items() if p.grad is not None
    }
    return {
        name: g.to_dense() if g.layout is not torch.strided else g
        for name, g in grads.items()
    }


def _training_step(target: Target, model: Any, optimizer: Any) -> Unit:
    """Forward, loss, backward and optimizer step, as people write it."""

    def step(inputs: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = target.loss(target.train(model, inputs), inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step
