"""Loads the user's target: its model, inputs, optimizer, loss and check.

Runs the user's code, so it is used only in trial processes, never in the tuner.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from autocompile.errors import TargetError
from autocompile.settings import phases
from autocompile.trial.target.example import example_inputs, no_inputs
from autocompile.trial.verify.tree import result_tensors

__all__ = [
    "Target",
    "adam",
    "build",
    "import_target",
    "seed_everything",
    "split_spec",
    "sum_of_floats",
]


@dataclass
class Target:
    """How to build, feed and run the user's model.

    Attributes:
        kind: ``functions``, ``KernelBench``, ``nn.Module``, ``AlgorithmConfig``, ...
        model: the module, on the CPU or wherever the user puts it.
        build: lines of Python that define ``model``, for exports.
        make_inputs: builds the inputs of one batch; the argument is None for a fixed batch.
        make_optimizer: builds the optimizer of a module's parameters.
        optimizer_source: a line of Python that builds the optimizer, for exports; may be empty.
        phase_inputs: replaces ``make_inputs`` for some phases.
        make_learner: wraps a full RLModule in an
            :class:`autocompile.trial.target.learner.Updates`; None without an AlgorithmConfig.
        loss: reduces an output to one number.
        check: the user's comparison of eager and compiled outputs, if any.
        training_phase: returns the training phase that is tuned by default.
        is_rl: the module is an RLModule.
        inference_model: the smaller module that an env runner builds, if it differs from ``model``.
        training_model: the larger module that ``forward_train`` calls, if it differs.
        own_batch_size: batch size by phase in the user's configuration.
        calls_per_update: calls between two changes of the weights, by phase.
        samples_per_update: rows between two changes of the weights, by phase, if that is fixed
            instead of the number of calls.
        algorithm: ``module:Class`` of an AlgorithmConfig.
        choices: the source of each choice, in words.
        sha256: of the target's file.
    """

    kind: str
    model: torch.nn.Module
    build: list[str]
    make_inputs: Callable[[int | None], Any]
    make_optimizer: Callable[[torch.nn.Module], Any]
    loss: Callable[[Any, Any], torch.Tensor]
    check: Callable[[Any, Any], Any] | None = None
    phase_inputs: dict[str, Callable[[int | None], Any]] = field(default_factory=dict)
    make_learner: Callable[[Any], Any] | None = None
    training_phase: Callable[[], str] = lambda: phases.OPTIMIZER_STEP
    is_rl: bool = False
    inference_model: torch.nn.Module | None = None
    training_model: torch.nn.Module | None = None
    fixed_batch: bool = False
    own_batch_size: dict[str, int] = field(default_factory=dict)
    calls_per_update: dict[str, int] = field(default_factory=dict)
    samples_per_update: dict[str, int] = field(default_factory=dict)
    algorithm: str | None = None
    choices: dict[str, str] = field(default_factory=dict)
    sha256: str | None = None
    optimizer_source: str = ""

    def model_of(self, phase: str) -> torch.nn.Module:
        """The module that runs a phase."""
        if phases.phase_of(phase).role == "worker" and self.inference_model:
            return self.inference_model
        if phase in (phases.FORWARD_TRAIN, phases.TRAIN_STEP) and self.training_model:
            return self.training_model
        return self.model

    def inputs(self, phase: str, batch_size: int | None) -> Any:
        """One batch of inputs of a phase."""
        return self.phase_inputs.get(phase, self.make_inputs)(batch_size)

    def to(self, device: torch.device) -> None:
        """Move the model to a device, in place."""
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


def split_spec(spec: str) -> tuple[str, str | None]:
    """Split ``PATH``, ``PATH:NAME`` or ``package.module:NAME`` into place and name."""
    if match := re.fullmatch(r"(.+):([A-Za-z_]\w*)", spec):
        return match[1], match[2]
    return spec, None


def import_target(spec: str) -> ModuleType:
    """Import a target's file by its path, or its module by its name; runs the user's code.

    Raises:
        Exception: whatever the user's file raises.
    """
    place, _ = split_spec(spec)
    if not (place.endswith(".py") or Path(place).is_file()):
        sys.path.append(os.getcwd())
        return importlib.import_module(place)
    path = Path(place).resolve()
    sys.path.insert(0, str(path.parent))  # as for a script: it may import files next to it
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise TargetError(f"{place} is not a Python file")
    module = importlib.util.module_from_spec(found)
    if path.stem not in sys.modules and path.stem not in sys.stdlib_module_names:
        sys.modules[path.stem] = module  # files next to it may import it
    found.loader.exec_module(module)
    return module


def build(spec: str, module: ModuleType) -> Target:
    """Build the target's model; call :func:`seed_everything` first for reproducible weights.

    Raises:
        TargetError: the module lacks a required definition.
        Exception: whatever the user's functions raise.
    """
    place, name = split_spec(spec)
    source, imports = _source(place)
    if name is None:
        target = _from_module(module, place, source)
    else:
        if not hasattr(module, name):
            raise TargetError(f"{place} does not define {name}", f"it defines: {_names(module)}")
        target = _from_object(getattr(module, name), module, f"{source}[{name!r}]", spec)
    _demand_uncompiled(target.model, place)
    target.build = [*imports, *target.build]
    if hasattr(module, "get_optimizer"):
        target.optimizer_source = f"optimizer = {source}['get_optimizer'](model)"
    with contextlib.suppress(OSError, TypeError):
        target.sha256 = hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()
    return target


def _demand_uncompiled(model: torch.nn.Module, place: str) -> None:
    for name, part in model.named_modules():
        if part._compiled_call_impl is not None or hasattr(part, "_orig_mod"):
            which = f"its part {name!r}" if name else "it"
            raise TargetError(
                f"the model of {place} is already compiled",
                f"{which} went through torch.compile, so there is no eager mode to compare with",
                hint="build the model without torch.compile",
            )


def _source(place: str) -> tuple[str, list[str]]:
    """An expression for a dictionary of the target's names, and the lines required before it.

    A file is imported as a module, since Dynamo imports the module of a function that it inlines.
    """
    if not place.endswith(".py"):
        return f"vars(importlib.import_module({place!r}))", ["import importlib"]
    path = Path(place)
    if "." in path.stem or path.stem in sys.stdlib_module_names:
        return f"runpy.run_path({place!r})", ["import runpy"]
    folder = f"sys.path.insert(0, {str(path.parent)!r})"  # it may import files next to it
    source = f"vars(importlib.import_module({path.stem!r}))"
    return source, ["import importlib", "import sys", folder]


def _own(module: ModuleType) -> list[tuple[str, Any]]:
    """The public names that a module defines itself."""
    found = [(n, v) for n, v in vars(module).items() if not n.startswith("_")]
    return [(n, v) for n, v in found if getattr(v, "__module__", None) == module.__name__]


def _names(module: ModuleType) -> str:
    own = [f"{name}()" if inspect.isfunction(value) else name for name, value in _own(module)]
    return ", ".join(own[:12]) or "nothing of its own"


def _from_module(module: ModuleType, place: str, source: str) -> Target:
    if hasattr(module, "get_model"):
        return _from_object(module.get_model, module, f"{source}['get_model']", place)
    if hasattr(module, "Model") and hasattr(module, "get_init_inputs"):
        model = module.Model(*module.get_init_inputs())
        lines = [f"target = {source}", "model = target['Model'](*target['get_init_inputs']())"]
        return _plain("KernelBench", model, lines, module, place)
    known = ("get_inputs", "get_loss", "get_optimizer")
    models = [name for name, value in vars(module).items() if isinstance(value, torch.nn.Module)]
    models += [name for name, value in _own(module) if _is_model_class(value)]
    functions = [name for name, value in _own(module) if inspect.isfunction(value)]
    guess = next((name for name in (*models, *functions) if name not in known), None)
    raise TargetError(
        f"{place} does not define get_model()",
        f"it defines: {_names(module)}",
        hint=f"autocompile tune {place}:{guess}" if guess else "autocompile init model.py",
    )


def _is_model_class(value: Any) -> bool:
    """Whether it is a class of modules that needs no arguments."""
    is_class = inspect.isclass(value) and issubclass(value, torch.nn.Module)
    return is_class and not _why_not_callable(value)


def _from_object(value: Any, module: ModuleType, expression: str, spec: str) -> Target:
    """A target from an AlgorithmConfig, RLModuleSpec or module, or a function that returns one."""
    is_module_class = inspect.isclass(value) and issubclass(value, torch.nn.Module)
    if inspect.isfunction(value) or is_module_class:
        if needed := _why_not_callable(value):
            raise TargetError(
                f"{spec}: {value.__name__} cannot be called without arguments: {needed}",
                "a target is an nn.Module, or a function or class that needs no arguments",
            )
        value, expression = value(), f"{expression}()"
    if any(cls.__module__.startswith("ray.rllib") for cls in type(value).__mro__):
        from autocompile.trial.target import rllib

        return _with_user_functions(rllib.from_object(value, expression), module)
    if isinstance(value, torch.nn.Module):
        kind = "functions" if hasattr(module, "get_model") else "nn.Module"
        return _plain(kind, value, [f"model = {expression}"], module, spec)
    raise TargetError(
        f"{spec} is a {type(value).__name__}",
        "a target is an nn.Module, AlgorithmConfig or RLModuleSpec, or a function that returns one",
    )


def _why_not_callable(function: Any, *args: Any) -> str:
    """Why something cannot be called with these arguments; empty if it can."""
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        return str(error)
    except ValueError:  # no signature
        pass
    return ""


def _plain(
    kind: str, model: torch.nn.Module, lines: list[str], module: ModuleType, spec: str
) -> Target:
    example = example_inputs(model)
    if example is None and not hasattr(module, "get_inputs"):
        raise no_inputs(spec, model)
    target = Target(kind, model, lines, example or (lambda _: None), adam, sum_of_floats)
    if example:
        target.fixed_batch, target.choices["inputs"] = True, "example_input_array of the model"
    return _with_user_functions(target, module)


def _with_user_functions(target: Target, module: ModuleType) -> Target:
    if hasattr(module, "get_inputs"):
        function = module.get_inputs
        fixed = target.fixed_batch = not inspect.signature(function).parameters
        target.make_inputs = lambda batch_size: function() if fixed else function(batch_size)
        for phase in (phases.FORWARD_TRAIN, phases.TRAIN_STEP):
            target.phase_inputs.pop(phase, None)
        target.choices["inputs"] = "get_inputs() of the target"
    if hasattr(module, "get_optimizer"):
        target.make_optimizer = module.get_optimizer
        target.choices["optimizer"] = "get_optimizer() of the target"
    if hasattr(module, "get_loss"):
        target.loss = module.get_loss
        target.choices["loss"] = "get_loss() of the target"
    if hasattr(module, "check") and not _why_not_callable(module.check, None, None):
        target.check = module.check
        target.choices["comparison"] = "check() of the target"
    elif hasattr(module, "check") and hasattr(module, "get_model"):  # else it is unrelated
        raise TargetError("the target's check() cannot be called as check(expected, actual)")
    return target


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The default optimizer: Adam with torch's defaults over all parameters."""
    return torch.optim.Adam(model.parameters())


def sum_of_floats(output: Any, inputs: Any) -> torch.Tensor:
    """The default loss: the sum of all floating outputs, as in PyTorch's dynamo benchmarks.

    Raises:
        TargetError: no output can be differentiated.
    """
    tensors = (x for x in result_tensors(output) if x.is_floating_point() and x.requires_grad)
    floats = [x.sum().float() for x in tensors]
    if not floats:
        raise TargetError("no output of the model depends on its parameters, so there is no loss")
    return torch.stack(floats).sum()
