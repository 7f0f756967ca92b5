"""Two looks at a target before anything is tried: what it is, and what Dynamo makes of it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocompile.errors import AutocompileError, TargetError
from autocompile.protocol.events import EventName
from autocompile.protocol.requests import ProbeRequest, ProbeResult
from autocompile.runtime import machine
from autocompile.runtime.optimizers import implementations
from autocompile.runtime.regions import regions_of
from autocompile.settings.dimensions import OPTIMIZERS
from autocompile.settings.phases import FORWARD, LEARNER_UPDATE, OPTIMIZER_STEP, PHASES
from autocompile.store.record import Step
from autocompile.trial import failures
from autocompile.trial.channel import Channel
from autocompile.trial.measure import environment, memory, telemetry
from autocompile.trial.measure.optimizers import seconds_by_implementation
from autocompile.trial.target.sides import make_side, phases_of
from autocompile.trial.target.target import Target, seed_everything
from autocompile.trial.tasks.steps import inputs_of, is_prepared, load
from autocompile.trial.toolchain import prepare
from autocompile.trial.verify.compare import compare
from autocompile.trial.verify.outputs import View, copy_view, has_tensor, without
from autocompile.trial.verify.verifier import Verifier

__all__ = ["described", "probe", "shapes_in"]

_DEPTH = 6  # of objects in inputs
_MOST_APART = 0.05  # from eager's own results: more is no noise


def probe(request: ProbeRequest, channel: Channel, result: ProbeResult) -> None:
    """Describe machine, torch and target; run each phase once in eager mode."""
    if request.header.target:
        target = load(request, channel)
        device = target.device
        is_timed = not request.phases and target.make_learner is not None
        with channel.exclusive() if is_timed else contextlib.nullcontext():  # the toolchain's over
            phases = list(request.phases or target.default_phases())
        result.target = _describe(target, phases)
        channel.step(Step.EAGER)
        result.target["writes_buffers"] = {}
        result.target["optimizer_s"] = _optimizer_seconds(target, phases, channel)
        for phase in phases:
            try:
                _try_in_eager(target, phase, request, result)
            except Exception as error:
                if request.phases or result.during or phase == phases[0]:
                    raise
                words = f"not tuned, since it fails in eager mode: {failures.first_words(error)}"
                result.target["choices"][phase] = words
                result.target["phases"] = [p for p in result.target["phases"] if p != phase]
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        if FORWARD in phases:
            with contextlib.suppress(torch.OutOfMemoryError):
                _demand_that_a_copy_does(target, request)
    else:
        peak, device = 0, environment.pick_device(request.header.device)
    result.environment = machine.describe(device)
    result.backends = environment.backends(device, request.backends)
    result.all_backends = sorted(torch._dynamo.list_backends(None))
    result.modes = environment.modes(device)
    result.options = torch._inductor.list_options()
    if request.toolchain and not is_prepared(request, channel, device):
        channel.step(Step.COMPILE)
        result.toolchain_s = prepare(device.type, Path(request.toolchain))
        channel.send(EventName.MODULES, names=environment.library_modules())
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        need = memory.CONTEXT_BYTES + 2 * (peak or torch.cuda.max_memory_allocated(device))
        channel.send(EventName.ROOM, trials=int(free // need))


def _try_in_eager(target: Target, phase: str, request: ProbeRequest, result: ProbeResult) -> None:
    """Call a phase once; the result gets what this tells of it.

    Raises:
        TargetError: a call changes the sizes of its inputs.
        Exception: whatever the user's code raises.
    """
    size, seed = request.batch_size, request.header.seed
    assert result.target is not None
    result.during = f"get_inputs({size})"
    inputs = inputs_of(target, phase, size, seed)
    result.during = None
    side = make_side(target, phase, inputs, model=target.fresh_model(phase, True))
    buffers = [b for b in side.model.buffers() if not b.is_inference()]
    before, shapes = [b._version for b in buffers], shapes_in(inputs)
    side.view(side.run())
    result.target["writes_buffers"][phase] = before != [b._version for b in buffers]
    for path, shape in shapes_in(inputs).items():
        if shape != (was := shapes.get(path)):
            raise TargetError(
                "a call of the model changes its own inputs, so each would compute something else",
                f"{path} of get_inputs() has shape {shape} after a call; before: {was or 'none'}",
                hint="make such a cache in forward, or let forward copy it before it grows",
            )
    if target.check:  # that it accepts eager is known before anything is tried
        again = inputs_of(target, phase, size, seed, draw=1)
        Verifier(target, phase, (inputs, again), seed, [])
    if target.fixed_batch and inputs is not None:
        tensors = (x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor))
        shape = next((x.shape for x in tensors if x.dim()), (1,))
        result.target["fixed_batch_size"] = int(shape[0])


def shapes_in(
    value: Any, path: str = "", met: frozenset[int] = frozenset()
) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors in inputs, by path, also in attributes of objects."""
    if isinstance(value, torch.Tensor):
        return {path: tuple(value.shape)}
    is_code = isinstance(value, (torch.nn.Module, type, ModuleType, FunctionType, MethodType))
    if is_code or id(value) in met or len(met) > _DEPTH:
        return {}
    if isinstance(value, (list, tuple)):
        parts = [(f"{path}[{i}]", x) for i, x in enumerate(value)]
    elif isinstance(value, Mapping):
        parts = [(f"{path}[{k!r}]", x) for k, x in value.items()]
    else:
        parts = [(f"{path}.{n}".lstrip("."), x) for n, x in getattr(value, "__dict__", {}).items()]
    met |= {id(value)}
    return {p: shape for where, x in parts for p, shape in shapes_in(x, where, met).items()}


def _demand_that_a_copy_does(target: Target, request: ProbeRequest) -> None:
    """Check that the model does in forward what a copy of it does.

    Raises:
        TargetError: it does not, or it returns nothing that could be compared.
    """
    views: list[View] = []
    for model in (
        target.fresh_model(FORWARD, True),
        target.fresh_model(FORWARD, True),
        target.model,
    ):
        # Other inputs than before, of which a copy's hooks may have left results in the model.
        inputs = inputs_of(target, FORWARD, request.batch_size, request.header.seed, draw=1)
        side = make_side(target, FORWARD, inputs, model=model)
        seed_everything(request.header.seed)
        views.append(copy_view(without(side.view(side.run()), "inputs")))
    if target.check:
        return
    if not has_tensor(views[2]):
        raise TargetError(
            "forward returns no tensor, so nothing can be compared",
            f"it returns {type(views[2]['outputs']).__name__}",
            hint="let forward return what is to be right, also what hooks catch; or define check()",
        )
    problem = compare(views[2], views[0], tolerance=_MOST_APART)
    if problem and not compare(views[1], views[0], tolerance=_MOST_APART):
        raise TargetError(
            "a copy of the model does not compute what the model does",
            problem,
            "settings are tried on copies: hooks, caches and attributes that refer to the original "
            "still do so in a copy",
            hint="keep such state in the module itself (buffers, attributes), and use it by self",
        )


def _optimizer_seconds(
    target: Target, phases: list[str], channel: Channel
) -> dict[str, dict[str, float]]:
    """Seconds of a step by implementation of the optimizer, of each phase that trains a model."""
    found = {}
    for phase in phases:
        if PHASES[phase].has_backward and PHASES[phase].steps:
            # An optimizer that cannot step alone, such as one with a closure, fails in eager mode.
            with channel.exclusive(), failures.only_logged():
                synchronize = telemetry.synchronizer(target.device)
                found[phase] = seconds_by_implementation(target, phase, synchronize)
    return found


def _describe(target: Target, phases: list[str]) -> dict[str, Any]:
    known = phases_of(target)
    if unknown := [phase for phase in phases if phase not in known]:
        raise AutocompileError(
            f"this target has no phase {unknown[0]}", f"a {target.kind} has: {', '.join(known)}"
        )
    model = target.fresh_model(OPTIMIZER_STEP)
    trains = any(p.requires_grad for p in model.parameters())
    steps = trains and any(
        PHASES[phase].steps and not PHASES[phase].needs_config for phase in phases
    )
    own = target.make_optimizer(model) if steps else None
    optimizers: list[Any] = [own] if steps else []
    if LEARNER_UPDATE in phases and target.make_learner:
        optimizers += target.make_learner(target.fresh_model(LEARNER_UPDATE)).optimizers
    every = [implementations(optimizer) for optimizer in optimizers]
    return {
        "kind": target.kind,
        "description": type(target.model).__name__,
        "parameters": sum(p.numel() for p in target.model.parameters()),
        "modules": sum(1 for _ in target.model.modules()),
        "phases": phases,
        "algorithm": target.algorithm,
        "own_batch_size": target.own_batch_size,
        "calls_per_update": target.calls_per_update,
        "samples_per_update": target.samples_per_update,
        "threads": target.threads,
        "has_convolutions": any(p.dim() == 4 for p in target.model.parameters()),
        "regions": {phase: regions_of(target.model_of(phase)).describe() for phase in phases},
        "optimizers": [o for o in OPTIMIZERS if every and all(o in found for found in every)],
        "optimizer": own and described(own, model),
        "is_rl": target.is_rl,
        "choices": target.choices,
        "sha256": target.sha256,
    }


def described(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, Any]:
    """How the optimizer of a model is made, for exports.

    Returns:
        ``lr``; where it is a class of ``torch.optim`` over all parameters alike its name, as
        ``class``, and the ``arguments`` that are not its defaults.
    """
    group, kind = optimizer.param_groups[0], type(optimizer)
    lr = _of_python(group.get("lr"))
    found = {"lr": float(lr) if isinstance(lr, torch.Tensor) else lr}
    names = inspect.signature(kind).parameters
    given = {n: _of_python(group[n]) for n in names if n in group and n != "params"}
    is_all = [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]
    is_plain = all(_is_plain(value) for value in given.values())
    is_torchs = getattr(torch.optim, kind.__name__, None) is kind
    if is_torchs and is_all and is_plain and len(optimizer.param_groups) == 1:
        found["class"] = kind.__name__
        found["arguments"] = {n: v for n, v in given.items() if v != names[n].default}
    return found


def _of_python(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _is_plain(value: Any) -> bool:
    """Whether it can be written down: a number, a word, or some of them."""
    parts = value if isinstance(value, (list, tuple)) else (value,)
    return all(part is None or isinstance(part, (bool, int, float, str)) for part in parts)
