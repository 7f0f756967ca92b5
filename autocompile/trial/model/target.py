"""What a trial knows of the user's model: how to build, feed, step and judge it."""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from autocompile.errors import TargetError, first_words
from autocompile.runtime.ranks import here
from autocompile.settings import phases
from autocompile.trial.model.calls import Arguments, Calls, Workload
from autocompile.trial.values import rebuilt, result_tensors

_Inputs = Callable[[int | None], Any]


def sum_of_floats(output: Any, inputs: Any) -> torch.Tensor:
    """The default loss: the sum of all floating outputs, as in PyTorch's dynamo benchmarks."""
    tensors = (
        x for x in result_tensors(output) if x.is_floating_point() and x.requires_grad
    )
    floats = [x.sum().float() for x in tensors]
    if not floats:
        raise TargetError(
            "no output of the model depends on its parameters, so there is no loss"
        )
    return torch.stack(floats).sum()


class Updates(Protocol):
    """Gradient updates by a library's own code, which change the model that they are of."""

    optimizers: list[Any]
    parameters: Mapping[str, torch.Tensor]  # that they train, by name

    def update(self, inputs: Any) -> Any:
        """One update on the inputs of a call; returns its losses."""

    def forget(self) -> None:
        """Drop what updates accumulate, such as metrics."""


@dataclass(frozen=True)
class LibraryCalls:
    """How a library's loops call a model.

    Attributes:
        title: as people write it.
        make_call: what is done with the inputs of one call in a phase, from the model, the phase
            and the counters of a side, which it may add to.
        make_updates: its own updates of a model by one of so many processes; None where the target
            has none.
        start: calls a model as a worker does when it starts, for a phase and a batch size;
            returns whether that could be done.
    """

    title: str
    make_call: Callable[[Any, str, dict[str, Any]], Callable[[Any], Any]]
    start: Callable[[Any, str, int], bool]
    make_updates: Callable[[Any, int], Updates] | None = None


@dataclass
class Target:
    """How to build, feed and run the user's model."""

    kind: (
        str  # ``functions``, ``KernelBench``, ``nn.Module``, or what a library calls it
    )
    model: torch.nn.Module
    make_inputs: _Inputs  # of one batch; the argument is None for a fixed batch
    make_optimizer: Callable[[torch.nn.Module], Any] = lambda m: torch.optim.Adam(
        m.parameters()
    )
    loss: Callable[[Any, Any], torch.Tensor] = sum_of_floats
    check: Callable[[Any, Any], Any] | None = None
    # In place of ``make_inputs``.
    phase_inputs: dict[str, _Inputs] = field(default_factory=dict)
    # Of the user's ``get_step``: from a model and an optimizer, and the phase that it gives.
    make_step: Callable[[torch.nn.Module, Any], Callable[[Any], Any]] | None = None
    own_phase: str = ""
    library: LibraryCalls | None = None  # whose loops call the model's methods
    # What a training step gives to ``loss``.
    train: Callable[[Any, Any], Any] = lambda model, inputs: call_model(model, inputs)
    # of an env runner, where it is a smaller one
    inference_model: torch.nn.Module | None = None
    # of ``forward_train``, where it is a larger one
    training_model: torch.nn.Module | None = None
    fixed_batch: bool = False
    # By phase, in the user's config.
    own_batch_size: dict[str, int] = field(default_factory=dict)
    # Between two changes of the weights, by phase: calls, or rows where their number is fixed.
    calls_per_update: dict[str, int] = field(default_factory=dict)
    samples_per_update: dict[str, int] = field(default_factory=dict)
    # Where a phase's process has others.
    threads: dict[str, int] = field(default_factory=dict)
    algorithm: str | None = None  # ``module:Class`` of what runs the library's loops
    # an error of a call in eager mode
    explain: Callable[[Exception], Exception] | None = None
    # The source of each, in words.
    choices: dict[str, str] = field(default_factory=dict)
    sha256: str | None = None
    # builds ``model`` anew if it can
    rebuild: Callable[[], torch.nn.Module] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    strategy: str = ""  # how several ranks average gradients; empty for one process

    def model_of(self, phase: str) -> torch.nn.Module:
        if phases.phase_of(phase).role == "worker" and self.inference_model:
            return self.inference_model
        if phase in (phases.FORWARD_TRAIN, phases.TRAIN_STEP) and self.training_model:
            return self.training_model
        return self.model

    def fresh_model(
        self, phase: str, shares_parameters: bool = False
    ) -> torch.nn.Module:
        """A copy of a phase's model, or one built anew; untrained parameters may be shared."""
        model = self.model_of(phase)
        shares_parameters &= not phases.phase_of(phase).trains
        memo: dict[int, Any] = {
            id(p): p for p in model.parameters() if shares_parameters
        }
        try:
            made = copy.deepcopy(model, memo)
            if all(p.is_leaf for p in made.parameters()):
                return made
            # As of torch.jit.
            raise ValueError("parameters of the copy are none that an optimizer takes")
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            seed_everything(0)  # for what is in no state dict
            made = self.rebuild() if self.rebuild and model is self.model else model
            if made is model or {*map(id, made.parameters())} & {
                *map(id, model.parameters())
            }:
                raise TargetError(
                    "the model cannot be copied",
                    f"copy.deepcopy(model): {first_words(error)}",
                    hint="give a file with get_model(), which builds it anew",
                ) from error
        made.to(self.device).load_state_dict(model.state_dict())
        return made

    def inputs(self, phase: str, batch_size: int | None) -> Any:
        """One batch on the device, or :class:`Calls` of them."""
        made = self.phase_inputs.get(phase, self.make_inputs)(batch_size)
        if isinstance(made, Calls):
            return Workload(self._prepared(phase, inputs) for inputs in made)
        return self._prepared(phase, made)

    def _prepared(self, phase: str, made: Any) -> Any:
        """Inputs on the device; a mapping that the model takes by name comes as a dict."""
        if isinstance(made, Mapping) and not isinstance(made, dict):
            with contextlib.suppress(TypeError):  # the model takes it whole
                inspect.signature(self.model_of(phase).forward).bind(**made)
                made = dict(made)

        def moved(x: Any) -> Any:
            return x.to(self.device) if isinstance(x, torch.Tensor) else x

        return rebuilt(made, moved)

    def to(self, device: torch.device) -> None:
        self.device = device
        for model in (self.model, self.inference_model, self.training_model):
            if model is not None:
                model.to(device)

    def updates(self, model: Any) -> Updates:
        """The library's updates of a model, by all ranks that train together."""
        assert self.library
        assert self.library.make_updates
        return self.library.make_updates(model, here().count if self.strategy else 1)

    def known_phases(self) -> tuple[str, ...]:
        """The phases that it has, in the order of their table."""
        return tuple(n for n, phase in phases.PHASES.items() if self._has(n, phase))

    def _has(self, name: str, phase: phases.Phase) -> bool:
        if phase.is_update:
            return self.library is not None and self.library.make_updates is not None
        if phase.is_forward:
            return phase.method == (self.library is not None)
        return name == self.own_phase if phase.is_own else True

    def default_phases(self) -> tuple[str, ...]:
        """The phases that are tuned when nobody asks for others."""
        if self.own_phase:
            return (self.own_phase,)
        known = {name: phases.PHASES[name] for name in self.known_phases()}
        forward = next(name for name, phase in known.items() if phase.is_forward)
        if not any(p.requires_grad for p in self.model.parameters()):
            return (forward,)
        updates = [name for name, phase in known.items() if phase.is_update]
        return (forward, *(updates or [phases.OPTIMIZER_STEP]))


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Call a module with the result of ``get_inputs``, or of one call."""
    if isinstance(inputs, Arguments):
        return model(*inputs[0], **inputs[1])
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)
