"""A user's own unit of work: what ``get_step`` of the target returns, and the state it keeps."""

from __future__ import annotations

import copyreg
import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from autocompile.errors import TargetError
from autocompile.trial.target.target import seed_everything
from autocompile.trial.verify.outputs import copies, is_writable

_DEPTH = 4  # of objects in objects, such as a cache of layers of tensors
_MANY = 1000  # parts of a container: one with more, such as a data set, is no state of a step
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_WHOLE = (torch.Tensor, torch.optim.Optimizer, ModuleType, type)
_NO_DEPTH = (list, tuple, dict, deque, FunctionType, MethodType, torch.nn.Module)

# What a module has that no call changes.
_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"_modules", "_parameters", "_buffers"}
_SILENT = ("", "_modules", "_parameters", "_buffers")  # parts that are no part of a path

Step = Callable[[Any], Any]


def maker_of(get_step: Callable[..., Any], place: str) -> tuple[Callable[..., Step], bool]:
    """``get_step`` as a function of a model and an optimizer, and whether it trains."""
    names = inspect.signature(get_step).parameters
    needed = [p for p in names.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    trains = "optimizer" in names or len(needed) > 1

    def make(model: torch.nn.Module, optimizer: Any) -> Step:
        seed_everything(0)  # what it draws is the same on each side
        if "optimizer" in names:
            step = get_step(model, optimizer=optimizer)
        else:
            step = get_step(model, optimizer) if trains else get_step(model)
        if not callable(step):
            raise TargetError(
                f"get_step() of {place} returns a {type(step).__name__}, which cannot be called",
                hint="def get_step(model): ... return step   (a function of the inputs)",
            )
        if inspect.iscoroutinefunction(step) or inspect.isgeneratorfunction(step):
            raise TargetError(
                f"get_step() of {place} returns a coroutine or generator function",
                "a call of it returns before any of its code has run, so there is nothing to time",
                hint="let the step be a plain function that does all its work before it returns",
            )
        return step  # type: ignore[no-any-return]

    return make, trains


def demand_calls(model: torch.nn.Module, run: Callable[[], Any]) -> Any:
    """Make a call of a step; a TargetError if it calls no part of the model that it was given."""
    called: list[torch.nn.Module] = []
    hooks = [m.register_forward_pre_hook(lambda m, _: called.append(m)) for m in model.modules()]
    try:
        result = run()
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise TargetError(
            "the step of get_step() does not call the model that it is given",
            "settings are applied to that model, a copy, so they would have no effect: the step "
            "uses another one, such as a global",
            hint="def get_step(model, optimizer): ... and call this model in the step",
        )
    return result


class KeptState:
    """What a step keeps between its calls in what it closes over, and in what that holds.

    Args:
        given: what it was made of, whose state is known.

    Attributes:
        optimizers: those that it has made itself.
        known: ids of what is left out, since another keeps it.
    """

    def __init__(self, step: Step, *given: Any) -> None:
        self._step = step
        self.known: set[int] = set()
        for each in given:
            self.known.add(id(each))
            if isinstance(each, torch.nn.Module):
                self.known.update(map(id, (*each.modules(), *each.parameters(), *each.buffers())))
        found = (x for _, x in self._found())
        self.optimizers = [x for x in found if isinstance(x, torch.optim.Optimizer)]

    def tensors(self) -> dict[str, torch.Tensor]:
        """By path, those that it holds now."""
        return {path: x for path, x in self._found() if isinstance(x, torch.Tensor)}

    def keep(self) -> Any:
        """A copy of all tensors, and of plain values such as a position, for :meth:`adopt`."""
        tensors = [*self.tensors().values()]
        copied = dict(zip(map(id, tensors), copies(tensors), strict=True))
        return _kept(self._step, {*self.known}, _DEPTH, copied)

    def adopt(self, kept: Any) -> None:
        """Take what this step or that of another side has kept."""
        with torch.no_grad():
            self._put_back(self._step, kept)

    def _found(self) -> Iterator[tuple[str, Any]]:
        return _walk(self._step, "step", {*self.known}, _DEPTH)

    def _put_back(self, mine: Any, kept: Any) -> Any:
        """What has to stand in the place of ``mine``."""
        if isinstance(kept, torch.Tensor):
            is_there = isinstance(mine, torch.Tensor) and is_writable(mine)
            if is_there and mine.shape == kept.shape:
                mine.copy_(kept)  # compiled code knows where it is
                return mine
            return kept.to(getattr(mine, "device", kept.device), copy=True)
        if not isinstance(kept, _Kept):
            return mine if kept is _ELSEWHERE else kept
        old = _parts(mine) if type(mine) is kept.kind else None
        new = {k: self._put_back((old or {}).get(k, _ELSEWHERE), x) for k, x in kept.parts.items()}
        new = {key: value for key, value in new.items() if value is not _ELSEWHERE}
        if old is None:  # it has not been there, or is another thing now
            return _made(kept.kind, new, mine)
        if old.keys() == new.keys() and all(_is_same(old[key], new[key]) for key in new):
            return mine
        return _made(kept.kind, new, mine) if isinstance(mine, tuple) else _write(mine, new)


_ELSEWHERE: Any = object()  # in place of what a step does not keep itself


@dataclass
class _Kept:
    """A copy of a container or an object."""

    kind: type
    parts: dict[Any, Any]


def _kept(thing: Any, seen: set[int], depth: int, copied: Mapping[int, torch.Tensor]) -> Any:
    if _is_plain(thing):
        return thing
    if id(thing) in seen:
        return _ELSEWHERE
    seen.add(id(thing))
    parts = _parts(thing) if depth else None
    if parts is None:
        return copied.get(id(thing), _ELSEWHERE)
    depth -= not isinstance(thing, _NO_DEPTH)
    return _Kept(type(thing), {k: _kept(x, seen, depth, copied) for k, x in [*parts.items()]})


def _walk(thing: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """A thing and all that is reached from it, once each, by path."""
    if _is_plain(thing) or id(thing) in seen:
        return
    seen.add(id(thing))
    yield path, thing
    depth -= not isinstance(thing, _NO_DEPTH)
    for name, value in [*(_parts(thing) or {}).items()] if depth >= 0 else ():
        yield from _walk(value, path if name in _SILENT else f"{path}.{name}", seen, depth)


def _is_plain(thing: Any) -> bool:
    return type(thing) in _PLAIN or isinstance(thing, Enum)


def _is_same(old: Any, new: Any) -> bool:
    return old is new or (_is_plain(new) and type(old) is type(new) and bool(old == new))


def _parts(thing: Any) -> dict[Any, Any] | None:
    """What a thing consists of, by name or position; None if a step keeps no parts of it."""
    of_torch = getattr(thing if isinstance(thing, FunctionType) else type(thing), "__module__", "")
    if isinstance(thing, _WHOLE) or str(of_torch).startswith("torch._"):
        return None
    if isinstance(thing, (list, tuple, dict, deque)):
        items = thing if isinstance(thing, dict) else dict(enumerate(thing))
        return items if len(thing) <= _MANY else None
    if isinstance(thing, FunctionType):
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
        variables = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
        return {**variables, "()": thing.__defaults__, "": vars(thing)}
    if isinstance(thing, MethodType):
        return {"self": thing.__self__, "": thing.__func__}
    if isinstance(thing, functools.partial):
        return {"": thing.func, "args": thing.args, "keywords": thing.keywords}
    by_value: Any = type(thing).__hash__
    if by_value not in (object.__hash__, None):  # it does not change, and may be another's too
        return None
    slots = (name for name in copyreg._slotnames(type(thing)) if hasattr(thing, name))  # type: ignore[attr-defined]
    every = {**getattr(thing, "__dict__", {}), **{name: getattr(thing, name) for name in slots}}
    without = _OF_MODULES if isinstance(thing, torch.nn.Module) else ()
    return {name: value for name, value in every.items() if name not in without}


def _write(thing: Any, parts: dict[Any, Any]) -> Any:
    """Let a thing consist of these parts."""
    if isinstance(thing, dict):
        for name in thing.keys() - parts.keys():
            del thing[name]
        thing.update(parts)
    elif isinstance(thing, (list, deque)):
        thing.clear()
        thing.extend(parts.values())
    elif isinstance(thing, FunctionType):
        cells = dict(zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True))
        for name in cells.keys() & parts.keys():
            cells[name].cell_contents = parts[name]
    elif not isinstance(thing, (MethodType, functools.partial)):
        for name in (_parts(thing) or {}).keys() - parts.keys():
            object.__delattr__(thing, name)
        for name, value in parts.items():
            object.__setattr__(thing, name, value)
    return thing


def _made(kind: type, parts: dict[Any, Any], otherwise: Any) -> Any:
    """A container of these parts; of an object nothing can be made."""
    if kind is dict:
        return parts
    if hasattr(kind, "_fields"):
        return kind(*parts.values())
    return kind(parts.values()) if kind in (list, tuple) else otherwise
