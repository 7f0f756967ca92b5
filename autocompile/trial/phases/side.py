"""Side: one copy of a model with the call of a phase, eager or compiled."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocompile.runtime.applying import process_of
from autocompile.trial.target.state import is_expanded
from autocompile.trial.verify.outputs import View

__all__ = ["Side"]


@dataclass
class Side:
    """One copy of the model with the call of a phase, eager or compiled.

    Attributes:
        model: this side's copy.
        call: the timed unit; takes no argument.
        view: turns the result of ``call`` into the view that is compared with the other side.
        grad: whether gradients are enabled.
        inputs: the current inputs, which ``call`` reads each time.
        held: returns the tensors that calls change.
        saved: their values at the last ``keep``.
        optimizers: the optimizers that ``call`` steps.
        steps: ``t``, the step count that RLlib passes to exploration; may be empty.
        numbers: plain numbers that calls change, as of the last ``keep``.
        forget: drops data that calls accumulate.
        is_eager: nothing is compiled.
        reuses_outputs: a call may overwrite the previous result (CUDA graphs).
        process: what it sets for the process while it runs, such as threads.
        bakes: the compiled code holds the weights, so writing to one costs a refresh.
        draws_itself: its random numbers may differ from eager's for the same seed.
    """

    model: torch.nn.Module
    grad: bool
    inputs: Any = None
    call: Callable[[], Any] = lambda: None
    view: Callable[[Any], View] = lambda output: {"outputs": output}
    saved: list[torch.Tensor] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    steps: dict[str, Any] = field(default_factory=dict)
    numbers: list[dict[str, Any]] = field(default_factory=list)
    forget: Callable[[], None] = lambda: None
    held: Callable[[], Any] = lambda: None
    is_eager: bool = True
    reuses_outputs: bool = False
    process: Mapping[str, Any] = field(default_factory=dict)
    bakes: bool = False
    draws_itself: bool = False

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """The phase's grad mode, and the threads and precision of the setting."""
        with process_of(self.process), torch.set_grad_enabled(self.grad):
            yield

    def run(self) -> Any:
        """Call once in its context."""
        with self.context():
            return self.call()

    def keep(self) -> None:
        """Save the state that calls change."""
        self.saved = [t.detach().clone() for t in self.changing]
        self.numbers = [
            {key: value for key, value in each.items() if type(value) in (int, float)}
            for each in self._dictionaries()
        ]

    def restore(self) -> None:
        """Restore the saved state; tensors in place, so compiled code stays valid."""
        self._take(self.saved, self.numbers)

    def adopt(self, other: Side) -> None:
        """Take the state that another side has saved."""
        self._take(other.saved, other.numbers)

    @property
    def changing(self) -> list[torch.Tensor]:
        """The tensors that calls change, in the same order on both sides."""
        leaves = (t for t in pytree.tree_leaves(self.held()) if isinstance(t, torch.Tensor))
        return [t for t in leaves if not is_expanded(t)]

    def _dictionaries(self) -> list[dict[str, Any]]:
        """Dictionaries that may hold plain numbers, such as step counts of optimizers."""
        of_optimizers = ([*o.param_groups, *o.state.values()] for o in self.optimizers)
        return [self.steps, *itertools.chain(*of_optimizers)]

    def _take(self, values: list[torch.Tensor], numbers: list[dict[str, Any]]) -> None:
        # Looked up again, since a call may replace a buffer's tensor.
        with torch.no_grad():
            for tensor, value in zip(self.changing, values, strict=False):
                if tensor.shape == value.shape and not (self.bakes and torch.equal(tensor, value)):
                    tensor.copy_(value)
        self.forget()
        # Not booleans: Dynamo may have changed flags of the compiled side.
        for own, kept in zip(self._dictionaries(), numbers, strict=False):
            own.update({k: v for k, v in kept.items() if type(own.get(k)) is type(v)})
