"""Selects torch's implementation of an optimizer's step.

``for_loop`` updates one parameter after another, ``foreach`` all in a few calls, ``fused`` in one
kernel. ``capturable`` keeps step counts on the device, as CUDA graphs need. ``tensor_lr`` keeps the
learning rate in a tensor, so that a schedule does not recompile. ``compiled`` leaves the optimizer
as it is: :mod:`autocompile.runtime.applying` compiles its step.

Fused kernels take parameters, gradients and moments as plain memory. On a CPU they do not look at
strides (torch 2.13), so moments from a checkpoint would be applied to other weights than theirs
once the weights are laid out otherwise. So all of them get the strides of the parameter.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autocompile.errors import UsageError
from autocompile.settings.dimensions import OPTIMIZERS

_SET = (
    "_autocompile_implementation"  # where an optimizer keeps the name of what was set
)
_BEFORE = "_autocompile_before"
_FLAGS = ("foreach", "fused", "capturable")


def set_implementation(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Set the implementation of an optimizer's step, one of ``OPTIMIZERS``.

    It stays when a state dict is loaded, and is left out of those that are saved: another program
    decides for itself. ``default`` and ``compiled`` take back what was set before.
    """
    if name in ("default", "compiled"):
        if _SET in vars(optimizer):
            vars(optimizer).pop(_SET)
            before: _Before = vars(optimizer).pop(_BEFORE)
            before.put_back(optimizer)
        return
    if not _has(optimizer, name):
        raise UsageError(f"{type(optimizer).__name__} has no {name} implementation")
    # As its constructor checks: a fused step on unsuitable parameters is wrong or crashes.
    if name == "fused" and (why_not := _why_not_fused(optimizer)):
        raise UsageError(why_not)
    vars(optimizer).setdefault(_BEFORE, _Before.of(optimizer))
    # torch refuses both.
    others = {"foreach": False} if name == "fused" else {"fused": False}
    for group in optimizer.param_groups:
        if name == "tensor_lr":
            device = group["params"][0].device if group["params"] else None
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        else:
            flags = {**others, **OPTIMIZERS[name]}
            group.update({flag: on for flag, on in flags.items() if flag in group})
            # Of groups that are added later, too.
            known = {f: on for f, on in flags.items() if f in optimizer.defaults}
            optimizer.defaults.update(known)
    vars(optimizer)[_SET] = name
    follow_state_dicts(optimizer)
    if name != "tensor_lr":
        _follow_flags(optimizer)


def fit_to_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Give gradients, and what is kept for each parameter, the strides of the parameter."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            _fit(optimizer, p)


@functools.cache
def fit_before_fused_steps() -> None:
    """Do so before each fused step, of any optimizer, from now on: once weights are laid out anew.

    A gradient may be assigned, and a state loaded, at any time.
    """
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if not torch.compiler.is_compiling():
        fit_fused(optimizer)


def fit_fused(optimizer: torch.optim.Optimizer) -> None:
    """Fit what a fused step takes as plain memory to its parameters."""
    for group in optimizer.param_groups:
        for p in group["params"] if group.get("fused") else ():
            if not p.is_contiguous():  # others have the strides that checkpoints have
                _fit(optimizer, p)


def _fit(optimizer: torch.optim.Optimizer, p: torch.Tensor) -> None:
    if p.grad is not None and _lies_otherwise(p.grad, p):
        p.grad = _laid_out(p.grad, p)
    state = optimizer.state.get(p, {})
    for name, kept in state.items():
        if isinstance(kept, torch.Tensor) and _lies_otherwise(kept, p):
            state[name] = _laid_out(kept, p)


def _lies_otherwise(x: torch.Tensor, p: torch.Tensor) -> bool:
    is_alike = x.layout is p.layout is torch.strided and x.shape == p.shape
    return is_alike and x.stride() != p.stride()


def _laid_out(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(p, dtype=x.dtype, device=x.device).copy_(x.detach())


@dataclass(frozen=True)
class _Before:
    """What an optimizer had before an implementation was set."""

    groups: list[dict[str, Any]]  # the flags of each
    defaults: dict[str, Any]  # those of groups that are added later
    unscales: Any  # whether a GradScaler leaves the division by its scale to the step

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> _Before:
        def flags(of: dict[str, Any]) -> dict[str, Any]:
            return {flag: of[flag] for flag in _FLAGS if flag in of}

        groups = [flags(group) for group in optimizer.param_groups]
        unscales = getattr(optimizer, "_step_supports_amp_scaling", None)
        return cls(groups, flags(optimizer.defaults), unscales)

    def put_into(self, groups: list[dict[str, Any]], lr: Any) -> None:
        """Restore the flags of groups; ``lr`` is what the optimizer was constructed with."""
        each = itertools.chain(self.groups, itertools.repeat(self.defaults))
        for group, flags in zip(groups, each, strict=False):
            group.update(flags)
            if "lr" in group and not isinstance(lr, torch.Tensor):
                group["lr"] = float(group["lr"])

    def put_back(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.defaults.update(self.defaults)
        self.put_into(optimizer.param_groups, optimizer.defaults.get("lr"))
        _follow_flags(optimizer)
        if self.unscales is not None:
            optimizer._step_supports_amp_scaling = self.unscales  # type: ignore[attr-defined]


def _follow_flags(optimizer: torch.optim.Optimizer) -> None:
    """Do what torch's constructors do for the flags that the groups have now."""
    is_fused = all(group.get("fused") for group in optimizer.param_groups)
    # Whether a GradScaler leaves the division by its scale to the step.
    optimizer._step_supports_amp_scaling = is_fused  # type: ignore[attr-defined]
    for group in optimizer.param_groups:
        # Else each would be read from the device in each step.
        beside = bool(group.get("fused") or group.get("capturable"))
        for p in group["params"]:
            count = optimizer.state.get(p, {}).get("step")
            if isinstance(count, torch.Tensor):
                device = p.device if beside else torch.device("cpu")
                optimizer.state[p]["step"] = count.to(device, torch.float32)


def follow_state_dicts(optimizer: torch.optim.Optimizer) -> None:
    """Keep what is loaded in step with what was applied, and what was applied out of what is saved."""
    if not vars(optimizer).get("_autocompile_follows"):
        vars(optimizer)["_autocompile_follows"] = True
        optimizer.register_load_state_dict_post_hook(_after_load)
        optimizer.register_state_dict_post_hook(_without_implementation)


def _after_load(optimizer: torch.optim.Optimizer) -> None:
    if name := vars(optimizer).get(_SET):
        set_implementation(optimizer, name)
    fit_to_parameters(optimizer)


def _without_implementation(
    optimizer: torch.optim.Optimizer, saved: dict[str, Any]
) -> dict[str, Any]:
    """A state dict as an untuned optimizer has it: its flags, and moments in the order of rows."""
    groups = [dict(group) for group in saved["param_groups"]]
    before: _Before | None = vars(optimizer).get(_BEFORE)
    if before:
        before.put_into(groups, optimizer.defaults.get("lr"))
    flags = (group.get("fused") or group.get("capturable") for group in groups)
    beside = before is None or any(flags)

    def as_usual(name: str, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
            return x
        return x.cpu() if name == "step" and not beside else x.contiguous()

    state = {
        key: {name: as_usual(name, x) for name, x in kept.items()}
        if isinstance(kept, dict)
        else kept
        for key, kept in saved["state"].items()
    }
    return {**saved, "param_groups": groups, "state": state}


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
