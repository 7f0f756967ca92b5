"""For users of PyTorch Lightning: ``from autocompile.lightning import TunedCallback``."""

from __future__ import annotations

from typing import Any

from autocompile.errors import UsageError
from autocompile.runtime.apply import InTraining

try:
    from pytorch_lightning import Callback
    from pytorch_lightning.utilities.rank_zero import rank_zero_info
except ImportError:  # the same under its other name
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities.rank_zero import rank_zero_info

_NOT_CLIPPED = (
    "a fused step unscales its gradients by itself, and Lightning clips none of such a step "
    "(precision 16-mixed with gradient_clip_val)"
)
_HINT = 'TunedCallback(..., module="net"), the attribute that was tuned'


class TunedCallback(Callback):  # type: ignore[misc]
    """Applies tuned settings in place when ``fit`` begins; keys of checkpoints stay.

    Args:
        settings: a file written by ``autocompile export -o``, or a Result.
        module: the attribute of the LightningModule that was tuned, as ``net`` or ``net.encoder``;
            empty for the LightningModule itself, where its training step calls ``self(...)``.
        batch_size: selects the settings of the nearest measured size.
        keep_memory: as of :func:`autocompile.apply`.

    Raises:
        UsageError: of ``fit``: the settings do not fit, or the training step does not use them.
    """

    def __init__(
        self,
        settings: Any,
        module: str = "",
        batch_size: int | None = None,
        keep_memory: bool = True,
    ) -> None:
        self._in_training = InTraining(settings, keep_memory)
        self._module, self._batch_size = module, batch_size

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        # By now optimizers have the state of a checkpoint.
        if not self._module and trainer.strategy.model is not pl_module:
            raise UsageError(
                "a strategy that wraps the LightningModule calls all of its training step",
                hint=_HINT,
            )
        try:
            model = pl_module.get_submodule(self._module)
        except AttributeError as error:
            raise UsageError(str(error), hint=_HINT) from error
        is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        clips = bool(trainer.gradient_clip_val)
        why = _NOT_CLIPPED if clips and is_scaled else ""
        applied = self._in_training.apply(
            model, trainer.optimizers, self._batch_size, why
        )
        if not is_scaled:
            # Lightning takes each fused step for one that unscales, and would clip none of it,
            # by its own option, in a hook or by hand.
            for optimizer in trainer.optimizers:
                optimizer._step_supports_amp_scaling = False
        rank_zero_info(f"autocompile: {applied}")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self._in_training.demand_used(
            'TunedCallback(..., module="net"), the attribute it calls'
        )
