"""Selects torch's implementation of an optimizer's step.

``for_loop`` updates one parameter after another, ``foreach`` all in a few calls, ``fused`` in one
kernel. ``capturable`` keeps step counts on the device, as CUDA graphs need. ``tensor_lr`` keeps the
learning rate in a tensor, so that a schedule does not recompile. ``compiled`` leaves the optimizer
as it is: :mod:`autocompile.runtime.applying` compiles its step.

Fused kernels take parameters, gradients and moments as plain memory. On a CPU they do not look at
strides (torch 2.13), so moments from a checkpoint would be applied to other weights than theirs
once the weights are laid out otherwise. So all of them get the strides and the dtype of the
parameter, and a parameter whose memory holds other values between its own is refused.

A state dict, a copy and a pickle of an optimizer are those of an untuned one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autocompile.errors import UsageError
from autocompile.settings.dimensions import OPTIMIZERS

_SET = (
    "_autocompile_implementation"  # where an optimizer keeps the name of what was set
)
_BEFORE = "_autocompile_before"
_FOLLOWS = "_autocompile_follows"
_DIVIDE_BY_RATE = (torch.optim.Adam, torch.optim.AdamW)
# Of a rate of 0 in a step that divides by it: no weight of any dtype moves by so much.
_LEAST_RATE = 1e-30
_FLAGS = ("foreach", "fused", "capturable")
_SLICE = (
    "a parameter is a slice of another tensor: a fused step would also change the values that lie "
    "between its own"
)


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
    # One implementation does not build on another.
    if _BEFORE in vars(optimizer):
        vars(optimizer)[_BEFORE].put_back(optimizer)
    else:
        vars(optimizer)[_BEFORE] = _Before.of(optimizer)
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
    """Give gradients, and what is kept of each parameter, the strides of the parameter."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            _fit(optimizer, p)


@functools.cache
def fit_before_fused_steps() -> None:
    """Do so before each fused step, of any optimizer, from now on.

    A gradient may be assigned, a state loaded, a model converted, and a parameter added at any time.
    """
    register_optimizer_step_pre_hook(_before_step)


def _before_step(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    # Not is_compiling(), which is of all threads at once.
    if torch.compiler.is_dynamo_compiling():
        return None
    fit_fused(optimizer)
    if (len(args) == 1 and not kwargs) or not _are_fused(optimizer.param_groups):
        return None
    of_step, *given = args
    if given and callable(given[0]):
        return (of_step, fitted_after(optimizer, given[0]), *given[1:]), kwargs
    if callable(closure := kwargs.get("closure")):
        return args, {**kwargs, "closure": fitted_after(optimizer, closure)}
    return None


def fitted_after(
    optimizer: torch.optim.Optimizer, closure: Callable[[], Any]
) -> Callable[[], Any]:
    """A closure after which the gradients that it makes fit the parameters."""

    def fitted() -> Any:
        loss = closure()
        fit_fused(optimizer)
        return loss

    return fitted


def fit_fused(optimizer: torch.optim.Optimizer) -> None:
    """Fit what a fused step takes as plain memory to its parameters.

    Raises a UsageError of a parameter that no fused step can take, where it was set by us.
    """
    is_ours = vars(optimizer).get(_SET) == "fused"
    for group in optimizer.param_groups:
        if not group.get("fused"):
            continue
        parameters = group["params"]
        # Others may keep moments of a higher precision than their weights.
        if is_ours and _is_converted(optimizer, parameters):
            for p in parameters:
                _convert(optimizer, p)
        # Contiguous ones have the strides that checkpoints have. A GPU's kernels refuse a gradient that
        # has others, a CPU's do not; to look at each takes up to 6 % of a small step.
        looks_away = bool(parameters) and parameters[0].is_cpu
        if not looks_away and all(map(torch.Tensor.is_contiguous, parameters)):
            continue
        for p in parameters:
            gradient = p.grad
            if p.is_contiguous() and (gradient is None or gradient.is_contiguous()):
                continue
            if is_ours and not _is_dense(p):
                raise UsageError(_SLICE)
            _fit(optimizer, p)


def _are_fused(groups: list[dict[str, Any]]) -> bool:
    return any(group.get("fused") for group in groups)


def _is_converted(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> bool:
    """Whether they have another dtype than what is kept of them (``model.to(dtype)``).

    The first one tells: to look at all of them takes longer than some steps.
    """
    for p in parameters:
        kept = optimizer.state.get(p)
        if isinstance(kept, dict) and kept:
            others = [
                x for x in kept.values() if getattr(x, "dtype", p.dtype) != p.dtype
            ]
            return any(_is_moment(x, p) for x in others)
    return False


def _convert(optimizer: torch.optim.Optimizer, p: torch.Tensor) -> None:
    state = optimizer.state.get(p, {})
    for name, kept in state.items():
        if _is_moment(kept, p):
            state[name] = kept.to(p.dtype)


def _is_moment(kept: Any, p: torch.Tensor) -> bool:
    is_tensor = isinstance(kept, torch.Tensor) and kept.is_floating_point()
    return is_tensor and kept.dim() > 0 and kept.shape == p.shape


def _fit(optimizer: torch.optim.Optimizer, p: torch.Tensor) -> None:
    if p.grad is not None and _lies_otherwise(p.grad, p):
        p.grad = _laid_out(p.grad, p)
    state = optimizer.state.get(p, {})
    for name, kept in state.items():
        if isinstance(kept, torch.Tensor) and _lies_otherwise(kept, p):
            state[name] = _laid_out(kept, p)


def _is_dense(p: torch.Tensor) -> bool:
    """Whether its memory holds its own values and no others between them."""
    if p.layout is not torch.strided or p.is_contiguous():
        return True
    if p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last):
        return True
    return torch.empty_like(p, device="meta").stride() == p.stride()


def _lies_otherwise(x: torch.Tensor, p: torch.Tensor) -> bool:
    is_alike = x.layout is p.layout is torch.strided and x.shape == p.shape
    return is_alike and x.stride() != p.stride() and _is_dense(p)


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
    """Keep what is loaded in step with what was applied, and what was applied out of what is saved,
    copied and pickled.
    """
    fit_before_fused_steps()
    if not vars(optimizer).get(_FOLLOWS):
        vars(optimizer)[_FOLLOWS] = True
        optimizer.register_load_state_dict_post_hook(_after_load)
        optimizer.register_state_dict_post_hook(_without_implementation)
        # Of the instance: the class is the user's. By a weak reference: an optimizer that refers to
        # itself keeps its moments until Python looks for circles.
        vars(optimizer)["__getstate__"] = functools.partial(
            _copied, weakref.ref(optimizer)
        )


def _after_load(optimizer: torch.optim.Optimizer) -> None:
    if name := vars(optimizer).get(_SET):
        set_implementation(optimizer, name)
    fit_to_parameters(optimizer)


def _without_implementation(
    optimizer: torch.optim.Optimizer, saved: dict[str, Any]
) -> dict[str, Any]:
    """A state dict as an untuned optimizer has it: its flags, and moments in the order of rows."""

    def in_rows(x: Any) -> Any:
        is_strided = isinstance(x, torch.Tensor) and x.layout is torch.strided
        return x.contiguous() if is_strided else x

    untuned = _untuned(optimizer, saved)
    state = {
        key: {name: in_rows(x) for name, x in kept.items()}
        if isinstance(kept, dict)
        else kept
        for key, kept in untuned["state"].items()
    }
    return {**untuned, "state": state}


def _copied(
    reference: weakref.ReferenceType[torch.optim.Optimizer],
) -> dict[str, Any]:
    """What ``copy`` and ``pickle`` take of an optimizer: an untuned one, as of a model.

    What is kept of a parameter has its strides still: the parameter is copied with it.
    """
    optimizer = reference()
    assert optimizer is not None, "it is asked for its own state"
    state = cast(Any, type(optimizer)).__getstate__(optimizer)
    # Of an optimizer whose own __getstate__ gives all that it has.
    ours = {name for name in state if str(name).startswith("_autocompile")}
    ours |= {"__getstate__", "step"} if "__getstate__" in state else set()
    untuned = _untuned(optimizer, {k: v for k, v in state.items() if k not in ours})
    before: _Before | None = vars(optimizer).get(_BEFORE)
    defaults = {**untuned["defaults"], **(before.defaults if before else {})}
    return {**untuned, "defaults": defaults}


def _untuned(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Groups with the flags of before, and counts of steps where these want them."""
    before: _Before | None = vars(optimizer).get(_BEFORE)
    if before is None:
        return saved
    groups = [dict(group) for group in saved["param_groups"]]
    before.put_into(groups, optimizer.defaults.get("lr"))
    if any(group.get("fused") or group.get("capturable") for group in groups):
        return {**saved, "param_groups": groups}

    def on_the_cpu(name: str, x: Any) -> Any:
        return x.cpu() if name == "step" and isinstance(x, torch.Tensor) else x

    state = {
        key: {name: on_the_cpu(name, x) for name, x in kept.items()}
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
            if not _is_dense(p):
                return _SLICE
    return ""


def rate_is_zero(optimizers: Iterable[torch.optim.Optimizer]) -> bool:
    """Whether one has a learning rate of 0, as a warm-up begins with.

    torch's compiled Adam divides by it (2.13), and parameters without a gradient so far become NaN.
    Of a rate that is a tensor on an accelerator nobody asks, who would have to wait for it.
    """
    rates = [group.get("lr") for each in optimizers for group in each.param_groups]
    return any(
        not rate
        for rate in rates
        if isinstance(rate, (int, float)) or (rate is not None and rate.is_cpu)
    )


@contextlib.contextmanager
def rates_above_zero(
    optimizers: Iterable[torch.optim.Optimizer],
) -> Iterator[None]:
    """Context in which rates on an accelerator are at least so large that nothing divides by 0."""
    divide = [each for each in optimizers if isinstance(each, _DIVIDE_BY_RATE)]
    rates = [group.get("lr") for each in divide for group in each.param_groups]
    others = [x for x in rates if isinstance(x, torch.Tensor) and not x.is_cpu]
    kept = [x.clone() for x in others]
    for rate in others:
        rate.clamp_(min=_LEAST_RATE)
    try:
        yield
    finally:
        for rate, value in zip(others, kept, strict=True):
            rate.copy_(value)
