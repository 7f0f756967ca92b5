"""Applies a CompileConfig with plain torch, in trials and in the user's process."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import torch

from autocompile.errors import UsageError
from autocompile.runtime.freezing import frozen
from autocompile.runtime.graphs import compiled, with_own_code
from autocompile.settings.backends import BACKENDS
from autocompile.settings.config import CompileConfig

# They hold modules and are never called.
_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList)
_names = (f"block_{number}" for number in itertools.count())


_ARGUMENTS = inspect.signature(torch.compile).parameters


def register_backend_of(name: str) -> None:
    """Import the package that registers the backend, if there is one; raises an ImportError."""
    known = BACKENDS.get(name)
    if known and (package := known.registered_by):
        for variable, value in known.variables:
            os.environ.setdefault(variable, value)
        try:
            importlib.import_module(package)
        except Exception as error:  # on a version mismatch ipex raises AttributeError
            raise ImportError(f"{package}: {type(error).__name__}: {error}") from error


def missing_compiler(device: torch.device) -> str:
    """Why Inductor can compile nothing for a CPU here; empty if it can."""
    if device.type != "cpu":
        return ""
    exceptions = importlib.import_module("torch._inductor.exc")
    try:
        importlib.import_module("torch._inductor.cpp_builder").get_cpp_compiler()
    except (exceptions.InvalidCxxCompiler, OSError):
        if named := os.environ.get("CXX"):
            return f"CXX={named} is no C++ compiler that works"
        return "no g++ was found (CXX names another compiler, as clang++)"
    return ""


def compile_function(
    function: Callable[..., Any],
    config: CompileConfig,
    model: torch.nn.Module | None = None,
) -> Callable[..., Any]:
    """Compile a function; ``model``, which it calls, is needed for regions and frozen weights."""
    if config.is_eager:
        return function
    register_backend_of(config.backend)
    kwargs = config.compile_kwargs()
    # torch 2.11 has none.
    if config.recompile_limit and "recompile_limit" not in _ARGUMENTS:
        limit = max(kwargs.pop("recompile_limit"), torch._dynamo.config.recompile_limit)
        torch._dynamo.config.recompile_limit = limit
    elif config.isolates_recompiles and "isolate_recompiles" in _ARGUMENTS:
        kwargs["isolate_recompiles"] = True
    if config.scope != "regional" and not config.freezing:
        return compiled(function, kwargs)
    if model is None:
        raise UsageError(f"{config.label()} needs a model, and this phase has none")
    if config.freezing:
        return frozen(function, kwargs)
    blocks = repeated_blocks(model)
    if not blocks:
        raise UsageError(
            f"{type(model).__name__} repeats no block, so it has no regions"
        )
    compile_blocks(blocks, kwargs)
    return function


def uses_cuda_graphs(config: CompileConfig) -> bool:
    """Whether torch may use CUDA graphs, whose outputs the next call overwrites."""
    if not torch.cuda.is_available() or config.backend != "inductor":
        return torch.cuda.is_available() and config.backend == "cudagraphs"
    inductor = importlib.import_module("torch._inductor.config")
    modes = importlib.import_module("torch._inductor").list_mode_options()
    options = {**modes.get(config.mode, {}), **dict(config.options)}
    return bool(options.get("triton.cudagraphs", inductor.triton.cudagraphs))


# Regional compilation: the repeated blocks of a model are compiled, with one artifact for all. Not
# by torch.compiler.nested_compile_region, which keeps the speed of the whole and takes twice as
# long to compile: studies/exports/REGIONAL.md.


def repeated_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The largest blocks that the model has more than once, in its order.

    Blocks are equal if their classes, their children's classes and the shapes of their tensors are
    equal, wherever they are in the model. A module registered in two places counts once.
    """
    counts = Counter(_signature(m) for m in model.modules() if _is_block(m))
    return list(_outermost(model, counts, set()))


def blocks_in_words(model: torch.nn.Module) -> str:
    """The repeated blocks, for example ``6 TransformerEncoderLayer``."""
    counts = Counter(type(block).__name__ for block in repeated_blocks(model))
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def compile_blocks(blocks: list[torch.nn.Module], kwargs: Mapping[str, Any]) -> None:
    """Compile each block in place with the arguments of ``torch.compile``.

    ``Module.compile`` (torch 2.13) compiles nothing for classes of ``torch.nn``: Dynamo skips their
    functions unless another function calls them.
    """
    # Blocks of one structure share it, and so their graphs.
    codes: dict[Any, CodeType] = {}
    for block in blocks:
        call: Any = block._call_impl
        if str(type(block).forward.__module__).startswith("torch.nn."):
            # Dynamo counts recompiles and detects dynamic sizes by code object, line and name.
            call = with_own_code(call, next(_names))
            call.__code__ = codes.setdefault(_signature(block), call.__code__)
        # The attribute of Module.compile, which is not copied or saved. Not block.compile: a
        # subclass may define another method of this name.
        block._compiled_call_impl = compiled(call, kwargs)


def _outermost(
    module: torch.nn.Module, counts: Counter[Any], seen: set[torch.nn.Module]
) -> Iterator[torch.nn.Module]:
    for child in module.children():
        if child in seen:
            continue
        seen.add(child)
        if _is_block(child) and counts[_signature(child)] > 1:
            yield child
        else:
            yield from _outermost(child, counts, seen)


def _is_block(module: torch.nn.Module) -> bool:
    """Whether it is worth compiling: it has submodules and weights."""
    # Scripts are already compiled.
    if isinstance(module, (*_CONTAINERS, torch.jit.ScriptModule)):
        return False
    return any(True for _ in module.children()) and any(
        True for _ in module.parameters()
    )


def _signature(module: torch.nn.Module) -> Any:
    """Equal for modules that can share one graph."""
    # Without removing duplicates: a module in two places is called twice.
    parameters = module.named_parameters(remove_duplicate=False)
    tensors = (*parameters, *module.named_buffers(remove_duplicate=False))
    children = module.named_modules(remove_duplicate=False)
    return (
        type(module),
        tuple((name, type(child)) for name, child in children),
        tuple((name, tuple(t.shape), t.dtype) for name, t in tensors),
    )
