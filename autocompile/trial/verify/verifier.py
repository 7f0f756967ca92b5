"""Compares a compiled side with eager's results.

Both sides start from the same weights and make the same calls with the same seeds, so no state has
to be restored in between: call 1 on one batch of inputs, call 2 on another, call 3 on the first
again, and one more after the timing.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch

from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.store.record import Outcome
from autocompile.trial.phases.phases import Side, make_side
from autocompile.trial.process.failures import Failed
from autocompile.trial.target.load import Target, seed_everything
from autocompile.trial.target.state import copy_inputs, perturb
from autocompile.trial.verify import comparison
from autocompile.trial.verify.compare import by_path, compare, differences, mismatch_scale
from autocompile.trial.verify.outputs import (
    View,
    copy_view,
    has_nan,
    has_tensor,
    opaque_types,
)
from autocompile.trial.verify.overwriting import Held
from autocompile.trial.verify.random_draws import depends_on_seed, drawing_as_eager
from autocompile.trial.verify.reference import in_float64
from autocompile.trial.verify.tree import blank, comparable

__all__ = ["Failed", "Verifier"]

_CALLS = 3
_MAX_NOISE = 0.05  # if eager differs from itself by more, nothing can be verified
_VISIBLE = 1e-2  # smallest relative change of the output that can show new weights
_OVERWRITES = "outputs are overwritten by the next call (CUDA graphs): clone what you keep"


_Reference = Callable[[], View | None] | None


class Verifier:
    """Runs eager mode twice, then verifies a compiled side against it.

    Args:
        target: the model and its inputs.
        phase: the unit of work.
        draws: two batches of inputs with different values.
        seed: call ``n`` uses ``seed + n``.
        notes: gets sentences for the user.
        tolerance: the user's, for outputs.
        numbers: eager mode with the setting's precision, which the compiled side must agree with.

    Attributes:
        eager: the eager side, ready to be timed.
        noise: the largest relative difference between two equal eager runs.
        tolerance: as given.
        check: the user's ``check``, if it compares the outputs.

    Raises:
        TargetError: the user's check rejects a second eager run.
    """

    def __init__(
        self,
        target: Target,
        phase: str,
        draws: tuple[Any, Any],
        seed: int,
        notes: list[str],
        tolerance: float | None = None,
        numbers: CompileConfig = EAGER,
    ) -> None:
        self._target, self._phase, self._draws, self._seed = target, phase, draws, seed
        self._notes, self.tolerance = notes, tolerance
        self._eager_overwrites: set[str] = set()
        self.eager = make_side(target, phase, draws[0], numbers)
        self._expected = self._observe(self.eager)
        again = self._observe(make_side(target, phase, draws[0], numbers))
        pairs = list(zip(self._expected, again, strict=True))
        self.check = target.check if "outputs" in self._expected[0] else None
        if self.check:
            notes.append("outputs are compared by the target's check()")
            for first, second in pairs:
                comparison.demand_steady(self.check, first["outputs"], second["outputs"])
        self._noise = by_path(leaf for pair in pairs for leaf in differences(*pair))
        self.noise = max(self._noise.values(), default=0.0)
        # Adam steps have a random sign where a gradient is near zero; compare() bounds updates.
        free = ("['updates']", "['outputs']") if self.check else ("['updates']",)
        steady = (e for path, e in self._noise.items() if not path.startswith(free))
        self._unsteady = max(steady, default=0.0)
        self._drift: dict[str, float] = {}
        self._own: View = {}
        for kind in sorted(opaque_types(self._expected[0])):
            notes.append(f"the outputs hold {kind}, of which only the type is compared")
        if tolerance is not None:
            notes.append(f"outputs may be off by {tolerance:g} (the requested tolerance)")
        if self.noise > 0:
            notes.append(f"eager differs from itself by {self.noise:.1g}; tolerances allow for it")
        if any(has_nan(view) for view in self._expected):
            notes.append("eager's output holds NaN; compiled may hold it in the same places")
        self.eager.keep()
        self._is_random = depends_on_seed(self.eager, self._called, self.noise)
        if self._is_random:
            notes.append(
                "this phase draws random numbers: it is compared with eager under Inductor's "
                "fallback_random, which draws the same numbers"
            )

    def has_own_draws(self, side: Side) -> bool:
        """Whether this side's values depend on random numbers that differ from eager's."""
        return self._is_random and side.draws_itself

    def comparable_random_numbers(self, side: Side) -> contextlib.AbstractContextManager[Any]:
        """Context in which a side without its own draws draws eager's random numbers."""
        asks = self._is_random and not side.draws_itself
        return drawing_as_eager() if asks else contextlib.nullcontext()

    def another_side(self, config: CompileConfig) -> Side:
        """A new side of the same phase with the initial weights."""
        return make_side(self._target, self._phase, self._draws[0], config)

    def from_kept_state(self, side: Side, index: int = 0) -> View:
        """A copy of the view of a call from the state that eager has kept."""
        side.adopt(self.eager)
        return copy_view(side.view(self.seeded_call(side, index)))

    def demand_repeats(self, compiled: Side, when: str) -> None:
        """Check that a side with its own draws repeats its results with the same seed.

        Raises:
            Failed: ``wrong_output``.
        """
        self._own = self._own or self.from_kept_state(compiled)
        got = self.from_kept_state(compiled)
        if problem := compare(self._own, got, noise=self.accepted):
            raise Failed(Outcome.WRONG_OUTPUT, f"{problem} ({when})")

    def seeded_call(self, side: Side, index: int) -> Any:
        """Make call number ``index`` with its seed and batch of inputs."""
        # A copy, since a model may change its inputs in place.
        side.inputs = copy_inputs(self._draws[index % 2])
        seed_everything(self._seed + index)
        return side.run()

    def first_calls(self, compiled: Side, first_output: Any) -> None:
        """Compare the first three calls with eager's; the first was made by the caller.

        Raises:
            Failed: ``wrong_output``.
        """
        if not compiled.is_eager:
            self._demand_comparable()
        held: Held | None = None
        for index in range(_CALLS):
            output = self.seeded_call(compiled, index) if index else first_output
            if held:
                self._demand_kept(held, compiled, f"call {index + 1}")
            got, want = compiled.view(output), self._expected[index]
            held = Held(got)
            if self.has_own_draws(compiled):
                continue
            reference = self._reference(self._target.model_of(self._phase), range(index + 1))
            self._demand(got, want, self._noise, reference, f"call {index + 1}")
            self._drift = by_path([*self._drift.items(), *differences(want, got)])

    def last_call(self, compiled: Side) -> None:
        """Compare one call after the timing.

        Raises:
            Failed: ``wrong_output``.
        """
        if self.has_own_draws(compiled):
            self.demand_repeats(compiled, "after the timing")
            compiled.adopt(self.eager)
            self._demand_next_keeps(compiled, compiled.view(self.seeded_call(compiled, 0)))
            return
        want = self.from_kept_state(self.eager)
        compiled.adopt(self.eager)
        got = compiled.view(self.seeded_call(compiled, 0))
        if self._is_forward:
            noise, reference = self._noise, self._from_eager_in_float64
        else:
            # float64 runs lack this optimizer state: allow the errors accepted at the first calls.
            noise, reference = self.accepted, None
        self._demand(got, want, noise, reference, "after the timing")
        self._demand_next_keeps(compiled, got)

    def weights(self, compiled: Side) -> bool | None:
        """Check that new weights take effect, set in place and by ``load_state_dict``.

        Returns:
            True; None if this cannot be checked: the phase is not a forward pass, or the output
            hardly depends on the weights.

        Raises:
            Failed: ``stale_weights``, or ``wrong_output`` if the output is neither old nor new.
        """
        if not self._is_forward:
            return None
        own = self.has_own_draws(compiled)
        before = self._steady(self.from_kept_state(self.eager))
        own_before = self.from_kept_state(compiled) if own else before
        originals = {id(s): copy.deepcopy(s.model.state_dict()) for s in (self.eager, compiled)}
        kept = self.eager.saved
        for side in (self.eager, compiled):
            perturb(side.model, self._seed)
        self.eager.keep()  # calls now start from the new buffers too
        want = self._steady(self.from_kept_state(self.eager))
        got = self._steady(self.from_kept_state(compiled))
        known = 10 * _largest_below(_MAX_NOISE, self._noise)
        if self.check or self.tolerance is not None:
            # The user may accept larger errors, which must not be taken for stale weights.
            known = max(known, 3 * _largest_below(_MAX_NOISE, self._drift))
        visible = mismatch_scale(before, want) > max(_VISIBLE, known)
        if visible and own:
            if compare(own_before, got, noise=self._noise) is None:
                what = "the output did not follow an in-place update of the weights"
                raise Failed(Outcome.STALE_WEIGHTS, what)
        elif visible:
            self._demand_live(got, want, before, "an in-place update of the weights")
        for side in (self.eager, compiled):
            side.model.load_state_dict(originals[id(side)])
        self.eager.saved = kept
        changed, got = got, self._steady(self.from_kept_state(compiled))
        if visible:
            # A side with its own draws must return to its own earlier output.
            want, old = (own_before, changed) if own else (before, want)
            self._demand_live(got, want, old, "load_state_dict", own)
        return True if visible else None

    def _steady(self, view: View) -> View:
        """The view without the values that differ between calls regardless of the weights."""
        restless = {path for path, error in self.accepted.items() if error > _MAX_NOISE}
        return cast(View, blank(comparable(dict(view)), restless)) if restless else view

    @property
    def accepted(self) -> dict[str, float]:
        """Accepted error by path: eager's noise, or the error at the first calls if larger."""
        return by_path([*self._noise.items(), *self._drift.items()])

    @property
    def expected(self) -> View:
        """Eager's view of the first call."""
        return self._expected[0]

    @property
    def _is_forward(self) -> bool:
        return phase_of(self._phase).is_forward

    def _called(self, index: int) -> View:
        return copy_view(self.eager.view(self.seeded_call(self.eager, index)))

    def _demand_next_keeps(self, compiled: Side, got: View) -> None:
        held = Held(got)
        self.seeded_call(compiled, 1)
        self._demand_kept(held, compiled, "a call after the timing")

    def _observe(self, side: Side) -> list[View]:
        views: list[View] = []
        held: Held | None = None
        for index in range(_CALLS):
            output = self.seeded_call(side, index)
            if held:
                self._eager_overwrites.update(held.overwritten())
            view = side.view(output)
            views.append(copy_view(view))
            held = Held(view)
        return views

    def _demand_comparable(self) -> None:
        if not self.check and not any(has_tensor(view) for view in self._expected):
            what = "the phase returns no tensor, so nothing can be compared"
            raise Failed(Outcome.WRONG_OUTPUT, what)
        if self._unsteady > _MAX_NOISE:
            what = f"eager differs from itself by {self._unsteady:.1g}"
            raise Failed(Outcome.WRONG_OUTPUT, f"{what}, so nothing can be compared with it")

    def _demand(
        self,
        got: View,
        want: View,
        noise: Mapping[str, float],
        reference: _Reference,
        when: str,
    ) -> None:
        limits = comparison.Limits(noise, reference, self.tolerance)
        if problem := comparison.difference(want, got, limits, self.check):
            raise Failed(Outcome.WRONG_OUTPUT, f"{problem} ({when})")

    def _demand_live(self, got: View, want: View, old: View, what: str, own: bool = False) -> None:
        # Without the user's tolerance, which may be too wide to tell old from new.
        reference = None if own else self._from_eager_in_float64
        if compare(want, got, noise=self._noise, reference=reference) is None:
            return
        if mismatch_scale(old, got) < mismatch_scale(want, got):
            raise Failed(Outcome.STALE_WEIGHTS, f"the output did not follow {what}")
        self._demand(got, want, self._noise, reference, f"after {what}")

    def _demand_kept(self, held: Held, compiled: Side, by: str) -> None:
        """Check that kept outputs are unchanged, unless eager or CUDA graphs overwrite them."""
        paths = [path for path in held.overwritten() if path not in self._eager_overwrites]
        if paths and not compiled.reuses_outputs:
            what = f"{paths[0]} was overwritten by the next call ({by})"
            raise Failed(Outcome.WRONG_OUTPUT, what)
        if paths and _OVERWRITES not in self._notes:
            self._notes.append(_OVERWRITES)

    def _from_eager_in_float64(self) -> View | None:
        """Call 0 in float64 from eager's current weights and kept state."""
        self.eager.restore()
        return self._in_float64(self.eager.model, range(1))

    def _reference(self, model: torch.nn.Module, calls: range) -> Callable[[], View | None]:
        return lambda: self._in_float64(model, calls)

    def _in_float64(self, model: torch.nn.Module, calls: Iterable[int]) -> View | None:
        return in_float64(self._target, self._phase, model, self._draws, self._seed, calls)


def _largest_below(limit: float, errors: dict[str, float]) -> float:
    return max((error for error in errors.values() if error <= limit), default=0.0)
