"""Regional compilation: the blocks that a model repeats are compiled, one artifact for all.

A model of 24 equal layers compiles in the time of one layer, at some cost in speed, since nothing
is fused across a block's border. See torch's recipe "Reducing torch.compile cold start compilation
time with regional compilation".
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch

__all__ = ["Regions", "regions_of"]

# They hold modules and are never called themselves.
_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList)
_names = (f"block_{number}" for number in itertools.count())


class Regions:
    """The repeated blocks of a model, outermost only.

    Attributes:
        blocks: name within the model and module, in the model's order.
    """

    def __init__(self, blocks: list[tuple[str, torch.nn.Module]]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def describe(self) -> str:
        """For a screen: ``6 TransformerEncoderLayer``."""
        counts = Counter(type(block).__name__ for _, block in self.blocks)
        return ", ".join(f"{count} {name}" for name, count in counts.items())

    def compile(self, **kwargs: Any) -> None:
        """Compile each block in place.

        Args:
            kwargs: of ``torch.compile``.
        """
        codes: dict[Any, CodeType] = {}
        for _, block in self.blocks:
            # Options of its own: torch.compile takes some out of the dictionary it is given.
            own = {k: dict(v) if k == "options" else v for k, v in kwargs.items()}
            _compile_block(block, own, codes)


def _compile_block(
    block: torch.nn.Module, kwargs: dict[str, Any], codes: dict[Any, CodeType]
) -> None:
    """Compile a module in place.

    For a class of torch's own ``Module.compile`` (2.13) compiles nothing: Dynamo passes over every
    function of ``torch.nn`` that it does not meet within another one.

    Args:
        block: repeated, or the first of its structure.
        kwargs: of ``torch.compile``.
        codes: what was made for each structure so far; added to.
    """
    if not str(type(block).forward.__module__).startswith("torch.nn."):
        # Not block.compile: a subclass may have a method of this name and another meaning.
        torch.nn.Module.compile(block, **kwargs)
        return
    call: Callable[..., Any] = block._call_impl

    def called(*args: Any, **given: Any) -> Any:
        return call(*args, **given)

    # Dynamo counts recompilations, and learns which sizes change, by code, its line and its name:
    # with one for all, blocks of other structures would be one block that changes.
    own = called.__code__.replace(co_name=next(_names))
    called.__code__ = codes.setdefault(_signature(block), own)
    # Where Module.compile keeps it: what is copied or saved goes without.
    block._compiled_call_impl = torch.compile(called, **kwargs)


def regions_of(model: torch.nn.Module) -> Regions:
    """The largest blocks of which the model has more than one of the same structure.

    Blocks are equal if their classes, their children's and the shapes of their tensors are; where
    in the model they stand (in a list, a dict, a sequence, attributes of their own) is no matter.
    One that is registered in two places counts once.
    """
    counts = Counter(_signature(m) for m in model.modules() if _is_block(m))
    return Regions(list(_outermost(model, "", counts, set())))


def _outermost(
    module: torch.nn.Module, name: str, counts: Counter[Any], seen: set[int]
) -> Iterator[tuple[str, torch.nn.Module]]:
    for child_name, child in module.named_children():
        if id(child) in seen:
            continue
        seen.add(id(child))
        place = f"{name}.{child_name}" if name else child_name
        if _is_block(child) and counts[_signature(child)] > 1:
            yield place, child
        else:
            yield from _outermost(child, place, counts, seen)


def _is_block(module: torch.nn.Module) -> bool:
    """Worth compiling by itself: it calls others, and has weights."""
    if isinstance(module, (*_CONTAINERS, torch.jit.ScriptModule)):  # a script is compiled already
        return False
    if type(module) is torch.nn.Sequential and len(module) < 2:
        return False
    return any(True for _ in module.children()) and any(True for _ in module.parameters())


def _signature(module: torch.nn.Module) -> Any:
    """Equal for modules that Dynamo can serve with one graph."""
    # One that stands in two places is called twice.
    parameters = module.named_parameters(remove_duplicate=False)
    tensors = (*parameters, *module.named_buffers(remove_duplicate=False))
    children = module.named_modules(remove_duplicate=False)
    return (
        type(module),
        tuple((name, type(child)) for name, child in children),
        tuple((name, tuple(t.shape), t.dtype) for name, t in tensors),
    )
