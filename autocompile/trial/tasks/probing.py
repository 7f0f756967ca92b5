"""Two looks at a target before anything is tried: what it is, and what Dynamo makes of it."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocompile.errors import AutocompileError, TargetError, first_words
from autocompile.protocol.events import EventName
from autocompile.protocol.requests import ProbeRequest, ProbeResult
from autocompile.runtime import machine
from autocompile.runtime.compiling import blocks_in_words
from autocompile.runtime.optimizers import implementations, set_implementation
from autocompile.settings.dimensions import OPTIMIZERS
from autocompile.settings.phases import FORWARD, LEARNER_UPDATE, OPTIMIZER_STEP, PHASES
from autocompile.store.record import Step
from autocompile.trial.channel import Channel
from autocompile.trial.failures import only_logged
from autocompile.trial.measure import environment, memory, telemetry
from autocompile.trial.measure.timing import Timed, block
from autocompile.trial.target.sides import make_side, phases_of
from autocompile.trial.target.target import Target, seed_everything
from autocompile.trial.tasks.steps import inputs_of, is_prepared, load
from autocompile.trial.toolchain import prepare
from autocompile.trial.verify.compare import compare
from autocompile.trial.verify.outputs import View, copy_view, has_tensor, tensors_by_path, without
from autocompile.trial.verify.verifier import Verifier

_MOST_APART = 0.05  # from eager's own results: more is no noise
_WARM_STEPS = 3  # of an optimizer: the first makes its state, the second finds it
_BLOCK_S, _BLOCKS, _MAX_S = 0.01, 20, 2.0  # for timing one implementation of an optimizer


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
                words = f"not tuned, since it fails in eager mode: {first_words(error)}"
                result.target["choices"][phase] = words
                result.target["phases"] = [p for p in result.target["phases"] if p != phase]
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        if FORWARD in phases:
            with contextlib.suppress(torch.OutOfMemoryError):
                _demand_that_a_copy_does(target, request)
    else:
        peak, device = 0, environment.pick_device(request.header.device)
    result.environment = machine.describe(device)
    if device.type == "cuda":
        result.environment |= machine.describe_gpu(device)
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


def shapes_in(inputs: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors in inputs, by path, also in attributes of objects."""
    return {path.lstrip("."): tuple(x.shape) for path, x in tensors_by_path(inputs).items()}


def _demand_that_a_copy_does(target: Target, request: ProbeRequest) -> None:
    """Check that the model does in forward what a copy of it does.

    Raises:
        TargetError: it does not, or it returns nothing that could be compared.
    """
    views: list[View] = []
    one, other = target.fresh_model(FORWARD, True), target.fresh_model(FORWARD, True)
    for model in (one, other, target.model):
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
    """Seconds of an optimizer step by implementation, of each phase that trains a model.

    A training step is forward, backward and the optimizer's step, one after the other, so the
    fastest implementation alone is the fastest in any step whose model is compiled. ``default`` is
    the target's; empty where there is no choice. One set of parameters, gradients and states is
    held at a time.
    """
    seconds: dict[str, dict[str, float]] = {}
    for phase in phases:
        if PHASES[phase].has_backward and PHASES[phase].steps:
            # An optimizer that cannot step alone, such as one with a closure, fails in eager mode.
            with channel.exclusive(), only_logged():
                model = target.fresh_model(phase)
                common = _in_common(_optimizers(target, phase, model))
                names = ["default", *common] if common else []
                seconds[phase] = {name: _step_s(target, phase, model, name) for name in names}
    return seconds


def _optimizers(target: Target, phase: str, model: torch.nn.Module) -> list[Any]:
    """Fresh optimizers of a phase."""
    if target.make_learner and phase == LEARNER_UPDATE:
        return list(target.make_learner(model).optimizers)
    return [target.make_optimizer(model)]


def _in_common(optimizers: list[Any]) -> list[str]:
    """The implementations that all of these have beside their own."""
    every = [implementations(optimizer) for optimizer in optimizers]
    return [name for name in OPTIMIZERS if every and all(name in each for each in every)]


def _step_s(target: Target, phase: str, model: torch.nn.Module, name: str) -> float:
    """Seconds of a step of the optimizers of a phase with an implementation."""
    steps = []
    for optimizer in _optimizers(target, phase, model):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.grad = torch.full_like(p, 1e-3)
        set_implementation(optimizer, name)
        steps.append(optimizer.step)
    side = Timed(lambda: [step() for step in steps], lambda: None, contextlib.nullcontext)
    synchronize = telemetry.synchronizer(target.device)
    once_s = min(block(side, 1, synchronize) for _ in range(_WARM_STEPS))
    calls = max(1, round(_BLOCK_S / once_s))
    blocks = max(1, min(_BLOCKS, round(_MAX_S / (calls * once_s))))
    # The least of many short blocks: a neighbour slows some of them, and nothing makes one faster.
    step_s = min(block(side, calls, synchronize) for _ in range(blocks))
    for p in model.parameters():
        p.grad = None
    return step_s


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
    targets_own = target.make_optimizer(model) if steps else None
    optimizers: list[Any] = [targets_own] if steps else []
    if LEARNER_UPDATE in phases and target.make_learner:
        optimizers += _optimizers(target, LEARNER_UPDATE, target.fresh_model(LEARNER_UPDATE))
    return {
        "kind": target.kind,
        "description": type(target.model).__name__,
        "parameters": sum(p.numel() for p in target.model.parameters()),
        "phases": phases,
        "algorithm": target.algorithm,
        "own_batch_size": target.own_batch_size,
        "calls_per_update": target.calls_per_update,
        "samples_per_update": target.samples_per_update,
        "threads": target.threads,
        "has_convolutions": any(p.dim() == 4 for p in target.model.parameters()),
        "regions": {phase: blocks_in_words(target.model_of(phase)) for phase in phases},
        "optimizers": _in_common(optimizers),
        "optimizer": targets_own and described(targets_own, model),
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
    facts = {"lr": float(lr) if isinstance(lr, torch.Tensor) else lr}
    names = inspect.signature(kind).parameters
    given = {n: _of_python(group[n]) for n in names if n in group and n != "params"}
    is_all = [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]
    is_plain = all(_is_plain(value) for value in given.values())
    is_torchs = getattr(torch.optim, kind.__name__, None) is kind
    if is_torchs and is_all and is_plain and len(optimizer.param_groups) == 1:
        facts["class"] = kind.__name__
        facts["arguments"] = {n: v for n, v in given.items() if v != names[n].default}
    return facts


def _of_python(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _is_plain(value: Any) -> bool:
    """Whether it can be written down: a number, a word, or some of them."""
    parts = value if isinstance(value, (list, tuple)) else (value,)
    return all(part is None or isinstance(part, (bool, int, float, str)) for part in parts)
