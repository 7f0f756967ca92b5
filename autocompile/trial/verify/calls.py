"""Makes the calls that are compared, each with its own seed and batch of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.trial.phases.phases import make_side
from autocompile.trial.phases.side import Side, copy_inputs
from autocompile.trial.target.target import Target, seed_everything
from autocompile.trial.verify.float64 import in_float64
from autocompile.trial.verify.outputs import Held, View

__all__ = ["Calls"]

_CALLS = 3


class Calls:
    """The calls of a phase.

    Args:
        target: the model and its inputs.
        phase: the unit of work.
        draws: two batches of inputs with different values.
        seed: call ``n`` uses ``seed + n``.
    """

    def __init__(self, target: Target, phase: str, draws: tuple[Any, Any], seed: int) -> None:
        self._target, self._phase, self._draws, self._seed = target, phase, draws, seed
        self._is_forward = phase_of(phase).is_forward

    def another_side(self, config: CompileConfig = EAGER) -> Side:
        """A new side of the same phase with the initial weights."""
        return make_side(self._target, self._phase, self._draws[0], config)

    def seeded_call(self, side: Side, index: int) -> Any:
        """Make call number ``index`` with its seed and batch of inputs."""
        # A copy, since a model may change its inputs in place.
        side.inputs = copy_inputs(self._draws[index % 2])
        seed_everything(self._seed + index)
        return side.run()

    def _first_views(self, side: Side, *first: Any) -> Iterator[tuple[int, View, list[str]]]:
        """Make the first calls, or those after the output ``first``.

        Yields the number of each call, its view and the paths of outputs that it has overwritten.
        """
        held: Held | None = None
        for index in range(_CALLS):
            output = first[0] if first and not index else self.seeded_call(side, index)
            lost = held.overwritten() if held else []
            view = side.view(output)
            held = Held(view)
            yield index, view, lost

    def _in_float64(self, model: torch.nn.Module, calls: range) -> View | None:
        return in_float64(self._target, self._phase, model, self._draws, self._seed, calls)
