"""The checks of one side against the reference, in the order in which a trial makes them.

The first checks, of every setting:

- ``first_calls``: the first three calls, with the same seeds, on two batches in turns: results,
  inputs and buffers that a call changes, how results lie in memory, and results that a later call
  overwrites; of a step that trains, loss, gradients and buffers of the first and, from eager's
  state, of the third, and apart from them what the optimizer makes of the same gradients. Of a
  side that draws its own random numbers structure, types, shapes, that numbers are finite, and what
  the optimizer makes of its gradients. In a search errors that rounding may explain (ten times the
  tolerance, 5 % of a gradient) pass;
- ``repeated_draws``: those random numbers are the same for the same seed;
- ``last_call``: one call after the timing, in memory that another call's inputs had.

The later checks, which take a compile or many calls, of each setting that may be an answer:

- the same as above with what rounding really moves, for which eager mode runs 4 to 16 times;
- ``draws``: a side's own random numbers differ with the seed and are distributed as eager's, what
  no draw touches is eager's, and gradients are the slope of the loss (``draws.py``);
- ``weights``, or ``new_weights`` of a side that holds them as constants: new weights, set in place
  and by ``load_state_dict``: the output has to follow them;
- ``schedule``: another learning rate;
- ``at_a_size_between``: a size between those of the calls of a workload.

Each raises :class:`Failed` where a side is wrong. A difference of values is wrong where it is more
than rounding (``compare.py``).

What is not covered: other shapes, errors that appear after more calls, gradients of inputs, state of
an optimizer that no step of the check uses, and an error as small as eager's own noise, rounding or,
of a side that draws otherwise, what chance explains.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from autocompile.errors import first_words
from autocompile.runtime.compiling import uses_cuda_graphs
from autocompile.runtime.ranks import here
from autocompile.store.record import Outcome
from autocompile.trial.failures import Failed
from autocompile.trial.measure import telemetry
from autocompile.trial.model.calls import Calls
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.model.state import perturb
from autocompile.trial.model.target import seed_everything
from autocompile.trial.values import copy_inputs, rebuilt, tensors_by_path
from autocompile.trial.verify.compare import (
    TRIES,
    Moving,
    compare,
    kind_problem,
    largest,
    mismatch_scale,
    relative_differences,
)
from autocompile.trial.verify.draws import (
    distribution_problem,
    draws_of,
    slope_problem,
)
from autocompile.trial.verify.layout import (
    layout_of,
    memory_that_is_shared,
    other_layout,
)
from autocompile.trial.verify.optimizer import (
    Gradients,
    Made,
    step_problem,
    step_with,
)
from autocompile.trial.verify.outputs import LastResults, View, copy_view, without
from autocompile.trial.verify.reference import (
    MOST_NOISE,
    Reference,
    Subject,
    note_unknown,
    nothing_moves,
)
from autocompile.trial.verify.rounding import RoundOtherwise

# Where draws follow the seed, one of so many repeats agrees, also on a GPU whose kernels add up in
# any order.
_REPEATS = 3
_VISIBLE = 1e-2  # smallest relative change of the output that can show new weights
_OVERWRITES = (
    "outputs are overwritten by the next call (CUDA graphs): clone what you keep"
)
_FACTOR = 0.7  # of a learning rate: the older one is off by 40 %
# Of a model that is copied to the CPU to see whether made-up inputs fit: more takes too long.
_MOST_ON_CPU = 2**30


# The first calls ----------------------------------------------------------------------------------


def first_calls(reference: Reference, subject: Subject) -> None:
    """Compare the first three calls with eager's; the first was made by the caller."""
    side = subject.side
    subject.accepted = dict(reference.noise)
    if why := reference.why_incomparable():
        raise Failed(Outcome.WRONG_OUTPUT, why)
    if reference.phase.steps:
        _first_steps(reference, subject)
        return
    for index, got, lost in reference.first_views(side, subject.first):
        when = f"call {index + 1}"
        _demand_kept(reference, subject, lost, when)
        if not index:
            _demand_layout(reference, subject, got)
        want = reference.expected[index]
        moved = reference.rounding(index, subject.notes)
        may_draw = reference.may_have_drawn_otherwise(side, index)
        _demand_at_first(reference, subject, got, want, when, moved, may_draw)


def _first_steps(reference: Reference, subject: Subject) -> None:
    """Compare the first steps: passes from one state, and steps with the same gradients."""
    side = subject.side
    view = side.view(subject.first)
    _demand_layout(reference, subject, view)
    last, first = LastResults(view), copy_view(view)
    del view
    may_draw = reference.may_have_drawn_otherwise(side, 0)
    lost, problem = _second_step(reference, subject, last, first)
    want = reference.first_view()
    moved = reference.rounding(0, subject.notes, is_first=True)
    _demand_at_first(reference, subject, first, want, "call 1", moved, may_draw)
    del want, first
    # Now, since wrong gradients say more than what an optimizer makes of them.
    if problem:
        raise problem
    _demand_kept(reference, subject, lost, "call 2")
    for index in range(1, max(2, len(reference.batches))):
        if subject.draws_otherwise:
            break
        want, got, made = _from_eagers_state(reference, side, index)
        moved = reference.rounding(index, subject.notes)
        may_draw = reference.may_have_drawn_otherwise(side, index)
        when = f"call {index + 2}"
        _demand_at_first(reference, subject, got, want, when, moved, may_draw)
        del want, got, made  # each is as large as the model
    reference.kept()


def _second_step(
    reference: Reference, subject: Subject, last: LastResults, first: View
) -> tuple[list[str], Failed | None]:
    """Make the second step, and check what the optimizer made of the gradients of both.

    ``first`` is the view of the first. Returns the paths of its results that the second has
    overwritten, and what is wrong.
    """
    side, given = subject.side, list[Gradients]()

    def begin() -> Side:
        made = reference.scratch()
        for gradients in given:
            step_with(made, gradients)
        return made

    try:
        with reference.without_kept():
            if not reference.compares_updates:
                made, before = Made.by(side), reference.first_parameters()
                _demand_step(reference, subject, begin, made, "call 1", before)
                given.append(_kept(made.gradients, first["gradients"]))
                del made
            reference.call(side, 1)
            lost = last.overwritten()
            if not reference.compares_updates:
                made = Made.by(side)
                side.release()  # its next call begins with the kept state
                _demand_step(reference, subject, begin, made, "call 2")
    except Failed as error:
        return [], error
    return lost, None


def _kept(gradients: Gradients, copied: Gradients) -> Gradients:
    """Gradients that later calls cannot overwrite: those that are ``copied``, or sparse ones."""
    sparse = {
        n: g.clone()
        for n, g in gradients.items()
        if g is not None and g.layout is not torch.strided
    }
    return {n: sparse.get(n, copied.get(n)) for n in gradients}


def repeated_draws(reference: Reference, subject: Subject) -> None:
    """Check that a side's own draws are the same for the same seed."""
    if subject.draws_otherwise:
        _demand_repeats(reference, subject, "when the same seed is set again")


def whole_pass(reference: Reference, subject: Subject) -> None:
    """Make all calls of a pass once, in order, so that timed ones find what it compiles."""
    if isinstance(reference.workload, Calls):
        subject.side.inputs = copy_inputs(reference.workload)
        subject.side.run()


# Later: own random numbers, new weights ----------------------------------------------------------


def draws(reference: Reference, subject: Subject) -> None:
    """Check that what a side draws otherwise is distributed as eager's; the rest equals eager's."""
    if not subject.draws_otherwise:
        return
    subject._repeats = {}  # as large as the model
    side, eager = subject.side, reference.eagers_draws()
    own = draws_of(reference, side, eager.fixed, eager.draws)
    problem = distribution_problem(reference, eager, own, subject.notes)
    problem = problem or slope_problem(reference, eager, side)
    reference.kept()
    if problem:
        raise Failed(Outcome.WRONG_OUTPUT, f"{problem} (random numbers)")
    problem = compare(
        eager.draws.first,
        own.first,
        noise=reference.noise,
        moved=reference.rounding(0, subject.notes),
        tolerance=reference.tolerance,
        skip=reference.free,
        restless=eager.draws.moved,
    )
    if problem:
        raise Failed(Outcome.WRONG_OUTPUT, f"{problem} (but for random numbers)")


def _demand_repeats(reference: Reference, subject: Subject, when: str) -> None:
    """Check that a side with its own draws repeats its results with the same seed."""
    subject._repeats = subject._repeats or reference.from_kept(subject.side)
    moved = reference.rounding(0, subject.notes)

    def problem_of(got: View, moved: Moving) -> str | None:
        known = subject.accepted
        return compare(subject._repeats, got, noise=known, moved=moved)

    for _ in range(_REPEATS):
        got = reference.from_kept(subject.side)
        problem = _unless_near(subject, partial(problem_of, got), moved)
        if not problem:
            return
        if mismatch_scale(subject._repeats, got) > MOST_NOISE:
            break  # other numbers were drawn: that is no order of sums
        subject._repeats = got
    raise Failed(Outcome.WRONG_OUTPUT, f"{problem} ({when})")


def weights(reference: Reference, subject: Subject) -> bool | None:
    """Check that new weights take effect, set in place and by ``load_state_dict``.

    Returns True; None if this cannot be checked: the phase is not a forward pass, or the output
    hardly depends on the weights.
    """
    if reference.phase.steps:
        return None
    side, restless = subject.side, subject.restless()
    draws_otherwise = subject.draws_otherwise
    before = reference.from_kept(reference.eager)
    own_before = reference.from_kept(side) if draws_otherwise else before
    with reference.with_other_weights() as state:
        perturb(side.model, reference.seed)
        want, changed = reference.from_kept(reference.eager), reference.from_kept(side)
        is_visible = _is_visible(reference, subject, before, want)
        what = "an in-place update of the weights"
        if is_visible and not draws_otherwise:
            _demand_live(reference, subject, changed, want, before, what)
        elif is_visible and not compare(own_before, changed, restless=restless):
            raise Failed(Outcome.STALE_WEIGHTS, f"the output did not follow {what}")
    side.model.load_state_dict(state)
    got = reference.from_kept(side)
    if not is_visible:
        return None
    # A side with its own draws must return to its own earlier output.
    want, old = (own_before, changed) if draws_otherwise else (before, want)
    _demand_live(reference, subject, got, want, old, "load_state_dict")
    return True


def new_weights(
    reference: Reference, subject: Subject, synchronize: Callable[[], None]
) -> tuple[bool | None, float]:
    """Load new weights into a side that holds them as constants, once, for good.

    Returns whether its output follows, as :func:`weights`, and the seconds of the call.
    """
    side, before = subject.side, reference.from_kept(reference.eager)
    with reference.with_other_weights():
        side.model.load_state_dict(reference.eager.model.state_dict())
        want = reference.from_kept(reference.eager)
        side.begin_anew(reference.eager)
        synchronize()
        began = time.perf_counter()
        output = reference.call(side, 0)
        synchronize()
        took_s = time.perf_counter() - began
        is_visible = _is_visible(reference, subject, before, want)
        if not is_visible or subject.draws_otherwise:
            return None, took_s
        got = copy_view(side.view(output))
        _demand_live(reference, subject, got, want, before, "load_state_dict")
        return True, took_s


def _is_visible(
    reference: Reference, subject: Subject, before: View, want: View
) -> bool:
    """Whether new weights change eager's output by more than errors that are accepted."""
    known = 10 * _largest_below(MOST_NOISE, reference.noise)
    if reference.check or reference.tolerance is not None:
        # The user may accept larger errors, which must not be taken for stale weights.
        known = max(known, 3 * _largest_below(MOST_NOISE, subject.accepted))
    return mismatch_scale(before, want, subject.restless()) > max(_VISIBLE, known)


def _largest_below(limit: float, errors: Mapping[str, float]) -> float:
    return max((error for error in errors.values() if error <= limit), default=0.0)


def _demand_live(
    reference: Reference,
    subject: Subject,
    got: View,
    want: View,
    old: View,
    what: str,
) -> None:
    """Raise ``stale_weights`` where a view is nearer to the old one than to that of new weights."""
    restless = subject.restless()
    moved = reference.rounding(0, subject.notes)
    if subject.draws_otherwise:
        moved = nothing_moves
    noise = reference.noise
    # Without the user's tolerance, which may be too wide to tell old from new.
    if compare(want, got, noise=noise, moved=moved, restless=restless) is None:
        return
    if mismatch_scale(old, got, restless) < mismatch_scale(want, got, restless):
        raise Failed(Outcome.STALE_WEIGHTS, f"the output did not follow {what}")
    _demand(reference, subject, got, want, f"after {what}", moved, restless)


# After the timing ---------------------------------------------------------------------------------


def last_call(reference: Reference, subject: Subject) -> None:
    """Compare one call after the timing."""
    side, when = subject.side, "after the timing"
    if subject.draws_otherwise:
        _demand_repeats(reference, subject, when)
        side.begin_anew(reference.eager)
        got = side.view(reference.call(side, 1))
        made = Made.by(side)
    else:
        # What keeps results by the address of an input gives an old one in one of these.
        if reference.phase.steps:
            side.begin_anew(reference.eager)
            reference.call(side, 0)
        else:
            want, got, _ = _from_eagers_state(reference, side, 0)
            moved = reference.rounding(0, subject.notes)
            _demand(reference, subject, got, want, when, moved)
        want, got, made = _from_eagers_state(reference, side, 1, in_place=True)
        moved = reference.rounding(1, subject.notes)
        _demand(reference, subject, got, want, when, moved)
        del want
    last = LastResults(got)
    del got
    if reference.phase.steps:
        if not reference.compares_updates:
            before = reference.eager.kept_parameters()
            _demand_step(reference, subject, reference.kept, made, when, before)
        reference.kept()
    del made
    reference.call(side, 0)
    lost = last.overwritten()
    _demand_kept(reference, subject, lost, "a call after the timing")


# Later: what no call has had ----------------------------------------------------------------------


def at_a_size_between(reference: Reference, subject: Subject, inputs: Any) -> None:
    """Compare a call with inputs of another size, which are made up from those of others.

    Not where they may not fit each other, as indices into what was shortened do not: on a GPU a
    wrong index ends the process.
    """
    side = subject.side
    size = "at a size between those of the calls"
    if why := _why_unfit(reference, inputs):
        subject.note(f"{size}, nothing is compared: {why}")
        return
    with reference.with_inputs(inputs):
        try:
            reference.call(reference.kept(), 0)
        except Exception as error:
            here().end_all(error)
            subject.note(f"{size}, eager fails: {first_words(error)}")
            return
        if not subject.draws_otherwise:
            want, got, _ = _from_eagers_state(reference, side, 0)
            moved = reference.rounding(0, subject.notes)
            _demand(reference, subject, got, want, size, moved)


def _why_unfit(reference: Reference, inputs: Any) -> str:
    """Why eager does not take inputs on the CPU, where a wrong index is an error, or empty."""
    target = reference.target
    if here().agree(target.device.type == "cpu" or _indexes_nothing(inputs), all):
        return ""
    if here().are_several:
        return "several ranks cannot try such inputs on the CPU first"
    model = target.model_of(reference.name)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    if size > _MOST_ON_CPU:
        return "the model is too large to try such inputs on the CPU first"
    cpu = torch.device("cpu")

    def moved(x: Any) -> Any:
        return x.to(cpu) if isinstance(x, torch.Tensor) else x

    try:
        there = dataclasses.replace(
            target, model=copy.deepcopy(model).to(cpu), device=cpu
        )
        there = dataclasses.replace(there, inference_model=None, training_model=None)
        side = make_side(there, reference.name, rebuilt(inputs, moved))
        seed_everything(reference.seed)
        side.run()
    except Exception as error:
        return f"eager fails on the CPU: {first_words(error)}"
    return ""


def _indexes_nothing(inputs: Any) -> bool:
    """Whether no integer of the inputs could point outside one of their axes."""
    tensors = tensors_by_path(inputs).values()
    least = min((n for x in tensors for n in x.shape), default=0)
    whole = [x for x in tensors if not x.is_floating_point() and not x.is_complex()]
    return all(
        int(x.max()) < least for x in whole if x.numel() and x.dtype is not torch.bool
    )


def schedule(reference: Reference, subject: Subject) -> None:
    """Change the learning rate on both sides, step, and compare; then put everything back.

    Dynamo guards on a learning rate that is a Python number. Where it compiles again for another, a
    note says so. Nothing is timed after it: what it compiles stays in Dynamo's cache.
    """
    eager, side = reference.eager, subject.side
    optimizers = [*eager.optimizers, *side.optimizers]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if reference.compares_updates or not groups:
        return
    if not all(isinstance(g.get("lr"), (float, torch.Tensor)) for g in groups):
        return
    rates = [float(group["lr"]) for group in groups]
    eager.restore()
    kept, graphs = eager.kept, telemetry.dynamo_facts()["graphs"]

    def begin() -> Side:
        eager.restore()
        return eager

    try:
        _set_rates(groups, [rate * _FACTOR for rate in rates])
        eager.kept = kept.with_numbers_of(eager)
        side.adopt(eager)
        reference.call(side, 1)
        made, before = Made.by(side), eager.kept_parameters()
        problem = _step_problem(reference, subject, begin, made, before)
    finally:
        _set_rates(groups, rates)
        eager.kept = kept
        eager.restore()
        side.adopt(eager)
    if problem:
        what = f"the step does not follow the learning rate: {problem}"
        raise Failed(Outcome.WRONG_OUTPUT, what)
    if telemetry.dynamo_facts()["graphs"] > graphs:
        subject.note(_recompiles_for(side.optimizers[0]))


def _recompiles_for(optimizer: Any) -> str:
    """That a schedule recompiles a step, and what to write where the rate is a number."""
    kind, rate = type(optimizer).__name__, optimizer.param_groups[0]["lr"]
    words = "a learning-rate schedule recompiles this step"
    if isinstance(rate, torch.Tensor):
        return words
    how = f"{kind}(params, lr=torch.tensor({rate}))"
    return f"{words}; pass the rate as a tensor, e.g. {how}"


def _set_rates(groups: list[dict[str, Any]], rates: list[float]) -> None:
    """Like torch's schedulers: fill a tensor, replace a number."""
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


# What checks share --------------------------------------------------------------------------------


def _problem(
    reference: Reference,
    want: View,
    got: View,
    moved: Moving,
    restless: Collection[str] = (),
) -> str | None:
    """What is wrong with a view, whose outputs the user's ``check`` may judge; or None."""
    return reference.refusal(want, got) or compare(
        want,
        got,
        noise=reference.noise,
        moved=moved,
        tolerance=reference.tolerance,
        skip=reference.free,
        restless=restless,
    )


def _demand(
    reference: Reference,
    subject: Subject,
    got: View,
    want: View,
    when: str,
    moved: Moving,
    restless: Collection[str] = (),
) -> None:
    """Compare a view with eager's, given what rounding moves in that call."""
    problem = _unless_near(
        subject, lambda by: _problem(reference, want, got, by, restless), moved
    )
    if problem:
        raise Failed(Outcome.WRONG_OUTPUT, f"{problem} ({when})")


def _unless_near(
    subject: Subject, problem: Callable[[Moving], str | None], moved: Moving
) -> str | None:
    """What is wrong by what rounding moves; first, of a side judged roughly, without knowing it.

    What rounding moves takes many calls: what is near enough without it has to wait.
    """
    if not subject.is_judged_finely and not problem(_unknown):
        return None
    return problem(moved)


def _demand_at_first(
    reference: Reference,
    subject: Subject,
    got: View,
    want: View,
    when: str,
    moved: Moving,
    may_draw: bool,
) -> None:
    """Compare one of the first calls, whose error counts as none later on.

    Here it shows whether a side draws otherwise than eager, if it may have (``may_draw``); then only
    its form is compared.
    """
    if may_draw and not subject.draws_otherwise:
        subject.draws_otherwise = any(
            _problem(reference, want, got, each) for each in (_unknown, moved)
        )
    if not subject.draws_otherwise:
        _demand(reference, subject, got, want, when, moved)
        subject.accepted = largest(subject.accepted, relative_differences(want, got))
        return
    form = without(want, *reference.free), without(got, *reference.free)
    if problem := kind_problem(*form):
        raise Failed(Outcome.WRONG_OUTPUT, f"{problem} ({when})")


def _unknown(tries: int) -> None:
    """In place of what rounding moves: only what is far off is wrong."""


def _from_eagers_state(
    reference: Reference, side: Side, index: int, in_place: bool = False
) -> tuple[View, View, Made]:
    """Eager's view of a call from the state that it has kept, the side's, and what it made."""
    want = reference.view(index)
    side.begin_anew(reference.eager)
    got = side.view(reference.call(side, index, in_place))
    return want, got, Made.by(side)


def _demand_step(
    reference: Reference,
    subject: Subject,
    begin: Callable[[], Side],
    made: Made,
    when: str,
    before: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Check what the optimizer made of its gradients.

    ``begin`` gives an eager side in the state before the step, and ``before`` its parameters.
    """
    if problem := _step_problem(reference, subject, begin, made, before):
        raise Failed(Outcome.WRONG_OUTPUT, f"{problem} ({when})")


def _step_problem(
    reference: Reference,
    subject: Subject,
    begin: Callable[[], Side],
    made: Made,
    before: Mapping[str, torch.Tensor] | None = None,
) -> str | None:
    def tries(gradients: Gradients) -> Iterator[Side]:
        for number in range(TRIES[-1]):
            try:
                side = begin()
                with RoundOtherwise(reference.seed + number):
                    step_with(side, gradients)
            except Exception as error:
                here().end_all(error)
                note_unknown(first_words(error), subject.notes)
                return
            yield side

    return step_problem(begin, made, tries, before)


def _demand_kept(
    reference: Reference, subject: Subject, lost: list[str], by: str
) -> None:
    """Check that results are unchanged, unless eager or CUDA graphs overwrite them."""
    paths = [path for path in lost if path not in reference.overwrites]
    if paths and not uses_cuda_graphs(subject.side.config):
        what = f"{paths[0]} was overwritten by the next call ({by})"
        raise Failed(Outcome.WRONG_OUTPUT, what)
    if paths:
        subject.note(_OVERWRITES)


def _demand_layout(reference: Reference, subject: Subject, view: View) -> None:
    """Check that results share no memory that eager's do not; say where they lie otherwise."""
    layout = layout_of(view)
    if problem := memory_that_is_shared(reference.layout, layout):
        raise Failed(Outcome.WRONG_OUTPUT, f"{problem} (call 1)")
    for words in other_layout(reference.layout, layout):
        subject.note(words)
