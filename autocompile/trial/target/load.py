"""Imports the user's file and makes a target of what it defines.

Runs the user's code, so it is used only in trial processes, never in the tuner.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from autocompile.errors import TargetError
from autocompile.settings import phases
from autocompile.trial.target.example import example_inputs, no_inputs
from autocompile.trial.target.target import Target, adam, sum_of_floats

__all__ = ["build", "import_target", "split_spec"]


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
