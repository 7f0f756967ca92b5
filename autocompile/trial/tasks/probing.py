"""The target, loaded and fed, and what a probe says of it before anything is tried."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocompile.errors import AutocompileError
from autocompile.protocol.requests import ProbeRequest, Request
from autocompile.protocol.results import ProbeResult
from autocompile.runtime import machine
from autocompile.runtime.optimizers import implementations
from autocompile.runtime.regions import regions_of
from autocompile.settings.dimensions import OPTIMIZERS
from autocompile.settings.phases import LEARNER_UPDATE, PHASES, phase_of
from autocompile.store.record import Step
from autocompile.trial.inspect import environment
from autocompile.trial.phases.phases import make_side, phases_of
from autocompile.trial.process.channel import Channel
from autocompile.trial.target.load import (
    Target,
    build,
    import_target,
    seed_everything,
    split_spec,
)
from autocompile.trial.verify.verifier import Verifier

__all__ = ["described", "home_of", "inputs_of", "load", "probe"]

_CONTEXT_BYTES = 2**30  # of a GPU's memory, for CUDA itself and the libraries' workspaces


def home_of(target: str) -> Path:
    """The folder of a target's file; asked before it is loaded, which may change directory."""
    return Path(split_spec(target)[0]).resolve().parent


def load(request: Request, channel: Channel) -> tuple[Target, torch.device]:
    """Steps ``import`` and ``build``: the same weights in every process."""
    header = request.header
    channel.step(Step.IMPORT)
    device = environment.pick_device(header.device)
    if isinstance(request, ProbeRequest) and _is_prepared(request, channel, device):
        channel.toolchain()  # the fork server sees to it meanwhile
    seed_everything(header.seed)
    module = import_target(header.target)
    if isinstance(request, ProbeRequest):
        channel.modules(environment.library_modules())
    channel.step(Step.BUILD)
    target = build(header.target, module)
    target.to(device)
    return target, device


def _is_prepared(request: ProbeRequest, channel: Channel, device: torch.device) -> bool:
    """Whether the fork server makes what compiler caches start with."""
    return bool(request.toolchain) and channel.has_fork_server and device.type == "cpu"


def inputs_of(
    target: Target,
    phase: str,
    batch_size: int | None,
    device: torch.device,
    seed: int,
    draw: int = 0,
) -> Any:
    """The inputs of one batch; another ``draw`` gives other values. An optimizer step has none."""
    if not phase_of(phase).has_batch_size:
        return None
    seed_everything(seed + 1000 * (draw + 1))
    inputs = target.inputs(phase, batch_size)
    return pytree.tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, inputs)


def probe(request: ProbeRequest, channel: Channel, result: ProbeResult) -> None:
    """Describe machine, torch and target; run each phase once in eager mode."""
    if request.header.target:
        target, device = load(request, channel)
        phases = list(request.phases or target.default_phases())
        result.target = _describe(target, phases)
        channel.step(Step.EAGER)
        size, seed = request.batch_size, request.header.seed
        for phase in phases:
            result.during = f"get_inputs({size})"
            inputs = inputs_of(target, phase, size, device, seed)
            result.during = None
            side = make_side(target, phase, inputs)
            side.view(side.run())
            if target.check:  # that it accepts eager is known before anything is tried
                again = inputs_of(target, phase, size, device, seed, draw=1)
                Verifier(target, phase, (inputs, again), seed, [])
            if target.fixed_batch and inputs is not None:
                tensors = (x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor))
                shape = next((x.shape for x in tensors if x.dim()), (1,))
                result.target["fixed_batch_size"] = int(shape[0])
    else:
        device = environment.pick_device(request.header.device)
    result.environment = machine.describe(device)
    result.backends = environment.backends(device, request.backends)
    result.all_backends = environment.all_backends()
    result.modes = environment.modes(device)
    result.options = environment.inductor_options()
    if request.toolchain and not _is_prepared(request, channel, device):
        channel.step(Step.COMPILE)
        result.toolchain_s = environment.prepare_toolchain(device, Path(request.toolchain))
        channel.modules(environment.library_modules())
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        need = _CONTEXT_BYTES + 2 * torch.cuda.max_memory_allocated(device)
        channel.room(int(free // need))


def _describe(target: Target, phases: list[str]) -> dict[str, Any]:
    unknown = [phase for phase in phases if phase not in phases_of(target)]
    if unknown:
        raise AutocompileError(
            f"this target has no phase {unknown[0]}",
            f"a {target.kind} has: {', '.join(phases_of(target))}",
        )
    regions = {phase: regions_of(target.model_of(phase)) for phase in phases}
    optimizer, model = _optimizer(target, phases)
    return {
        "kind": target.kind,
        "description": type(target.model).__name__,
        "parameters": sum(p.numel() for p in target.model.parameters()),
        "phases": phases,
        "algorithm": target.algorithm,
        "build": target.build,
        "own_batch_size": target.own_batch_size,
        "calls_per_update": target.calls_per_update,
        "samples_per_update": target.samples_per_update,
        "has_convolutions": any(p.dim() == 4 for p in target.model.parameters()),
        "regions": {phase: found.describe() for phase, found in regions.items()},
        "optimizers": _implementations(target, phases),
        "optimizer": optimizer and described(optimizer, model, target.optimizer_source),
        "is_rl": target.is_rl,
        "choices": target.choices,
        "sha256": target.sha256,
    }


def _implementations(target: Target, phases: list[str]) -> list[str]:
    """Of the target's optimizer, where one of the phases steps it."""
    if not any(p.requires_grad for p in target.model.parameters()):
        return []
    model = copy.deepcopy(target.model)
    optimizers: list[Any] = []
    if any(PHASES[p].is_function for p in phases):
        optimizers.append(target.make_optimizer(model))
    if LEARNER_UPDATE in phases and target.make_learner:
        optimizers += target.make_learner(model).optimizers
    every = [implementations(optimizer) for optimizer in optimizers]
    return [name for name in OPTIMIZERS if every and all(name in found for found in every)]


def _optimizer(target: Target, phases: list[str]) -> tuple[Any, torch.nn.Module]:
    """The target's optimizer of a copy of its model; None where no phase steps it."""
    model = copy.deepcopy(target.model)
    steps = any(PHASES[p].is_function for p in phases)
    if not steps or not any(p.requires_grad for p in model.parameters()):
        return None, model
    return target.make_optimizer(model), model


def described(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, source: str
) -> dict[str, Any]:
    """How an optimizer is made, for exports.

    Args:
        optimizer: of ...
        model: ... this model.
        source: a line of Python that makes it; empty if there is none.

    Returns:
        ``build``, which is ``source``; ``lr``; where it is a class of ``torch.optim`` over all
        parameters alike its name, as ``class``, and the ``arguments`` that are not its defaults.
    """
    group, kind = optimizer.param_groups[0], type(optimizer)
    found: dict[str, Any] = {"build": source, "lr": group.get("lr")}
    if isinstance(found["lr"], torch.Tensor):
        found["lr"] = float(found["lr"])
    names = inspect.signature(kind).parameters
    given = {n: group[n] for n in names if n in group and n != "params"}
    is_all = [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]
    is_plain = all(_is_plain(value) for value in given.values())
    is_torchs = getattr(torch.optim, kind.__name__, None) is kind
    if is_torchs and is_all and is_plain and len(optimizer.param_groups) == 1:
        found["class"] = kind.__name__
        found["arguments"] = {n: v for n, v in given.items() if v != names[n].default}
    return found


def _is_plain(value: Any) -> bool:
    """Whether it can be written down: a number, a word, or some of them."""
    parts = value if isinstance(value, (list, tuple)) else (value,)
    return all(part is None or isinstance(part, (bool, int, float, str)) for part in parts)
