"""Imports the user's file and makes a target of what it defines.

Runs the user's code, so it is used only in trial processes, never in the tuner.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from autocompile.errors import TargetError, first_words
from autocompile.settings import phases
from autocompile.store.recorded_calls import RecordedCalls
from autocompile.store.targets import library_model, split_spec
from autocompile.trial.model.calls import Workload, first_call, from_function
from autocompile.trial.model.own_step import maker_of
from autocompile.trial.model.recorded import from_file
from autocompile.trial.model.target import Target, call_model

_FEW = 2  # samples of a batch that is only looked at
# Packages whose objects are targets, and the module that makes targets of them.
_LIBRARIES = {"ray.rllib": "autocompile.rllib.modules"}
# Functions that give no model.
_BESIDE = ("get_calls", "get_inputs", "get_loss", "get_optimizer", "get_step")


def import_target(spec: str) -> ModuleType:
    """Import a target's file by its path, or its module by its name, as if without arguments."""
    place, _ = split_spec(spec)
    sys.argv = [place]
    if library_model(spec):
        from autocompile.trial.model.library import import_library

        return import_library(spec)
    if not (place.endswith(".py") or Path(place).is_file()):
        sys.path.append(os.getcwd())
        return importlib.import_module(place)
    path = Path(place).resolve()
    # As for a script: it may import files next to it.
    sys.path.insert(0, str(path.parent))
    spec_of_file = importlib.util.spec_from_file_location(path.stem, path)
    if spec_of_file is None or spec_of_file.loader is None:
        raise TargetError(f"{place} is not a Python file")
    module = importlib.util.module_from_spec(spec_of_file)
    if path.stem not in sys.modules and path.stem not in sys.stdlib_module_names:
        sys.modules[path.stem] = module  # files next to it may import it
    spec_of_file.loader.exec_module(module)
    return module


def build(spec: str, module: ModuleType, calls: RecordedCalls | None = None) -> Target:
    """Build the target's model; call :func:`seed_everything` first for reproducible weights.

    Args:
        calls: what the model is called with, from a file; else the target's functions say it.
    """
    place, name = split_spec(spec)
    if library_model(spec):
        from autocompile.trial.model.library import build_library

        made = build_library(spec, module.library)
        target = _with_user_functions(made, module, calls)
    elif not name:
        target = _from_module(module, place, calls)
    elif hasattr(module, name):
        target = _from_object(getattr(module, name), module, spec, calls)
    else:
        defined = ", ".join(_names(module)) or "nothing"
        raise TargetError(f"{place} does not define {name}", f"it defines: {defined}")
    if calls is not None and calls.model != type(target.model).__name__:
        raise TargetError(
            f"the file of calls is of another model: it names {calls.model}",
            f"{spec} is a {type(target.model).__name__}",
            hint="autocompile record -- python PROGRAM   (of this model)",
        )
    _demand_eager(target.model, place)
    _fill_lazy(target)
    target.rebuild = lambda: build(spec, module, calls).model
    # A library has no file.
    with contextlib.suppress(OSError, TypeError, AttributeError):
        target.sha256 = hashlib.sha256(
            Path(str(module.__file__)).read_bytes()
        ).hexdigest()
    return target


def _demand_eager(model: nn.Module, place: str) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise TargetError(
            f"the model of {place} is compiled by torch.jit, which torch.compile does not take",
            f"it is a {type(model).__name__}",
            hint="give the model without torch.jit.script or torch.jit.trace; parts may have it",
        )
    for name, part in model.named_modules():
        if part._compiled_call_impl is not None or hasattr(part, "_orig_mod"):
            which = f"its part {name!r}" if name else "it"
            raise TargetError(
                f"the model of {place} is already compiled",
                f"{which} went through torch.compile, so there is no eager mode to compare with",
                hint="build the model without torch.compile",
            )


def _fill_lazy(target: Target) -> None:
    """Call a model once whose layers find out their widths at the first call."""
    if not any(map(is_lazy, (*target.model.parameters(), *target.model.buffers()))):
        return
    was_training = [part.training for part in target.model.modules()]
    with torch.no_grad():
        call_model(target.model.eval(), first_call(target.make_inputs(_FEW)))
    for part, training in zip(target.model.modules(), was_training, strict=True):
        part.training = training


def _names(module: ModuleType) -> list[str]:
    """The public names that a module defines itself: its models, functions and classes."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (
            isinstance(value, nn.Module)
            or getattr(value, "__module__", "") == module.__name__
        )
    ]


def _from_module(module: ModuleType, place: str, calls: RecordedCalls | None) -> Target:
    if hasattr(module, "get_model"):
        return _from_object(module.get_model, module, place, calls)
    if hasattr(module, "Model") and hasattr(module, "get_init_inputs"):
        model = module.Model(*module.get_init_inputs())
        return _plain("KernelBench", model, module, place, calls)
    names = _names(module)
    guesses = [name for name in names if name not in _BESIDE]
    raise TargetError(
        f"{place} does not define get_model()",
        f"it defines: {', '.join(names) or 'nothing'}",
        hint=f"autocompile tune {place}:{guesses[0]}"
        if guesses
        else "autocompile init model.py",
    )


def _from_object(
    value: Any, module: ModuleType, spec: str, calls: RecordedCalls | None
) -> Target:
    is_class = inspect.isclass(value) and issubclass(value, nn.Module)
    if is_class or inspect.isfunction(value):
        if needed := _why_not_callable(value):
            raise TargetError(
                f"{spec}: {value.__name__} cannot be called without arguments: {needed}",
                "a target is an nn.Module, or a function or class that needs no arguments",
            )
        value = value()
    for package, maker in _LIBRARIES.items():
        if any(cls.__module__.startswith(package) for cls in type(value).__mro__):
            made = importlib.import_module(maker).from_object(value)
            return _with_user_functions(made, module, calls)
    if isinstance(value, nn.Module):
        kind = "functions" if hasattr(module, "get_model") else "nn.Module"
        return _plain(kind, value, module, spec, calls)
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
    kind: str,
    model: nn.Module,
    module: ModuleType,
    spec: str,
    calls: RecordedCalls | None,
) -> Target:
    example = getattr(model, "example_input_array", None)  # of Lightning
    gives_inputs = hasattr(module, "get_inputs") or hasattr(module, "get_calls")
    if example is None and calls is None and not gives_inputs:
        raise TargetError(
            f"{spec} has no get_inputs(batch_size) next to it",
            "get_inputs returns a tuple or list for model(*x), a dict for model(**x), or a tensor",
            hint="autocompile init model.py   (writes a file to start from)",
        )
    target = Target(kind, model, lambda _: copy.deepcopy(example))
    if example is not None:
        target.fixed_batch, target.choices["inputs"] = (
            True,
            "example_input_array of the model",
        )
    return _with_user_functions(target, module, calls)


def _demand_plain(target: Target, function: str) -> None:
    if library := target.library:
        raise TargetError(
            f"{function} is for a plain model: {library.title} makes the calls and steps of its own"
        )


def _take_calls(target: Target, make: Callable[[], Workload], source: str) -> None:
    """Let a target make calls of several shapes, in place of the inputs that it has."""
    _demand_plain(target, source)
    target.fixed_batch = True
    target.phase_inputs.clear()
    target.make_inputs = lambda _: make()
    target.choices["inputs"] = source


def _form_of_inputs(target: Target) -> tuple[Any, str]:
    """Inputs in whose form recorded calls are given, and what a report says of such calls.

    Only a step or a loss takes inputs apart. Without one, the target's own inputs are not made:
    they may take long, need files that are not here, or fail.
    """
    source = "the file of calls"
    if not target.choices.keys() & {"step", "loss"}:
        return None, source
    try:
        return first_call(target.make_inputs(_FEW)), source
    except Exception as error:
        own = target.choices.get("inputs", "the target's own inputs")
        why = f"since {own} fails: {first_words(error)}"
        return None, f"{source}, in the form in which they were recorded, {why}"


def _with_user_functions(
    target: Target, module: ModuleType, calls: RecordedCalls | None
) -> Target:
    if hasattr(module, "get_inputs"):
        function = module.get_inputs
        fixed = target.fixed_batch = not inspect.signature(function).parameters
        target.make_inputs = lambda batch_size: (
            function() if fixed else function(batch_size)
        )
        for phase in (phases.FORWARD_TRAIN, phases.TRAIN_STEP):
            target.phase_inputs.pop(phase, None)
        target.choices["inputs"] = "get_inputs() of the target"
    if hasattr(module, "get_calls"):
        get_calls = module.get_calls
        _take_calls(
            target,
            lambda: from_function(get_calls, str(module.__name__)),
            "get_calls() of the target",
        )
    if hasattr(module, "get_step"):
        _demand_plain(target, "get_step()")
        target.make_step, trains = maker_of(module.get_step, str(module.__name__))
        target.own_phase = phases.STEP if trains else phases.INFERENCE_STEP
        target.choices["step"] = "get_step() of the target"
    if hasattr(module, "get_optimizer"):
        target.make_optimizer = module.get_optimizer
        target.choices["optimizer"] = "get_optimizer() of the target"
    if hasattr(module, "get_loss"):
        target.loss = module.get_loss
        target.choices["loss"] = "get_loss() of the target"
    if calls is not None:
        like, source = _form_of_inputs(target)
        forward = target.model.forward
        _take_calls(target, lambda: from_file(calls, forward, like), source)
    if hasattr(module, "check") and not _why_not_callable(module.check, None, None):
        target.check = module.check
        target.choices["comparison"] = "check() of the target"
    elif hasattr(module, "check") and hasattr(
        module, "get_model"
    ):  # else it is unrelated
        raise TargetError(
            "the target's check() cannot be called as check(expected, actual)"
        )
    return target
