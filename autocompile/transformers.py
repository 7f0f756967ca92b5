"""For users of Transformers: ``from autocompile.transformers import TunedCallback``."""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback

from autocompile.errors import UsageError
from autocompile.runtime.apply import InTraining

_log = logging.getLogger("autocompile")


class TunedCallback(TrainerCallback):  # type: ignore[misc]
    """Applies tuned settings in place when ``Trainer.train`` begins; keys of checkpoints stay.

    Uses the settings of the nearest measured size to ``per_device_train_batch_size``.

    Args:
        settings: a file written by ``autocompile export -o``, or a Result.
        keep_memory: as of :func:`autocompile.apply`.

    Raises:
        UsageError: of ``train``: the settings do not fit, something else compiles the model, or it
            is copied to several GPUs.
    """

    def __init__(self, settings: Any, keep_memory: bool = True) -> None:
        self._in_training = InTraining(settings, keep_memory)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        if args.n_gpu > 1:
            raise UsageError(
                "DataParallel copies the model to several GPUs, and the settings are of one",
                hint="CUDA_VISIBLE_DEVICES=0, or a process for each GPU (torchrun)",
            )
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        inner = getattr(optimizer, "optimizer", optimizer)  # inside Accelerate's
        applied = self._in_training.apply(
            model, [inner], args.per_device_train_batch_size
        )
        if state.is_world_process_zero:
            _log.info("%s", applied)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._in_training.demand_used("TrainingArguments(torch_compile=False)")
