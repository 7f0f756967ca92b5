"""Two looks at a target before anything is tried: what it is, and what Dynamo makes of it."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocompile.errors import AutocompileError, TargetError, first_words
from autocompile.protocol.events import EventName
from autocompile.protocol.requests import ProbeRequest, ProbeResult
from autocompile.runtime import machine
from autocompile.runtime.compiling import blocks_in_words
from autocompile.runtime.optimizers import implementations
from autocompile.runtime.ranks import here
from autocompile.settings.dimensions import OPTIMIZERS
from autocompile.settings.phases import (
    FORWARD,
    INFERENCE_STEP,
    OF_RANKS,
    OPTIMIZER_STEP,
    PHASES,
    TRAIN_STEP,
)
from autocompile.store.record import Step
from autocompile.store.recorded_calls import MOST
from autocompile.trial.channel import Channel
from autocompile.trial.measure import environment, footprint
from autocompile.trial.measure.timing import block, timer_of
from autocompile.trial.model.calls import (
    Calls,
    in_words,
    kinds,
    shape_of,
)
from autocompile.trial.model.own_step import demand_calls
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.model.state import states_of
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.tasks.operators import operators_of
from autocompile.trial.tasks.other_numbers import other_numbers
from autocompile.trial.tasks.steps import inputs_of, is_prepared, load, timed
from autocompile.trial.toolchain import prepare
from autocompile.trial.values import USUAL_COPIES, tensors_by_path
from autocompile.trial.verify.compare import compare
from autocompile.trial.verify.outputs import (
    View,
    copy_view,
    has_number,
    has_tensor,
    without,
)

# Inputs whose lengths differ from call to call in most programs.
_OF_SEQUENCES = frozenset(
    {"input_ids", "attention_mask", "decoder_input_ids", "tokens"}
)
_MOST_APART = 0.05  # from eager's own results: more is no noise
_PART_OF_AN_UPDATE = 8  # an eighth of its rows
_LONGEST_UPDATE_S = 0.15  # for a budget of minutes: a trial makes about a hundred


def probe(request: ProbeRequest, channel: Channel, result: ProbeResult) -> None:
    """Describe machine, torch and target; run each phase once in eager mode."""
    if request.header.target:
        target = load(request, channel)
        device = target.device
        held = _look_at_target(target, request, channel, result)
    else:
        device, held = environment.pick_device(request.header.device), []
    _look_at_machine(device, request, result)
    if here().rank:  # rank 0 prepares what all start with
        return
    if request.toolchain and not is_prepared(request, channel, device):
        channel.step(Step.COMPILE)
        result.toolchain_s = prepare(device.type, Path(request.toolchain))
        channel.send(EventName.MODULES, names=environment.library_modules())
    _tell_room(device, held, channel)


def _look_at_target(
    target: Target, request: ProbeRequest, channel: Channel, result: ProbeResult
) -> list[dict[str, Any]]:
    """Describe the target and run each phase once; returns what each has held of memory."""
    phases = _phases_to_tune(target, request, channel)
    result.target = _describe(target, phases)
    channel.step(Step.EAGER)
    result.target["writes_buffers"] = {}
    held = []
    for phase in phases:
        try:
            held.append(_try_in_eager(target, phase, request, result))
        except Exception as error:
            is_own_function = result.during is not None
            is_first = phase == phases[0]
            of_ranks = here().are_several  # the others may be in a collective
            if request.phases or is_own_function or is_first or of_ranks:
                if target.explain:
                    raise target.explain(error) from error
                raise
            # Nobody asked for this phase, and the others can be tuned without it.
            left = [p for p in result.target["phases"] if p != phase]
            result.target["phases"] = left
            words = f"not tuned, since it fails in eager mode: {first_words(error)}"
            result.target["choices"][phase] = words
    if FORWARD in phases:
        with contextlib.suppress(torch.OutOfMemoryError):
            _demand_that_a_copy_does(target, request)
    seed = request.header.seed
    if here().are_several:  # the looks below are at one process
        result.target["operators"] = result.target["other_numbers"] = {}
        return held
    with channel.exclusive():  # beside the toolchain's compile gains are chance
        numbers = {
            phase: other_numbers(target, phase, request.batch_size, seed)
            for phase in result.target["phases"]
        }
    result.target["operators"] = {
        phase: operators_of(target, phase, request.batch_size, seed)
        for phase in result.target["phases"]
    }
    result.target["other_numbers"] = {p: found for p, found in numbers.items() if found}
    return held


def _phases_to_tune(
    target: Target, request: ProbeRequest, channel: Channel
) -> list[str]:
    """The phases that were asked for; else the target's, with steps for updates that are long."""
    found = _phases_asked(target, request, channel)
    if target.strategy == "fsdp2" and any(PHASES[phase].is_update for phase in found):
        raise TargetError(
            "the library of this target wraps its learners in DistributedDataParallel itself",
            hint="--strategy ddp, or --phase train_step",
        )
    return found


def _phases_asked(target: Target, request: ProbeRequest, channel: Channel) -> list[str]:
    if request.phases:
        return list(request.phases)
    phases = list(target.default_phases())
    if here().are_several:
        return [phase for phase in phases if phase in OF_RANKS] or [TRAIN_STEP]
    for number, phase in enumerate(phases):
        if not PHASES[phase].is_update:
            continue
        if why := _why_no_update(target, phase, request.header.seed, channel):
            phases[number] = OPTIMIZER_STEP
            target.choices["phases"] = f"{OPTIMIZER_STEP} instead of {phase}, {why}"
    return phases


def _look_at_machine(
    device: torch.device, request: ProbeRequest, result: ProbeResult
) -> None:
    result.environment = machine.describe(device)
    if device.type == "cuda":
        result.environment |= machine.describe_gpu(device)
    result.backends = environment.backends(device, request.backends)
    result.all_backends = sorted(torch._dynamo.list_backends(None))
    result.modes = environment.modes(device)
    result.options = torch._inductor.list_options()
    result.collectives = environment.collectives()


def _tell_room(
    device: torch.device, held: list[dict[str, Any]], channel: Channel
) -> None:
    """Tell what eager mode has held in each phase, and what is free of a GPU's memory."""
    free = None
    if device.type == "cuda":
        gc.collect()  # the looks at the target are over: what they took is free again
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
    context = footprint.CONTEXT_BYTES + USUAL_COPIES
    channel.send(EventName.ROOM, phases=held, free_bytes=free, context_bytes=context)


def _held(side: Side, taken: int) -> dict[str, Any]:
    """What a side that has made a call holds, for which its device has given ``taken`` bytes."""
    steps = bool(side.optimizers)
    parameters = sum(map(_bytes_of, side.model.parameters()))
    states = pytree.tree_leaves([states_of(each) for each in side.optimizers])
    state = sum(_bytes_of(x) for x in states if isinstance(x, torch.Tensor))
    # The first call of a step makes state and gradients, which stay.
    left = (parameters + state) if steps else 0
    return {
        "parameters": parameters,
        "state": state,
        "steps": steps,
        "gives_back": side.gives_back,
        "call": max(0, taken - left),
    }


def _bytes_of(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()


def _why_no_update(target: Target, phase: str, seed: int, channel: Channel) -> str:
    """Why updates of the user's own size are not tuned unasked; empty if they are.

    Updates of a part of their rows come first: they take less, and if even they take too long,
    nothing larger has to be made.
    """
    rows = target.own_batch_size.get(phase, 0)
    for size in (rows // _PART_OF_AN_UPDATE, None):
        if size == 0:
            continue
        try:
            took_s = _update_s(target, phase, size, seed, channel)
        except Exception as error:
            if size is None:
                return f"which fails here: {first_words(error)}"
            continue  # some algorithms need more rows
        if took_s > _LONGEST_UPDATE_S and size is None:
            return f"which takes about {took_s:.1f} s each"
        if took_s > _LONGEST_UPDATE_S:
            return f"which takes more than {math.floor(10 * took_s) / 10} s each"
    return ""


def _update_s(
    target: Target, phase: str, size: int | None, seed: int, channel: Channel
) -> float:
    """Seconds of an update; the toolchain's compile goes on until all is there to time it."""
    inputs = inputs_of(target, phase, size, seed)
    update = timed(make_side(target, phase, inputs))
    timer = timer_of(target.device)
    with channel.exclusive():
        # The first one allocates.
        took_s = min(block(update, 1, timer) for _ in range(2))
    return took_s / (len(inputs) if isinstance(inputs, Calls) else 1)


def _try_in_eager(
    target: Target, phase: str, request: ProbeRequest, result: ProbeResult
) -> dict[str, Any]:
    """Call a phase once, which may raise anything; the result gets what this tells of it.

    Returns what it has held of memory.
    """
    inputs = _first_inputs(target, phase, request, result)
    side = make_side(target, phase, inputs, model=target.fresh_model(phase, True))
    buffers = [b for b in side.model.buffers() if not b.is_inference()]
    before = [b._version for b in buffers]
    shapes = _shapes_in(inputs)
    is_own = PHASES[phase].is_own
    # Code of the user's own may forget to call the model that it was given.
    run = functools.partial(demand_calls, side.model, side.run) if is_own else side.run
    output, taken = footprint.with_peak(run, target.device)
    held = _held(side, taken)
    view = side.view(output)
    _demand_a_number(phase, view)
    after = [b._version for b in buffers]
    result.target["writes_buffers"][phase] = before != after
    _demand_same_shapes(shapes, _shapes_in(inputs))
    if target.fixed_batch and inputs is not None:
        calls = inputs if isinstance(inputs, Calls) else (inputs,)
        result.target["fixed_batch_size"] = sum(map(_samples_in, calls))
    return held


def _demand_a_number(phase: str, view: View) -> None:
    """Raise a TargetError if a step that trains nothing returns nothing to compare."""
    if phase == INFERENCE_STEP and not has_number(view):
        raise TargetError(
            "the step of get_step() returns nothing that can be compared",
            "what is right is told by the tensors and numbers that it returns",
            hint="return the result in the step, such as its loss or its last tokens",
        )


def _first_inputs(
    target: Target, phase: str, request: ProbeRequest, result: ProbeResult
) -> Any:
    """Inputs of a phase; the result gets what they tell, and the function that they fail in."""
    size, seed = request.batch_size, request.header.seed
    is_update = PHASES[phase].is_update
    result.during = f"get_inputs({size})"
    inputs = inputs_of(target, phase, size, seed)
    if is_update and isinstance(inputs, Calls):
        # How many kinds there are depends on the size, which is the user's own.
        inputs = inputs_of(target, phase, None, seed)
    result.during = None
    if isinstance(inputs, Calls):
        workload: dict[str, Any] = {"calls": len(inputs), "kinds": len(kinds(inputs))}
        if is_update:
            # Only it has several; other targets have them in all phases.
            workload["phases"] = [phase]
        result.target["workload"] = workload
    # A library draws every shape that there is by itself.
    if not target.library:
        if not (target.fixed_batch or isinstance(inputs, Calls) or inputs is None):
            _look_at_sizes(target, phase, request, inputs, result)
        draw = 0 if isinstance(inputs, Calls) else 1
        _look_at_calls(inputs, inputs_of(target, phase, size, seed, draw), result)
    return inputs


def _look_at_sizes(
    target: Target, phase: str, request: ProbeRequest, inputs: Any, result: ProbeResult
) -> None:
    """Take a batch size for fixed where ``get_inputs`` gives the same shapes for another one."""
    size = request.batch_size or 1
    try:
        others = inputs_of(target, phase, size + 1, request.header.seed)
    except Exception:
        return  # what it does not take is found where it is asked for
    if tensors_by_path(inputs) and shape_of(inputs) == shape_of(others):
        target.fixed_batch = True
        result.target["choices"]["batch size"] = (
            f"{_samples_in(inputs)}: get_inputs({size}) and get_inputs({size + 1}) give the same "
            "shapes, so no other size is tried"
        )


def _demand_same_shapes(
    before: dict[str, tuple[int, ...]], after: dict[str, tuple[int, ...]]
) -> None:
    """Raise a TargetError if a call has changed the shape of its inputs, such as of a cache."""
    for path, shape in after.items():
        if shape != (was := before.get(path)):
            raise TargetError(
                "a call of the model changes its own inputs, so each would compute something else",
                f"{path} of get_inputs() has shape {shape} after a call; before: {was or 'none'}",
                hint="make such a cache in forward, or let forward copy it before it grows",
            )


def _look_at_calls(inputs: Any, others: Any, result: ProbeResult) -> None:
    """What differs between the calls; where one is timed and others may differ, a sentence.

    ``others`` are inputs with another seed, or of a workload those with the same one.
    """
    choices = result.target["choices"]
    if isinstance(inputs, Calls):
        if [*map(shape_of, inputs)] != [*map(shape_of, others)]:
            choices["shapes"] = (
                "get_calls() gives other shapes each time, although Python, NumPy and torch have "
                "the same seed, so each process measures others: seed what draws them"
            )
        if len(inputs) == MOST:
            choices["calls"] = f"the first {MOST} of them"
    elif inputs is not None and shape_of(inputs) != shape_of(others):
        choices["shapes"] = (
            f"figures are of {in_words(inputs)} only; get_inputs() gives {in_words(others)} too: "
            "with get_calls() all of them count"
        )
    elif names := _OF_SEQUENCES & {
        path.strip("[]'.") for path in tensors_by_path(inputs)
    }:
        choices["shapes"] = (
            f"figures are of {min(names)} with {in_words(inputs)} only: where lengths differ from "
            "call to call, give get_calls()"
        )


def _samples_in(inputs: Any) -> int:
    """The first size of the first tensor that has one."""
    tensors = (x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor))
    return int(next((x.shape[0] for x in tensors if x.dim()), 1))


def _shapes_in(inputs: Any) -> dict[str, tuple[int, ...]]:
    return {
        path.lstrip("."): tuple(x.shape) for path, x in tensors_by_path(inputs).items()
    }


def _demand_that_a_copy_does(target: Target, request: ProbeRequest) -> None:
    """Check that forward returns a tensor, and that a copy returns what the model does."""
    views: list[View] = []
    # Two copies tell what a copy does otherwise from what no seed decides.
    copies = [target.fresh_model(FORWARD, True) for _ in range(2)]
    for model in (*copies, target.model):
        # Other inputs than before, of which a copy's hooks may have left results in the model.
        inputs = inputs_of(
            target, FORWARD, request.batch_size, request.header.seed, draw=1
        )
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


def _describe(target: Target, phases: list[str]) -> dict[str, Any]:
    known = target.known_phases()
    if unknown := [phase for phase in phases if phase not in known]:
        raise AutocompileError(
            f"this target has no phase {unknown[0]}",
            f"it has: {', '.join(known)}",
        )
    model = target.fresh_model(OPTIMIZER_STEP)
    optimizers: list[Any] = []
    steps = any(PHASES[phase].steps and not PHASES[phase].is_update for phase in phases)
    if steps and any(p.requires_grad for p in model.parameters()):
        optimizers = [target.make_optimizer(model)]
    facts = described(optimizers[0], model) if optimizers else None
    for phase in phases:
        if PHASES[phase].is_update:
            made = target.updates(target.fresh_model(phase))
            optimizers += made.optimizers
    every = [implementations(optimizer) for optimizer in optimizers]
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
        # The implementations that all of them have beside their own.
        "optimizers": [
            n for n in OPTIMIZERS if every and all(n in names for names in every)
        ],
        "optimizer": facts,
        "choices": target.choices,
        "sha256": target.sha256,
    }


def described(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module
) -> dict[str, Any]:
    """How an optimizer is made, for exports: ``lr``, and ``class`` and ``arguments`` if they do.

    They do where it is a class of ``torch.optim`` that treats all parameters alike.
    """
    group, kind = optimizer.param_groups[0], type(optimizer)
    lr = group.get("lr")
    facts: dict[str, Any] = {"lr": None if lr is None else float(lr)}
    names = inspect.signature(kind).parameters
    values = {name: group[name] for name in names if name in group and name != "params"}
    is_all = [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]
    is_torchs = getattr(torch.optim, kind.__name__, None) is kind
    if is_torchs and is_all and len(optimizer.param_groups) == 1:
        with contextlib.suppress(TypeError):  # a tensor, which cannot be written down
            json.dumps(values)
            facts["class"] = kind.__name__
            facts["arguments"] = {
                n: v for n, v in values.items() if v != names[n].default
            }
    return facts
