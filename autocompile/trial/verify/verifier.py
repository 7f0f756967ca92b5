"""Compares a compiled side with eager's results.

What is covered:

- the first three calls, with the same seeds, on two batches in turns, and one call after the
  timing: results, inputs and buffers that a call changes, and results that a later call overwrites;
- new weights, set in place and by ``load_state_dict``: the output has to follow them;
- a step that trains: loss, gradients and buffers from eager's state, and apart from them what the
  optimizer makes of the same gradients, also after a change of the learning rate;
- random numbers: the setting is compiled once more to draw eager's numbers, and compared.

What is not covered: other shapes, errors that appear after more calls, whether random numbers have
the right distribution, state of an optimizer that no step of the check uses, and an error as small
as eager's own noise or rounding.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from autocompile.errors import TargetError, first_words
from autocompile.runtime.compiling import uses_cuda_graphs
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import STEP, TRAIN_STEP, phase_of
from autocompile.store.record import Outcome
from autocompile.trial.failures import Failed
from autocompile.trial.measure import telemetry
from autocompile.trial.model.calls import Calls, each_call, first_call, kinds
from autocompile.trial.model.sides import (
    Side,
    copy_inputs,
    make_side,
    perturb,
    random_states,
)
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.verify.compare import (
    TRIES,
    Movement,
    compare,
    differences,
    largest,
    mismatch_scale,
)
from autocompile.trial.verify.optimizer import (
    Gradients,
    gradients_of,
    step_problem,
    step_with,
)
from autocompile.trial.verify.outputs import (
    LastResults,
    View,
    copies,
    copy_view,
    has_nan,
    has_number,
    has_tensor,
    opaque_types,
    refusal,
    without,
)
from autocompile.trial.verify.rounding import RoundOtherwise

_MAX_NOISE = 0.05  # if eager differs from itself by more, nothing can be verified
# Compared before the timing: CUDA graphs warm up in the first, record the second, replay the third.
_CALLS = 3
_SEEDS, _MOST_S = (
    20,
    10.0,
)  # few draws, as of stochastic depth, may be the same for some
# Of the length of all gradients: where rounding moves them by more, only their lengths say much.
_MOST_ROUNDING = 0.5
_VISIBLE = 1e-2  # smallest relative change of the output that can show new weights
_OVERWRITES = (
    "outputs are overwritten by the next call (CUDA graphs): clone what you keep"
)
_LONGEST_PERIOD = 64  # calls of a step that accumulates, in which it steps twice
_CHANGES = ("gradients", "updates")  # as large as the model
_FEW_KINDS = (
    3  # of calls of a workload that are compared many times; each kind is twice
)
_MOST_KINDS = 12  # of calls of a workload that are compared in training


class Verifier:
    """Runs eager mode twice, then verifies a compiled side against it.

    A method that finds an error raises :class:`Failed`: ``wrong_output`` or ``stale_weights``.

    Args:
        batches: two, with different values; call ``n`` uses batch ``n % 2``, and ``seed + n``.
        notes: gets sentences for the user.
        tolerance: the user's, for outputs.
        precision: eager mode with the setting's precision, which the compiled side must agree with.
        is_whole: that is of the whole step, as the setting's scope is.

    Attributes:
        eager: the eager side, ready to be timed.
        expected: eager's view of the first call; of a step without gradients once it is compared.
        noise: the largest relative difference between two equal eager runs.
        check: the user's ``check``, if it compares the outputs.
        compares_updates: of a user's own step what it makes of the parameters is compared, since
            its gradients do not tell what its optimizer does.
    """

    def __init__(
        self,
        target: Target,
        phase: str,
        batches: tuple[Any, Any],
        seed: int,
        notes: list[str],
        tolerance: float | None = None,
        precision: CompileConfig = EAGER,
        is_whole: bool = False,
    ) -> None:
        self._target, self._phase, self._seed = target, phase, seed
        self._pass = batches[0]
        self._steps = phase_of(phase).steps
        self._batches = self._compared(*batches)
        self._notes, self.tolerance = notes, tolerance
        self._eager_overwrites: set[str] = set()
        self._precision, self._is_whole = precision, is_whole
        self.compares_updates = False
        if phase == STEP and not self._follows_gradients():
            self.compares_updates, self._batches = True, self._periods()
        self.eager = self.another_side(precision)
        self._expected = self._observe(self.eager)
        self.expected = self._expected[0]
        self.check = target.check if "outputs" in self.expected else None
        if self.check and isinstance(self._batches[0], Calls):
            self.check = each_call(self.check)
        self._noise: dict[str, float] = {}
        for first, second in self._pairs():
            self._noise = largest(self._noise, differences(first, second))
            if problem := self._refusal(first, second):
                raise TargetError(
                    "the target's check() rejects a second run of eager mode",
                    problem,
                    "check(expected, actual) gets the outputs of the same call",
                )
        self._given: list[Gradients] = []  # of the first steps of a side, on the CPU
        self.noise = max(self._noise.values(), default=0.0)
        self._drift: dict[str, float] = {}
        self._movements: dict[int, Movement] = {}  # by call
        self._is_rounding_known = True
        self._repeatable: View = {}  # what a side with its own draws gives for one seed
        self._is_random = self._depends_on_seed()
        notes += self._about_eager()
        self._expected = [] if self._steps else self._expected

    def _compared(self, first: Any, second: Any) -> tuple[Any, ...]:
        """What is compared of two batches: of passes, each kind of call and not each call.

        The kinds stand in the order of first use, in which the calls of a pass compile.
        """
        if not isinstance(first, Calls):
            return first, second
        where = [group[0] for group in kinds(first)]
        if self._steps:  # each step is compared by its own gradients
            each = tuple(first[n] for n in where[:_MOST_KINDS])
            return each if len(each) > 1 else (*each, first_call(second))
        if phase_of(
            self._phase
        ).is_own:  # what a call computes depends on those before it
            return Calls(first[n] for n in where[:_FEW_KINDS]), second
        # Most comparisons are of the first batch, so that has few.
        return Calls(first[n] for n in where[:_FEW_KINDS]), Calls(
            second[n] for n in where
        )

    def _follows_gradients(self) -> bool:
        """Whether the gradients that a user's own step leaves are those that its optimizer used.

        Not where it accumulates over calls, steps twice, clears them or changes its learning rate,
        and not where an optimizer does not step in each call.
        """
        side, fresh = self.another_side(), self.another_side()
        steps = _steps_of(side)
        for index in range(2):
            self.seeded_call(side, index)
            if steps != [index + 1] * len(steps):
                return False
            try:
                if step_problem(fresh, side):
                    return False
            except TypeError:  # step() wants a closure
                return False
        return True

    def _periods(self) -> tuple[Calls, Calls]:
        """Calls after which each optimizer has stepped twice, in the order of two batches."""
        side, calls, began = self.another_side(), 0, time.monotonic()
        steps = _steps_of(side)
        while calls < 2 or (
            min(steps, default=2) < 2
            and calls < _LONGEST_PERIOD
            and time.monotonic() - began < _MOST_S
        ):
            self.seeded_call(side, calls)
            calls += 1
        if min(steps, default=2) < 2:
            what = f"in {calls} calls of its step {steps.count(0) + steps.count(1)}"
            self._notes.append(
                f"{what} optimizers do not step twice, which is not compared"
            )
        calls = max(calls, len(self._batches))
        batches = (self._batches * (calls + 1))[: calls + 1]
        return Calls(batches[:calls]), Calls(batches[1:])

    def _about_eager(self) -> Iterator[str]:
        """Sentences for the user on how the sides are compared."""
        if self.check:
            yield "outputs are compared by the target's check()"
        for kind in sorted(opaque_types(self.expected)):
            yield f"the outputs hold {kind}, of which only the type is compared"
        if self.tolerance is not None:
            yield f"outputs may be off by {self.tolerance:g} (the requested tolerance)"
        if self.noise > 0:
            yield f"eager differs from itself by {self.noise:.1g}; tolerances allow for it"
        if any(has_nan(view) for view in self._expected):
            yield "eager's output holds NaN; compiled may hold it in the same places"
        if self._is_random:
            yield (
                "this phase draws random numbers: it is compared with eager under Inductor's "
                "fallback_random, which draws the same numbers"
            )

    def another_side(self, config: CompileConfig = EAGER) -> Side:
        model = self._target.fresh_model(self._phase, shares_parameters=config.is_eager)
        whole = self._is_whole
        return make_side(
            self._target, self._phase, self._batches[0], config, model, whole
        )

    def seeded_call(self, side: Side, index: int) -> Any:
        """Make call number ``index`` with its seed and batch of inputs."""
        # A copy, since a model may change its inputs in place.
        return self._run(
            side, copy_inputs(self._batches[index % len(self._batches)]), index
        )

    def _run(self, side: Side, inputs: Any, index: int) -> Any:
        side.inputs = inputs
        if self.compares_updates:
            side.before = copies([*side.parameters.values()])
        seed_everything(self._seed + index)
        return side.run()

    def _first_views(
        self, side: Side, output: Any
    ) -> Iterator[tuple[int, View, list[str]]]:
        """Make the calls after the first one, which has given ``output``.

        Yields the number of each call, its view and the paths of outputs that it has overwritten.
        """
        last: LastResults | None = None
        for index in range(_CALLS):
            output = self.seeded_call(side, index) if index else output
            lost = last.overwritten() if last else []
            view = side.view(output)
            last = LastResults(view)
            yield index, view, lost

    def draws_otherwise(self, side: Side) -> bool:
        """Whether a side's values depend on random numbers that differ from eager's."""
        config: Any = importlib.import_module("torch._inductor.config")
        return (
            self._is_random
            and side.config.entry.by_inductor
            and not config.fallback_random
        )

    def comparable_random_numbers(
        self, side: Side
    ) -> contextlib.AbstractContextManager[Any]:
        """Context in which a side without its own draws draws eager's random numbers."""
        asks = self._is_random and not self.draws_otherwise(side)
        return _drawing_as_eager() if asks else contextlib.nullcontext()

    def _depends_on_seed(self) -> bool:
        """Whether eager's results depend on random numbers, from its kept state."""
        before, side = random_states(), self.eager
        side.run()
        drawn = before != random_states()
        side.begin_anew(self.eager)
        if not drawn:
            return False
        views = []
        for index in (0, 2):
            views.append(copy_view(side.view(self.seeded_call(side, index))))
            side.begin_anew(self.eager)
        return mismatch_scale(*views) > max(1e-6, 10 * self.noise)

    def from_kept_state(self, side: Side, index: int = 0) -> View:
        """A copy of the view of a call from the state that eager has kept."""
        side.begin_anew(self.eager)
        return copy_view(side.view(self.seeded_call(side, index)))

    def demand_repeats(self, compiled: Side, when: str) -> None:
        """Check that a side with its own draws repeats its results with the same seed."""
        self._repeatable = self._repeatable or self.from_kept_state(compiled)
        got = self.from_kept_state(compiled)
        moved = lambda tries: None  # noqa: E731  # as far as eager differs from itself
        if problem := compare(self._repeatable, got, noise=self.accepted, moved=moved):
            raise Failed(Outcome.WRONG_OUTPUT, f"{problem} ({when})")

    def first_calls(self, compiled: Side, first_output: Any) -> None:
        """Compare the first three calls with eager's; the first was made by the caller."""
        if not compiled.is_eager and (why := self._why_incomparable()):
            raise Failed(Outcome.WRONG_OUTPUT, why)
        if self._steps:
            self._first_steps(compiled, first_output)
            return
        for index, got, lost in self._first_views(compiled, first_output):
            self._demand_unchanged(lost, compiled, f"call {index + 1}")
            if self.draws_otherwise(compiled):
                continue
            want = self._expected[index]
            self.demand(got, want, f"call {index + 1}", self._noise, index)
            self._drift = largest(self._drift, differences(want, got))

    def _first_steps(self, compiled: Side, first_output: Any) -> None:
        """Compare the first steps: passes from one state, and steps with the same gradients."""
        draws_otherwise = self.draws_otherwise(compiled)
        first = compiled.view(first_output)
        if not draws_otherwise:
            self.demand(first, self.expected, "call 1", self._noise, 0)
            self._drift = differences(self.expected, first)
        last = LastResults(first)
        del first
        if not self._is_random:  # else a side that draws like eager is compared later
            self.expected = without(self.expected, *_CHANGES)
        if self._phase == TRAIN_STEP:
            self.eager.model.zero_grad(
                set_to_none=True
            )  # each of its steps makes its own
        fresh = self.another_side(self._precision)
        self._given = []
        self._demand_step(fresh, compiled, "call 1", self._after_given)
        self._given.append(
            {
                n: None if g is None else g.cpu()
                for n, g in gradients_of(compiled).items()
            }
        )
        self.seeded_call(compiled, 1)
        self._demand_unchanged(last.overwritten(), compiled, "call 2")
        self._demand_step(fresh, compiled, "call 2", self._after_given)
        del fresh
        self._given = []
        last_index = max(2, len(self._batches) - 1)
        for index in () if draws_otherwise else range(1, last_index + 1):
            when = f"call {index + 2}"
            want, got = self._from_eagers_state(compiled, index, when, self._noise)
            self._drift = largest(self._drift, differences(want, got))
        self.eager.begin_anew(self.eager)

    def _from_eagers_state(
        self, compiled: Side, index: int, when: str, noise: Mapping[str, float]
    ) -> tuple[View, View]:
        """Compare a call from the state that eager has kept; returns both views."""
        want = self._eagers(index)
        compiled.begin_anew(self.eager)
        got = compiled.view(self.seeded_call(compiled, index))
        self.demand(got, want, when, noise, index)
        return want, got

    def _demand_step(
        self,
        reference: Side,
        compiled: Side,
        when: str,
        again: Callable[[], Side],
    ) -> None:
        """Check what the optimizer made of its gradients, where these are known.

        ``again`` gives an eager side in the state before the step.
        """
        if not self.compares_updates:
            self._demand(self.step_problem(reference, compiled, again), when)

    def step_problem(
        self, reference: Side, compiled: Side, again: Callable[[], Side]
    ) -> str | None:
        def tries(gradients: Gradients) -> Iterator[Side]:
            for number in range(TRIES[-1]):
                try:
                    side = again()
                    with RoundOtherwise(self._seed + number):
                        step_with(side, gradients)
                except Exception as error:
                    self._note_unknown(error)
                    return
                yield side

        return step_problem(reference, compiled, tries)

    def _after_given(self) -> Side:
        """A side that has made the first steps with the gradients that a compiled side had."""
        side = self.another_side(self._precision)
        for gradients in self._given:
            step_with(side, gradients)
        return side

    def kept(self) -> Side:
        """The eager side in its kept state."""
        self.eager.begin_anew(self.eager)
        return self.eager

    def _demand(self, problem: str | None, when: str) -> None:
        if problem:
            raise Failed(Outcome.WRONG_OUTPUT, f"{problem} ({when})")

    def _note_unknown(self, error: Exception) -> None:
        """Say once that nothing tells rounding from errors, and why."""
        self._is_rounding_known = False
        note = (
            "how far rounding moves the results is not known, since eager cannot be rounded "
            f"otherwise here ({first_words(error)}), so errors of up to ten times the tolerance "
            "(5 % of a gradient) are taken for it"
        )
        if note not in self._notes:
            self._notes.append(note)

    def last_call(self, compiled: Side) -> None:
        """Compare one call after the timing."""
        when = "after the timing"
        if self.draws_otherwise(compiled):
            self.demand_repeats(compiled, when)
            compiled.begin_anew(self.eager)
            got = compiled.view(self.seeded_call(compiled, 1))
        else:
            noise = self.accepted if self._steps else self._noise
            _, got = self._from_eagers_state(compiled, 1, when, noise)
        if self._steps:
            self._demand_step(self.kept(), compiled, when, self.kept)
            self.eager.begin_anew(self.eager)
        last = LastResults(got)
        self.seeded_call(compiled, 0)
        self._demand_unchanged(last.overwritten(), compiled, "a call after the timing")

    def make_pass(self, compiled: Side) -> None:
        """Make all calls of a pass once, in order, so that timed ones find what it compiles."""
        if isinstance(self._pass, Calls):
            compiled.inputs = copy_inputs(self._pass)
            compiled.run()

    def at_another_size(self, compiled: Side, inputs: Any) -> str:
        """Compare a call with inputs of another size; returns why eager cannot take them."""
        batches, movements = self._batches, self._movements
        self._movements = {}
        # A step is compared call by call, a forward pass with the results of several calls.
        self._batches = (Calls((inputs,)) if isinstance(batches[0], Calls) else inputs,)
        try:
            self.eager.begin_anew(self.eager)
            self.seeded_call(self.eager, 0)
        except Exception as error:
            return first_words(error)
        else:
            if not self.draws_otherwise(compiled):
                when = "at a size between those of the calls"
                self._from_eagers_state(compiled, 0, when, self._noise)
        finally:
            self._batches, self._movements = batches, movements
            self.eager.begin_anew(self.eager)
        return ""

    def weights(self, compiled: Side) -> bool | None:
        """Check that new weights take effect, set in place and by ``load_state_dict``.

        Returns True; None if this cannot be checked: the phase is not a forward pass, or the output
        hardly depends on the weights.
        """
        if self._steps:
            return None
        draws_otherwise, restless = self.draws_otherwise(compiled), self._restless()
        before = self.from_kept_state(self.eager)
        compiled_before = self.from_kept_state(compiled) if draws_otherwise else before
        with self._other_eager_weights() as state:
            perturb(compiled.model, self._seed)
            want, changed = (
                self.from_kept_state(self.eager),
                self.from_kept_state(compiled),
            )
            visible = self._is_visible(before, want)
            what, noise = "an in-place update of the weights", self._noise
            if visible and not draws_otherwise:
                self._demand_live(changed, want, before, what)
            elif visible and not compare(
                compiled_before, changed, noise=noise, restless=restless
            ):
                raise Failed(Outcome.STALE_WEIGHTS, f"the output did not follow {what}")
        compiled.model.load_state_dict(state)
        got = self.from_kept_state(compiled)
        if visible:
            # A side with its own draws must return to its own earlier output.
            want, old = (
                (compiled_before, changed) if draws_otherwise else (before, want)
            )
            self._demand_live(got, want, old, "load_state_dict", draws_otherwise)
        return True if visible else None

    def new_weights(
        self, compiled: Side, synchronize: Callable[[], None]
    ) -> tuple[bool | None, float]:
        """Load new weights into a side that holds them as constants, once, for good.

        Returns whether its output follows, as :meth:`weights`, and the seconds of the call.
        """
        before = self.from_kept_state(self.eager)
        with self._other_eager_weights():
            compiled.model.load_state_dict(self.eager.model.state_dict())
            want = self.from_kept_state(self.eager)
            compiled.begin_anew(self.eager)
            synchronize()
            began = time.perf_counter()
            output = self.seeded_call(compiled, 0)
            synchronize()
            took_s = time.perf_counter() - began
            if not self._is_visible(before, want) or self.draws_otherwise(compiled):
                return None, took_s
            got = copy_view(compiled.view(output))
            self._demand_live(got, want, before, "load_state_dict")
            return True, took_s

    def _is_visible(self, before: View, want: View) -> bool:
        known = 10 * _largest_below(_MAX_NOISE, self._noise)
        if self.check or self.tolerance is not None:
            # The user may accept larger errors, which must not be taken for stale weights.
            known = max(known, 3 * _largest_below(_MAX_NOISE, self._drift))
        return mismatch_scale(before, want, self._restless()) > max(_VISIBLE, known)

    @contextlib.contextmanager
    def _other_eager_weights(self) -> Iterator[dict[str, Any]]:
        """Context in which eager, and the target that may share them, have other weights.

        Gives the state dict that it has before and after.
        """
        model, kept = self.eager.model, self.eager.kept
        state = model.state_dict()
        tensors = {name: x for name, x in state.items() if isinstance(x, torch.Tensor)}
        state.update(zip(tensors, copies([*tensors.values()]), strict=True))
        try:
            perturb(model, self._seed)
            self.eager.keep()  # calls start from its new buffers too
            yield state
        finally:
            model.load_state_dict(state)
            self.eager.kept = kept
            self.eager.begin_anew(self.eager)

    def for_another(self, notes: list[str]) -> Verifier:
        """The same for another side, whose notes go elsewhere."""
        made = copy.copy(self)
        made._notes = notes
        return made

    @property
    def accepted(self) -> dict[str, float]:
        """Accepted error by path: eager's noise, or the error at the first calls if larger."""
        return largest(self._noise, self._drift)

    def _restless(self) -> set[str]:
        """Paths of the values that differ between calls regardless of the weights."""
        return {path for path, error in self.accepted.items() if error > _MAX_NOISE}

    def _eagers(self, index: int = 0) -> View:
        """Eager's view of a call from its kept state; gradients of a step are its own tensors."""
        self.eager.begin_anew(self.eager)
        view = self.eager.view(self.seeded_call(self.eager, index))
        not_copied = _CHANGES if self._steps else ()  # they are as large as the model
        return {**view, **copy_view(without(view, *not_copied))}

    def _pairs(self) -> Iterator[tuple[View, View]]:
        """Eager's views of calls in two runs, for its noise; keeps the state for later calls."""
        if not self._steps:
            new = self._observe(self.another_side(self._precision))
            yield from zip(self._expected, new, strict=True)
            self.eager.keep()
            yield self.from_kept_state(self.eager), self.from_kept_state(self.eager)
            return
        self.eager.keep()
        again = self.another_side(self._precision)
        yield self.expected, again.view(self.seeded_call(again, 0))
        del again
        for index in (1, 2):
            yield self.from_kept_state(self.eager, index), self._eagers(index)
        self.eager.begin_anew(self.eager)

    def _observe(self, side: Side) -> list[View]:
        views: list[View] = []
        for _, view, lost in self._first_views(side, self.seeded_call(side, 0)):
            self._eager_overwrites.update(lost)
            # Of later steps nothing is compared: they are made again from the kept state.
            views.append(
                copy_view(without(view, *_CHANGES) if self._steps and views else view)
            )
        return views

    def _why_incomparable(self) -> str:
        has_any = has_number if phase_of(self._phase).is_own else has_tensor
        is_empty = not self._steps and not any(map(has_any, self._expected))
        if is_empty and not self.check:
            return "the phase returns no tensor, so nothing can be compared"
        free = ("['outputs']",) if self.check else ()
        steady = (e for path, e in self._noise.items() if not path.startswith(free))
        if (unsteady := max(steady, default=0.0)) <= _MAX_NOISE:
            return ""
        return (
            f"eager differs from itself by {unsteady:.1g}, so nothing can be compared with it "
            "(what a call changes is put back in buffers and attributes of modules, and get_step() "
            "is called anew)"
        )

    def _refusal(self, want: View, got: View) -> str | None:
        return (
            refusal(self.check, want["outputs"], got["outputs"]) if self.check else None
        )

    def demand(
        self,
        got: View,
        want: View,
        when: str,
        noise: Mapping[str, float],
        index: int | None = None,
        restless: Collection[str] = (),
    ) -> None:
        """Compare a view with eager's of the call ``index``; without one nothing is rounding."""
        problem = self._refusal(want, got) or compare(
            want,
            got,
            noise=noise,
            moved=self._moving(index),
            tolerance=self.tolerance,
            skip=("outputs",) if self.check else (),
            restless=restless,
        )
        self._demand(problem, when)

    def _moving(self, index: int | None) -> Callable[[int], Movement | None]:
        if index is None:
            return lambda tries: Movement()
        return partial(self._moved, index)

    def _moved(self, index: int, tries: int) -> Movement | None:
        """How far eager's results of a call move where its operations are rounded otherwise.

        Where no random numbers are drawn, calls with the same inputs are the same call. None if it
        fails.
        """
        number = index if self._is_random else index % len(self._batches)
        movement = self._movements.setdefault(number, Movement())
        try:
            if self._is_rounding_known and movement.tries < tries:
                self._try(number, tries, movement)
        except Exception as error:
            self._note_unknown(error)
        self.eager.begin_anew(self.eager)
        if not self._is_rounding_known:
            return None
        if (share := movement.of_gradients) > _MOST_ROUNDING:
            note = (
                f"rounding alone moves the gradients by {share:.0%} of themselves in eager's "
                "precision, so of most only the lengths can be compared"
            )
            if not any("of most only the lengths" in each for each in self._notes):
                self._notes.append(note)
        return movement

    def _try(self, index: int, tries: int, movement: Movement) -> None:
        want = copy_view(self._eagers(index))
        for number in range(movement.tries, tries):
            self.eager.begin_anew(self.eager)
            # What the user has compiled would be compiled again under the mode, and skipped later.
            stance = torch.compiler.set_stance("force_eager")
            with stance, RoundOtherwise(self._seed + number):
                output = self.seeded_call(self.eager, index)
            movement.add(want, self.eager.view(output))

    def _demand_live(
        self, got: View, want: View, old: View, what: str, draws_otherwise: bool = False
    ) -> None:
        # Without the user's tolerance, which may be too wide to tell old from new.
        index = None if draws_otherwise else 0
        moved, restless = self._moving(index), self._restless()
        if (
            compare(want, got, noise=self._noise, moved=moved, restless=restless)
            is None
        ):
            return
        if mismatch_scale(old, got, restless) < mismatch_scale(want, got, restless):
            raise Failed(Outcome.STALE_WEIGHTS, f"the output did not follow {what}")
        self.demand(got, want, f"after {what}", self._noise, index, restless)

    def _demand_unchanged(self, lost: list[str], compiled: Side, by: str) -> None:
        """Check that kept outputs are unchanged, unless eager or CUDA graphs overwrite them."""
        paths = [path for path in lost if path not in self._eager_overwrites]
        if paths and not uses_cuda_graphs(compiled.config):
            what = f"{paths[0]} was overwritten by the next call ({by})"
            raise Failed(Outcome.WRONG_OUTPUT, what)
        if paths and _OVERWRITES not in self._notes:
            self._notes.append(_OVERWRITES)


def _steps_of(side: Side) -> list[int]:
    """How often each optimizer of an eager side has stepped, which goes on counting."""
    counts = [0] * len(side.optimizers)

    def count(number: int) -> Callable[..., None]:
        def one_more(*_: Any) -> None:
            counts[number] += 1

        return one_more

    for number, optimizer in enumerate(side.optimizers):
        optimizer.register_step_post_hook(count(number))
    return counts


def _largest_below(limit: float, errors: Mapping[str, float]) -> float:
    return max((error for error in errors.values() if error <= limit), default=0.0)


def demand_draws_by_seed(verifier: Verifier, compiled: Side) -> None:
    """Check that own draws repeat with a seed and differ with another; the rest equals eager's."""
    if not verifier.draws_otherwise(compiled):
        return
    verifier.demand_repeats(compiled, "when the same seed is set again")
    began, sides = time.monotonic(), (verifier.eager, compiled)
    want, got = (without(verifier.from_kept_state(side), *_CHANGES) for side in sides)
    restless, differ, follows = set[str](), 0, False
    for call in range(2, 2 * _SEEDS, 2):  # even: of the same inputs
        if time.monotonic() - began > _MOST_S:
            break
        views = [
            without(verifier.from_kept_state(side, call), *_CHANGES) for side in sides
        ]
        ours, theirs = differences(want, views[0]), differences(got, views[1])
        restless |= {path for path, apart in ours.items() if apart}
        differ, follows = differ + any(ours.values()), follows or any(theirs.values())
    else:
        if not follows and differ > _SEEDS / 2:
            what = "its results are the same whatever the seed, where eager's differ"
            raise Failed(Outcome.WRONG_OUTPUT, f"{what} (random numbers)")
        verifier.demand(
            got, want, "but for random numbers", verifier.accepted, restless=restless
        )
    verifier.eager.restore()


def compare_with_eagers_draws(
    verifier: Verifier, compiled: Side, config: CompileConfig
) -> None:
    """Compile the setting again so that it draws like eager, and compare it with eager.

    Call last, since it resets Dynamo. Does nothing for a side that draws like eager.
    """
    if not verifier.draws_otherwise(compiled):
        return
    telemetry.reset_dynamo(config.backend)
    with _drawing_as_eager():
        twin = verifier.another_side(config)
        verifier.first_calls(twin, verifier.seeded_call(twin, 0))
        verifier.weights(twin)


def _drawing_as_eager() -> contextlib.AbstractContextManager[Any]:
    """Context in which Inductor compiles and runs code that draws eager's random numbers."""
    config: Any = importlib.import_module("torch._inductor.config")
    context: contextlib.AbstractContextManager[Any] = config.patch(fallback_random=True)
    return context
