"""A user's own unit of work: what ``get_step`` of the target returns."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from autocompile.errors import TargetError
from autocompile.trial.model.target import seed_everything

_CALLS = 8  # of which one has to call the model: the first may only collect

Step = Callable[[Any], Any]


def maker_of(
    get_step: Callable[..., Any], place: str
) -> tuple[Callable[..., Step], bool]:
    """``get_step`` as a function of a model and an optimizer, and whether it trains."""
    names = inspect.signature(get_step).parameters
    needed = [
        p for p in names.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL
    ]
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
    """Make calls of a step; a TargetError if they call no part of the model that it was given."""
    called: list[torch.nn.Module] = []
    hooks = [
        m.register_forward_pre_hook(lambda m, _: called.append(m))
        for m in model.modules()
    ]
    try:
        for _ in range(_CALLS):
            result = run()
            if called:
                return result
    finally:
        for hook in hooks:
            hook.remove()
    raise TargetError(
        f"{_CALLS} calls of the step of get_step() do not call the model that it is given",
        "settings are applied to that model, a copy, so they would have no effect: the step uses "
        "another one, such as a global, or collects for longer",
        hint="def get_step(model, optimizer): ... and call this model in each step",
    )


@contextlib.contextmanager
def optimizers_made() -> Iterator[list[torch.optim.Optimizer]]:
    """Context that lists the optimizers that are made in it."""
    made: list[torch.optim.Optimizer] = []
    usual = torch.optim.Optimizer.__init__

    def noted(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        usual(self, *args, **kwargs)
        made.append(self)

    torch.optim.Optimizer.__init__ = noted  # type: ignore[method-assign]
    try:
        yield made
    finally:
        torch.optim.Optimizer.__init__ = usual  # type: ignore[method-assign]
