"""Inputs of a model that comes without get_inputs: its own example, or a guess for the error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from autocompile.errors import TargetError

__all__ = ["example_inputs", "no_inputs"]


def example_inputs(model: nn.Module) -> Callable[[int | None], Any] | None:
    """What Lightning calls ``example_input_array``, new for each call; None if there is none."""
    example = getattr(model, "example_input_array", None)
    return None if example is None else lambda _: copy.deepcopy(example)


def no_inputs(spec: str, model: nn.Module) -> TargetError:
    """The error of a target without inputs: what to add, with a guess where there is one."""
    return TargetError(
        f"{spec} has no get_inputs(batch_size) next to it",
        "get_inputs returns a tuple or list for model(*x), a dict for model(**x), or a tensor",
        *_guess(model),
        hint="autocompile init model.py   (writes a file to start from)",
    )


def _guess(model: nn.Module) -> tuple[str, ...]:
    """What get_inputs may look like: by the layer assigned first, which may not be called first."""
    layer = next((m for m in model.modules() if next(m.parameters(False), None) is not None), None)
    if isinstance(layer, nn.Linear):
        made = f"torch.randn(batch_size, {layer.in_features})"
    elif isinstance(layer, nn.Embedding):
        made = f"torch.randint({layer.num_embeddings}, (batch_size, 128))"
    elif isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        sizes = ", ".join(["64"] * len(layer.kernel_size))
        made = f"torch.randn(batch_size, {layer.in_channels}, {sizes})"
    else:
        return ()
    return (
        f"its first layer is {type(layer).__name__}, so perhaps (with your own sizes):",
        f"def get_inputs(batch_size): return ({made},)",
    )
