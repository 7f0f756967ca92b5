"""What a trial knows of the user's model: how to build, feed, step and judge it."""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocompile.errors import TargetError, first_words
from autocompile.settings import phases
from autocompile.trial.target.calls import Arguments, Calls
from autocompile.trial.verify.outputs import result_tensors

_Inputs = Callable[[int | None], Any]


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The default optimizer: Adam with torch's defaults over all parameters."""
    return torch.optim.Adam(model.parameters())


def sum_of_floats(output: Any, inputs: Any) -> torch.Tensor:
    """The default loss: the sum of all floating outputs, as in PyTorch's dynamo benchmarks."""
    tensors = (x for x in result_tensors(output) if x.is_floating_point() and x.requires_grad)
    floats = [x.sum().float() for x in tensors]
    if not floats:
        raise TargetError("no output of the model depends on its parameters, so there is no loss")
    return torch.stack(floats).sum()


@dataclass
class Target:
    """How to build, feed and run the user's model.

    Attributes:
        kind: ``functions``, ``KernelBench``, ``nn.Module``, ``AlgorithmConfig``, ...
        make_inputs: builds the inputs of one batch; the argument is None for a fixed batch.
        phase_inputs: replaces ``make_inputs`` for some phases.
        make_learner: wraps a full RLModule in :class:`learner.Updates`, if there is a config.
        inference_model: the smaller module that an env runner builds, if it differs from ``model``.
        training_model: the larger module that ``forward_train`` calls, if it differs.
        own_batch_size: by phase, in the user's configuration.
        calls_per_update: calls between two changes of the weights, by phase.
        samples_per_update: rows between two changes of the weights, by phase, if that is fixed
            instead of the number of calls.
        threads: of torch, by phase, where the process that will run it has another number.
        algorithm: ``module:Class`` of an AlgorithmConfig.
        choices: the source of each choice, in words.
        rebuild: builds ``model`` anew, or gives it again if nothing builds it.
    """

    kind: str
    model: torch.nn.Module
    make_inputs: _Inputs
    make_optimizer: Callable[[torch.nn.Module], Any] = adam
    loss: Callable[[Any, Any], torch.Tensor] = sum_of_floats
    check: Callable[[Any, Any], Any] | None = None
    phase_inputs: dict[str, _Inputs] = field(default_factory=dict)
    make_learner: Callable[[Any], Any] | None = None
    training_phase: Callable[[], str] = lambda: phases.OPTIMIZER_STEP
    is_rl: bool = False
    inference_model: torch.nn.Module | None = None
    training_model: torch.nn.Module | None = None
    fixed_batch: bool = False
    own_batch_size: dict[str, int] = field(default_factory=dict)
    calls_per_update: dict[str, int] = field(default_factory=dict)
    samples_per_update: dict[str, int] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    algorithm: str | None = None
    choices: dict[str, str] = field(default_factory=dict)
    sha256: str | None = None
    rebuild: Callable[[], torch.nn.Module] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def model_of(self, phase: str) -> torch.nn.Module:
        if phases.phase_of(phase).role == "worker" and self.inference_model:
            return self.inference_model
        if phase in (phases.FORWARD_TRAIN, phases.TRAIN_STEP) and self.training_model:
            return self.training_model
        return self.model

    def fresh_model(self, phase: str, shares_parameters: bool = False) -> torch.nn.Module:
        """A copy of a phase's model, or if it cannot be copied one that is built anew.

        In a phase that does not train, the copy may share the parameters.

        Raises:
            TargetError: it can be neither copied nor built anew.
        """
        model = self.model_of(phase)
        shares_parameters &= not phases.phase_of(phase).trains
        memo: dict[int, Any] = {id(p): p for p in model.parameters() if shares_parameters}
        try:
            made = copy.deepcopy(model, memo)
            if all(p.is_leaf for p in made.parameters()):
                return made
            raise ValueError("parameters of the copy are none that an optimizer takes")  # torch.jit
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            seed_everything(0)  # for what is in no state dict
            made = self.rebuild() if self.rebuild and model is self.model else model
            if made is model or {*map(id, made.parameters())} & {*map(id, model.parameters())}:
                raise TargetError(
                    "the model cannot be copied",
                    f"copy.deepcopy(model): {first_words(error)}",
                    hint="give a file with get_model(), which builds it anew",
                ) from error
        made.to(self.device).load_state_dict(model.state_dict())
        for part_made, part in zip(made.modules(), model.modules(), strict=True):
            part_made.training = part.training
        for p_made, p in zip(made.parameters(), model.parameters(), strict=True):
            p_made.requires_grad_(p.requires_grad)
        return made

    def inputs(self, phase: str, batch_size: int | None) -> Any:
        """One batch on the device, or :class:`Calls` of them."""
        made = self.phase_inputs.get(phase, self.make_inputs)(batch_size)
        if isinstance(made, Calls):
            return Calls(self._prepared(phase, inputs) for inputs in made)
        return self._prepared(phase, made)

    def _prepared(self, phase: str, made: Any) -> Any:
        """Inputs on the device; a mapping that the model takes by name comes as a dict."""
        if isinstance(made, Mapping) and not isinstance(made, dict):
            with contextlib.suppress(TypeError):  # the model takes it whole
                inspect.signature(self.model_of(phase).forward).bind(**made)
                made = dict(made)

        def moved(x: Any) -> Any:
            is_mapping = isinstance(x, Mapping) and hasattr(x, "to")  # as a tokenizer's
            return x.to(self.device) if is_mapping or isinstance(x, torch.Tensor) else x

        return pytree.tree_map(moved, made)

    def to(self, device: torch.device) -> None:
        self.device = device
        for model in (self.model, self.inference_model, self.training_model):
            if model is not None:
                model.to(device)

    def default_phases(self) -> tuple[str, ...]:
        """The two phases that are tuned when nobody asks for others."""
        forward = phases.FORWARD_EXPLORATION if self.is_rl else phases.FORWARD
        if not any(p.requires_grad for p in self.model.parameters()):
            return (forward,)
        return (forward, self.training_phase())


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
