"""A user's own unit of work: what ``get_step`` of the target returns, and the state it keeps."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, MutableMapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from autocompile.errors import TargetError
from autocompile.trial.target.target import seed_everything

_DEPTH = 6  # of objects in objects, such as a cache of layers of tensors
_MANY = 1000  # parts of a container: one with more, such as a data set, is no state of a step
_PLAIN = (torch.Tensor, ModuleType, type, str, bytes, int, float, complex, type(None))

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
    """What a step keeps between its calls, in what it closes over and in objects of that.

    Tensors are known by where they are at first: a list of losses may grow, a cache may not.

    Args:
        given: what it was made of, whose state is known.

    Attributes:
        optimizers: those that it has made itself.
    """

    def __init__(self, step: Step, *given: Any) -> None:
        self._step, self._given = step, {id(x) for x in given}
        self._names = [*self._tensors()]
        values = (value for each in self.dictionaries() for value in each.values())
        made = {id(x): x for x in values if isinstance(x, torch.optim.Optimizer)}
        self.optimizers = [x for key, x in made.items() if key not in self._given]

    def tensors(self) -> list[torch.Tensor]:
        now = self._tensors()
        return [now.get(name, torch.empty(0)) for name in self._names]

    def dictionaries(self) -> list[Any]:
        """What may hold plain numbers by name, such as a position."""
        return [*self._containers().values()]

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {
            f"{path}.{name}": value
            for path, container in self._containers().items()
            for name, value in container.items()
            if isinstance(value, torch.Tensor)
        }

    def _containers(self) -> dict[str, MutableMapping[Any, Any]]:
        return dict(_walk(self._step, "step", {*self._given}, _DEPTH))


def _walk(
    thing: Any, path: str, seen: set[int], depth: int
) -> Iterator[tuple[str, MutableMapping[Any, Any]]]:
    """The mappings from names to values that are reached from a thing, by path."""
    if isinstance(thing, (*_PLAIN, torch.optim.Optimizer)) or id(thing) in seen or not depth:
        return
    if isinstance(thing, (list, tuple, dict)) and len(thing) > _MANY:
        return
    seen.add(id(thing))
    parts: MutableMapping[Any, Any] = {}
    if isinstance(thing, torch.nn.Module):
        for name, module in thing.named_modules():
            place = f"{path}.{name}"
            yield place, vars(module)
            yield f"{place}.parameters", module._parameters
            yield f"{place}.buffers", module._buffers
    elif isinstance(thing, FunctionType):
        parts = _Cells(thing)
    elif isinstance(thing, MethodType):
        parts = {"self": thing.__self__, "function": thing.__func__}
    elif isinstance(thing, functools.partial):
        parts = {"function": thing.func, "args": thing.args, "keywords": thing.keywords}
    elif isinstance(thing, (list, tuple)):
        parts = dict(enumerate(thing))
    elif isinstance(thing, dict):
        parts = thing
    else:
        parts = getattr(thing, "__dict__", {})
    yield path, parts
    for name, value in [*parts.items()]:
        yield from _walk(value, f"{path}.{name}", seen, depth - 1)


class _Cells(MutableMapping[str, Any]):
    """The variables that a function closes over."""

    def __init__(self, function: FunctionType) -> None:
        names = function.__code__.co_freevars
        every = dict(zip(names, function.__closure__ or (), strict=True))
        self._cells = {}
        for name, cell in every.items():
            with contextlib.suppress(ValueError):  # it is set later
                _ = cell.cell_contents
                self._cells[name] = cell

    def __getitem__(self, name: str) -> Any:
        return self._cells[name].cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self._cells[name].cell_contents = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("a variable of a closure stays")

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)
