"""Tuned settings in a plain torch program (``autocompile.apply``) and in a trainer's loop."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from autocompile.errors import UsageError
from autocompile.interpreters.needed import demand_this_interpreter
from autocompile.runtime import warm_start
from autocompile.runtime.applying import Used, apply_config, apply_to_optimizer
from autocompile.runtime.devices import device_of
from autocompile.runtime.kept_memory import keep_in_program
from autocompile.runtime.machine import describe
from autocompile.runtime.ranks import of_rank_0, ranks_of_program
from autocompile.runtime.sharding import is_split_model
from autocompile.settings import phases
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import DDP
from autocompile.settings.tuned import Choice, Tuned, TunedSet


def apply(
    model: Used,
    settings: Any,
    phase: str | None = None,
    *,
    batch_size: int | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    device: str | torch.device | None = None,
    keep_memory: bool = True,
) -> Used:
    """Apply tuned settings in place; checkpoint keys stay, and new weights take effect.

    Compiles at the first call. Threads and precision hold while the model (its backward pass too),
    the optimizer's step or the compiled step runs; the process keeps its own. Returns the model;
    for a step that is compiled as a whole, the function to call instead. Warns if torch or the
    machine differs, the compiled code next to the file cannot be used, or the setting was measured
    in one process only.

    Args:
        model: an ``nn.Module``; for a step that is compiled as a whole, the function
            that does the step.
        settings: a file written by ``autocompile export -o``, or a Result. Of a file with entries
            of several machines, the one that fits the device of the weights is taken.
        phase: may be left out if the settings have one forward phase.
        batch_size: selects the nearest measured size; if left out, the target's own or the largest.
        optimizer: its ``step`` is changed in place, by the settings of ``optimizer_step`` or to the
            implementation that the phase was measured with.
        device: of a function, whose settings are those of this device. If left out, the optimizer
            or the model that the function refers to tells it, else its first call.
        keep_memory: on a CPU have glibc keep what is freed, as in the measurement (``mallopt``).

    Raises:
        UsageError: no such settings, or they do not fit the model or optimizer; of a function whose
            first call tells its device and that has settings of several machines, at that call.
    """
    entries = TunedSet.read(settings)

    def applied(where: torch.device) -> Used:
        tuned = entries.fitting(describe(where), of_rank_0)
        if keep_memory and where.type == "cpu":
            keep_in_program()
        return _applied(model, tuned, phase, batch_size, optimizer, where)

    if device is not None:
        return applied(torch.device(device))
    known = device_of(model, optimizer)
    is_certain = isinstance(model, torch.nn.Module) or optimizer is not None
    if not (is_certain or is_accelerator(known)) and has_accelerator():
        if len(entries.entries) == 1:  # what would not fit then is said now
            _fitting_choice(model, entries.entries[0], phase, batch_size, optimizer)
        return cast(Used, AtFirstCall(model, applied))
    return applied(known or torch.device("cpu"))


class AtFirstCall:
    """A function whose settings are chosen at its first call, when its tensors tell the device.

    Args:
        applied: gives what to call on a device.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        applied: Callable[[torch.device], Callable[..., Any]],
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._applied = function, applied
        self._now: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._now is None:
            with self._lock:  # threads may make it together
                if self._now is None:
                    device = device_of(args, kwargs, self._function)
                    self._now = self._applied(device or torch.device("cpu"))
        return self._now(*args, **kwargs)


def has_accelerator() -> bool:
    """Whether a function may work elsewhere than on the CPU."""
    return bool(torch.accelerator.is_available())


def is_accelerator(device: torch.device | None) -> bool:
    """Whether a device is known and not the CPU."""
    return device is not None and device.type != "cpu"


def _fitting_choice(
    model: Any,
    tuned: Tuned,
    phase: str | None,
    batch_size: int | None,
    optimizer: torch.optim.Optimizer | None,
) -> tuple[str, Choice]:
    """The phase and what was chosen for it; a UsageError where that does not fit what is given."""
    name = phase or _only_forward(tuned)
    choice = _chosen(tuned, name, batch_size)
    _demand_fit(model, name, choice.config, optimizer)
    return name, choice


def _applied(
    model: Used,
    tuned: Tuned,
    phase: str | None,
    batch_size: int | None,
    optimizer: torch.optim.Optimizer | None,
    device: torch.device,
) -> Used:
    """Apply the settings of one machine to what works on a device."""
    here = describe(device)
    name, choice = _fitting_choice(model, tuned, phase, batch_size, optimizer)
    config = choice.config
    if differences := tuned.differences(here):
        warnings.warn(
            f"the settings were measured elsewhere ({'; '.join(differences)}): results are the "
            "same, speed may differ here. `autocompile verify` measures it",
            stacklevel=4,
        )
    if name in phases.OF_RANKS:
        _warn_of_ranks(tuned, config)
    warm_start.load(tuned, device)
    if choice.processes < 2 and not config.is_baseline:
        warnings.warn(
            f"the setting of {name} was measured in one process only", stacklevel=4
        )
    if config.caution:
        warnings.warn(f"{name}: {config.caution}", stacklevel=4)
    for d, value in config.changed("model") if config.scope == "step" else ():
        line = (
            d.line(value).removeprefix("model = ") if d.line else f"{d.name}={value!r}"
        )
        warnings.warn(f"before the first step: {line}", stacklevel=4)
    steps = tuned.at(phases.OPTIMIZER_STEP) if name in phases.FORWARD_PHASES else None
    optimizers = [optimizer] if optimizer is not None else []
    step = steps.config if steps else None
    if config.ddp == "unsplit":
        torch._dynamo.config.optimize_ddp = False
    if isinstance(model, DistributedDataParallel):
        # In place, inside of what averages gradients: the order makes no difference.
        apply_config(model.module, name, config, optimizers, step, device)
        return model
    return apply_config(model, name, config, optimizers, step, device)


def _warn_of_ranks(tuned: Tuned, config: CompileConfig) -> None:
    """Warn where another number of processes averages gradients than in the measurement."""
    here = ranks_of_program()
    if words := tuned.of_other_ranks(here):
        warnings.warn(words, stacklevel=5)
    if config.wrapping and here > 1:
        warnings.warn(f"it was measured with {config.wrapping}", stacklevel=5)


def _demand_fit(
    model: Any,
    phase: str,
    config: CompileConfig,
    optimizer: torch.optim.Optimizer | None,
) -> None:
    """Raise a UsageError if a setting is about something else than what is given."""
    is_module, is_whole = isinstance(model, torch.nn.Module), config.scope == "step"
    if is_module:
        _demand_order(model, config, optimizer)
    more = ", optimizer=optimizer" if phases.phase_of(phase).steps else ""
    whole = phases.phase_of(phase).whole
    if is_module and is_whole:
        raise UsageError(
            f"the best setting of {phase} compiles the whole step, and a model was given: give the "
            "function that does the step",
            hint=f'{whole} = autocompile.apply({whole}, settings, "{phase}"{more})',
        )
    if not is_module and not (is_whole or config.is_eager):
        raise UsageError(
            f"{phase} needs an nn.Module, not a {type(model).__name__}",
            hint=f'autocompile.apply(model, settings, "{phase}"{more})',
        )
    if optimizer is None and (
        phase == phases.OPTIMIZER_STEP or config.optimizer != "default"
    ):
        raise UsageError(
            f"the settings of {phase} are about an optimizer: optimizer=..."
        )


def _demand_order(
    model: torch.nn.Module,
    config: CompileConfig,
    optimizer: torch.optim.Optimizer | None,
) -> None:
    """Raise a UsageError where ranks train a model together that was wrapped too early or too late."""
    is_ddp = isinstance(model, DistributedDataParallel)
    if not is_ddp and not is_split_model(model):
        return
    wrapped = "DistributedDataParallel(model)" if is_ddp else "fully_shard(model)"
    if config.changed("model") or (is_ddp and not _is_made_by(model, DDP[config.ddp])):
        raise UsageError(
            f"{wrapped} has taken the model as it was, and this setting changes how it is wrapped "
            "or how its weights lie",
            hint=f"autocompile.apply(model, ...), then {config.wrapping or wrapped}",
        )
    if is_ddp or optimizer is None:
        return
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(hasattr(p, "full_tensor") for p in trained):
        raise UsageError(
            "the optimizer has none of the parameters that fully_shard(model) put into the model, so "
            "it trains nothing",
            hint="fully_shard(model), then optimizer = ...(model.parameters())",
        )


def _is_made_by(wrapped: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether DistributedDataParallel was given these."""
    has = {"bucket_cap_mb": wrapped.bucket_bytes_cap / 2**20, **vars(wrapped)}
    return all(has.get(name) == value for name, value in arguments.items())


class InTraining:
    """Applies settings to what a trainer trains, and sees that they are used."""

    def __init__(self, settings: Any, keep_memory: bool = True) -> None:
        self._settings, self._keeps_memory = TunedSet.read(settings), keep_memory
        self._model: Any = None

    def apply(
        self,
        model: torch.nn.Module,
        optimizers: Iterable[torch.optim.Optimizer],
        batch_size: int | None = None,
        not_fused: str = "",
    ) -> str:
        """Compile the forward pass with its backward, and change the optimizers' steps, in place.

        Uses the settings of ``train_step``, or else of ``forward`` and ``optimizer_step``; returns
        in words what is applied. Loading an optimizer's state takes its setting back. Raises a
        UsageError if there are no such settings, or they compute no gradients or fit no optimizer.
        ``not_fused`` says why the trainer takes no fused step, which then stays as it is.
        """
        device = device_of(model) or torch.device("cpu")
        tuned = self._settings.fitting(describe(device), of_rank_0)
        name = (
            phases.TRAIN_STEP if phases.TRAIN_STEP in tuned.phases else phases.FORWARD
        )
        if name not in tuned.phases:
            raise UsageError(
                f"a trainer takes the settings of train_step, or of forward; these are of "
                f"{', '.join(tuned.phases)}",
                hint="autocompile tune model.py --phase train_step,optimizer_step",
            )
        choice = _chosen(tuned, name, batch_size)
        if name == phases.FORWARD and not choice.config.is_eager:
            warnings.warn(
                "the settings of forward are used for training: neither its speed nor its gradients "
                "were measured. autocompile tune model.py --phase train_step does",
                stacklevel=3,
            )
        if not choice.config.trains:
            raise UsageError(
                f"the settings of {name} compute no gradients: {choice.config.label()}",
                hint="autocompile tune model.py --phase train_step,optimizer_step",
            )
        if choice.config.scope == "step":
            raise UsageError(
                f"the settings of {name} compile the whole step, which is the trainer's here",
                hint="autocompile tune model.py --phase train_step --scope model,regional",
            )
        step = choice.config.of_optimizer_in(name)
        if name == phases.FORWARD and phases.OPTIMIZER_STEP in tuned.phases:
            step = _chosen(tuned, phases.OPTIMIZER_STEP).config
        if name in phases.OF_RANKS:
            _warn_of_ranks(tuned, choice.config)
        forward = replace(choice, config=replace(choice.config, optimizer="default"))
        one = replace(tuned, phases={phases.FORWARD: (forward,)})
        apply(model, one, keep_memory=self._keeps_memory)
        if step.optimizer == "fused" and not_fused:
            warnings.warn(f"the optimizer stays as it is: {not_fused}", stacklevel=3)
            step = CompileConfig("eager")
        for optimizer in optimizers:
            apply_to_optimizer(optimizer, step)
        self._model = model
        return f"{type(model).__name__}: {choice.config.label()}; optimizer step: {step.label()}"

    def demand_used(self, hint: str) -> None:
        """Raise a UsageError if the model was compiled and the training has not called it."""
        is_wrapped = isinstance(self._model, DistributedDataParallel)
        called = self._model.module if is_wrapped else self._model
        compiled = called._compiled_call_impl
        if compiled is not None and not compiled.calls:
            raise UsageError(
                f"the settings are not in use: the training step does not call "
                f"{type(self._model).__name__}, which they were applied to",
                hint=hint,
            )


def _chosen(tuned: Tuned, phase: str, batch_size: int | None = None) -> Choice:
    choice = tuned.at(phase, batch_size)
    if choice is None:
        raise UsageError(
            f"no settings for {phase} (choose from: {', '.join(tuned.phases)})"
        )
    demand_this_interpreter(tuned, phase, choice)
    return choice


def _only_forward(tuned: Tuned) -> str:
    forward = [name for name in tuned.phases if name in phases.FORWARD_PHASES]
    if len(forward) == 1:
        return forward[0]
    raise UsageError(
        f"the settings have {len(forward)} forward phases; name one",
        f"phases: {', '.join(tuned.phases)}",
    )
