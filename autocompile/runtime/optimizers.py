"""Selects torch's implementation of an optimizer's step.

``for_loop`` updates one parameter after another, ``foreach`` all in a few calls, ``fused`` in one
kernel. ``capturable`` keeps step counts on the device, as CUDA graphs need. ``tensor_lr`` keeps the
learning rate in a tensor, so that a schedule does not recompile. ``compiled`` leaves the optimizer
as it is: :mod:`autocompile.runtime.applying` compiles its step.
"""

from __future__ import annotations

from typing import Any

import torch

from autocompile.errors import UsageError
from autocompile.settings.dimensions import OPTIMIZERS


def set_implementation(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Set the implementation, one of ``OPTIMIZERS``, of an optimizer that has not stepped yet."""
    if name in ("default", "compiled"):
        return
    if not _has(optimizer, name):
        raise UsageError(f"{type(optimizer).__name__} has no {name} implementation")
    if name == "fused":
        # As its constructor checks: a fused step on unsuitable parameters is wrong or crashes.
        if why_not := _why_not_fused(optimizer):
            raise UsageError(why_not)
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    # torch refuses both.
    others = {"foreach": False} if name == "fused" else {"fused": False}
    for group in optimizer.param_groups:
        if name == "tensor_lr":
            device = group["params"][0].device if group["params"] else None
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        else:
            flags = {**others, **OPTIMIZERS[name]}
            group.update({flag: on for flag, on in flags.items() if flag in group})


def leave_out_implementation(
    state: dict[str, Any], optimizer: torch.optim.Optimizer
) -> None:
    """Restore, in an optimizer's state dict, the implementation that it was constructed with."""
    defaults = optimizer.defaults
    for group in state["param_groups"]:
        flags = {"foreach", "fused", "capturable"} & group.keys() & defaults.keys()
        group.update({flag: defaults[flag] for flag in flags})
        if "lr" in group and not isinstance(defaults.get("lr"), torch.Tensor):
            group["lr"] = float(group["lr"])


def implementations(optimizer: torch.optim.Optimizer) -> list[str]:
    """Implementations available on the device of its parameters that differ from the current one.

    On a CPU ``foreach`` is a loop, and ``capturable`` is not supported.
    """
    groups = optimizer.param_groups
    on_cpu = all(p.device.type == "cpu" for group in groups for p in group["params"])
    unavailable = {"default", "compiled"} | (
        {"foreach", "capturable"} if on_cpu else set()
    )
    if _why_not_fused(optimizer):
        unavailable.add("fused")
    return [
        name
        for name in OPTIMIZERS
        if name not in unavailable
        and _has(optimizer, name)
        and not all(_steps_so(group, name, on_cpu) for group in groups)
    ]


def _has(optimizer: torch.optim.Optimizer, name: str) -> bool:
    return next(iter(OPTIMIZERS[name]), "lr") in optimizer.defaults


def _steps_so(group: dict[str, Any], name: str, on_cpu: bool) -> bool:
    """Whether a parameter group already uses it; on a GPU torch uses ``foreach`` by default."""
    if name == "tensor_lr":
        return isinstance(group["lr"], torch.Tensor)
    if name in ("fused", "capturable"):
        return bool(group.get(name))
    by_default = not on_cpu and not group.get("fused")
    foreach = by_default if group.get("foreach") is None else group["foreach"]
    return not group.get("fused") and foreach == (name == "foreach")


def _why_not_fused(optimizer: torch.optim.Optimizer) -> str:
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return "a differentiable optimizer cannot be fused"
        for p in group["params"]:
            if not p.is_floating_point() or p.device.type not in (
                "cpu",
                "cuda",
                "xpu",
                "mps",
            ):
                return f"parameters on {p.device} of {p.dtype} have no fused step"
    return ""
