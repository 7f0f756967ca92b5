"""Tuned settings in the loop of a trainer; the callbacks for Lightning and Transformers use it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from autocompile.errors import UsageError
from autocompile.runtime.apply import apply, chosen
from autocompile.runtime.inplace import apply_to_optimizer
from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import FORWARD, OPTIMIZER_STEP, TRAIN_STEP
from autocompile.settings.tuned import Tuned

__all__ = ["InTraining"]


class InTraining:
    """Applies settings to what is trained, and sees that they are used.

    Args:
        settings: as for :func:`autocompile.apply`.
    """

    def __init__(self, settings: Any) -> None:
        self._tuned = Tuned.read(settings)
        self._model: Any = None

    def apply(
        self,
        model: torch.nn.Module,
        optimizers: Iterable[torch.optim.Optimizer],
        batch_size: int | None = None,
    ) -> str:
        """Compile the forward pass with its backward, and change the optimizers' steps, in place.

        Uses the settings of ``train_step``, or else of ``forward`` and ``optimizer_step``.

        Args:
            model: what the training step calls.
            optimizers: after their state was loaded, which would take the settings back.
            batch_size: as for :func:`autocompile.apply`.

        Returns:
            What is applied, in words.

        Raises:
            UsageError: no such settings, or they compute no gradients or fit no optimizer.
        """
        name = TRAIN_STEP if TRAIN_STEP in self._tuned.phases else FORWARD
        choice = chosen(self._tuned, name, batch_size)
        if not choice.config.trains:
            raise UsageError(
                f"the settings of {name} compute no gradients: {choice.config.label()}",
                hint="autocompile tune model.py --phase train_step,optimizer_step",
            )
        step = CompileConfig("eager", optimizer=choice.config.optimizer)
        if OPTIMIZER_STEP in self._tuned.phases:
            step = chosen(self._tuned, OPTIMIZER_STEP).config
        apply(model, replace(self._tuned, phases={FORWARD: (choice,)}))
        for optimizer in optimizers:
            apply_to_optimizer(optimizer, step)
        self._model = model
        return f"{type(model).__name__}: {choice.config.label()}; optimizer step: {step.label()}"

    def demand_used(self, hint: str) -> None:
        """Raise a UsageError if the model was compiled and the training has not called it."""
        compiled = self._model._compiled_call_impl
        if compiled is not None and not compiled.calls:
            raise UsageError(
                f"the settings are not in use: the training step does not call "
                f"{type(self._model).__name__}, which they were applied to",
                hint=hint,
            )
