"""Judge: holds eager's answers and compares the compiled side with them.

Both sides start from the same weights and make the same calls with the same random seeds, so that
no state has to be put back before the comparison is over: call 1 on one draw of inputs, call 2 on
another, call 3 on the first again, and one more after the timing.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocompile.record import Outcome
from autocompile.runtime.compiling import RL_PHASES
from autocompile.trial.phases import Side, make_side
from autocompile.trial.target import Target, seed_everything
from autocompile.trial.verify import (
    View,
    compare,
    copy_view,
    differences,
    has_tensor,
    mismatch_scale,
    plain,
)

__all__ = ["Failed", "Judge"]

_CALLS = 3
_MAX_NOISE = 0.05  # where eager differs from itself by more, no verdict is worth anything
_PERTURBATION = 0.1  # of each parameter's own root mean square
_VISIBLE = 1e-2  # relative change of the output that an update must cause to be a test


_Reference = Callable[[], View | None] | None


class Failed(Exception):
    """The trial ends here, with an outcome that is nobody else's exception."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        self.outcome = outcome
        super().__init__(message)


class Judge:
    """Runs eager twice when made, then judges a compiled side.

    Args:
        target: the model and how to feed it.
        phase: the unit of work.
        draws: two batches of inputs with different values.
        seed: of the random numbers of each call.
        notes: gets a sentence for each thing that a user should know.

    Attributes:
        eager: the eager side, ready to be timed.
        noise: the largest relative difference between two equal eager runs.
    """

    def __init__(
        self, target: Target, phase: str, draws: tuple[Any, Any], seed: int, notes: list[str]
    ) -> None:
        self._target, self._phase, self._draws, self._seed = target, phase, draws, seed
        self.eager = make_side(target, phase, draws[0])
        self._expected = self._observe(self.eager)
        again = self._observe(make_side(target, phase, draws[0]))
        found = [differences(*pair) for pair in zip(self._expected, again, strict=True)]
        by_call = [[error for _, error in leaves] for leaves in found]
        self._noise = [max(errors) for errors in zip_longest(*by_call, fillvalue=0.0)]
        self.noise = max(self._noise, default=0.0)
        # An Adam step is of either sign where a gradient is near zero; compare() bounds updates.
        self._unsteady = max(
            (e for leaves in found for path, e in leaves if not path.startswith("['updates']")),
            default=0.0,
        )
        self._drift: list[float] = []
        if self.noise > 0:
            notes.append(f"eager differs from itself by {self.noise:.1g}; tolerances allow for it")
        if any(_has_nan(view) for view in self._expected):
            notes.append("eager's own output holds NaN; compiled may hold it in the same places")
        self.eager.keep()
        self._is_random = self._depends_on_seed()
        if self._is_random:
            notes.append(
                "this phase draws random numbers: compiled with Inductor's fallback_random, so "
                "that its numbers can be compared with eager's, at some cost in speed"
            )

    def comparable_random_numbers(self) -> contextlib.AbstractContextManager[Any]:
        """While it is entered, Inductor draws the random numbers that eager draws."""
        if not self._is_random:
            return contextlib.nullcontext()
        import torch._inductor.config

        patched: contextlib.AbstractContextManager[Any] = torch._inductor.config.patch(
            fallback_random=True
        )
        return patched

    def seeded_call(self, side: Side, index: int) -> Any:
        """Call number ``index``: its own seed, its own draw of inputs."""
        # A copy, since a model may change its input in place.
        side.inputs = _copy_inputs(self._draws[index % 2])
        seed_everything(self._seed + index)
        return side.run()

    def first_calls(self, compiled: Side, first_output: Any) -> None:
        """Compare the first three calls with eager's; the first has been made already.

        Raises:
            Failed: ``wrong_output``.
        """
        if not compiled.is_eager:
            self._demand_comparable()
        for index in range(_CALLS):
            output = self.seeded_call(compiled, index) if index else first_output
            got, want = compiled.view(output), self._expected[index]
            reference = self._reference(self._target.model_of(self._phase), range(index + 1))
            self._demand(got, want, self._noise, reference, f"call {index + 1}")
            drift = [error for _, error in differences(want, got)]
            self._drift = [max(e) for e in zip_longest(self._drift, drift, fillvalue=0.0)]

    def last_call(self, compiled: Side) -> None:
        """Compare once more, after the timing.

        Raises:
            Failed: ``wrong_output``.
        """
        want, got = (self._from_kept_state(side) for side in (self.eager, compiled))
        if self._is_forward:
            noise, reference = self._noise, self._from_eager_in_float64
        else:
            # No float64 run has this optimizer state: allow what was accepted at the first calls.
            pairs = zip_longest(self._noise, self._drift, fillvalue=0.0)
            noise, reference = [max(pair) for pair in pairs], None
        self._demand(got, want, noise, reference, "after the timing")

    def weights(self, compiled: Side) -> bool | None:
        """Whether new weights take effect: changed in place, then through ``load_state_dict``.

        Returns:
            True; None where this cannot be told, because the phase is not a forward pass or the
            output hardly depends on the weights.

        Raises:
            Failed: ``stale_weights``, or ``wrong_output`` if the answer is neither old nor new.
        """
        if not self._is_forward:
            return None
        before = self._from_kept_state(self.eager)
        originals = {id(s): copy.deepcopy(s.model.state_dict()) for s in (self.eager, compiled)}
        for side in (self.eager, compiled):
            _perturb(side.model, self._seed)
        want = self._from_kept_state(self.eager)
        got = self._from_kept_state(compiled)
        visible = mismatch_scale(before, want) > max(_VISIBLE, 10 * self.noise)
        if visible:
            self._demand_live(got, want, before, "an in-place update of the weights")
        for side in (self.eager, compiled):
            side.model.load_state_dict(originals[id(side)])
        got = self._from_kept_state(compiled)
        if visible:
            self._demand_live(got, before, want, "load_state_dict")
        return True if visible else None

    @property
    def _is_forward(self) -> bool:
        return self._phase == "forward" or self._phase in RL_PHASES

    def _from_kept_state(self, side: Side) -> View:
        """Call 0 from the state that eager has kept, whichever side makes it."""
        side.adopt(self.eager)
        return copy_view(side.view(self.seeded_call(side, 0)))

    def _observe(self, side: Side) -> list[View]:
        calls = range(_CALLS)
        return [copy_view(side.view(self.seeded_call(side, index))) for index in calls]

    def _depends_on_seed(self) -> bool:
        before = _random_states()
        self.eager.run()
        drawn = before != _random_states()
        self.eager.restore()
        if not drawn:
            return False
        views = []
        for index in (0, 2):  # the same inputs, another seed
            self.eager.restore()
            views.append(copy_view(self.eager.view(self.seeded_call(self.eager, index))))
        self.eager.restore()
        return mismatch_scale(*views) > max(1e-6, 10 * self.noise)

    def _demand_comparable(self) -> None:
        if not any(has_tensor(view) for view in self._expected):
            what = "the phase gives no tensor, so nothing can be compared"
            raise Failed(Outcome.WRONG_OUTPUT, what)
        if self._unsteady > _MAX_NOISE:
            what = f"eager differs from itself by {self._unsteady:.1g}"
            raise Failed(Outcome.WRONG_OUTPUT, f"{what}, so nothing can be compared with it")

    def _demand(
        self, got: View, want: View, noise: Sequence[float], reference: _Reference, when: str
    ) -> None:
        if problem := compare(want, got, noise=noise, reference=reference):
            raise Failed(Outcome.WRONG_OUTPUT, f"{problem} ({when})")

    def _demand_live(self, got: View, want: View, old: View, what: str) -> None:
        problem = compare(want, got, noise=self._noise, reference=self._from_eager_in_float64)
        if problem is None:
            return
        if mismatch_scale(old, got) < mismatch_scale(want, got):
            raise Failed(Outcome.STALE_WEIGHTS, f"the output did not follow {what}")
        raise Failed(Outcome.WRONG_OUTPUT, f"{problem} (after {what})")

    def _from_eager_in_float64(self) -> View | None:
        """Call 0 with the weights that eager has now, from the state that it has kept."""
        self.eager.restore()
        return self._in_float64(self.eager.model, range(1))

    def _reference(self, model: torch.nn.Module, calls: range) -> Callable[[], View | None]:
        return lambda: self._in_float64(model, calls)

    def _in_float64(self, model: torch.nn.Module, calls: range) -> View | None:
        """Eager's view of the last of some calls in double precision; None if it cannot be had.

        A model that casts for itself does not run in double precision, and a large one may not
        fit: then the plain verdict holds.
        """
        try:
            wide = copy.deepcopy(model).double()
            target = dataclasses.replace(self._target, model=wide, inference_model=None)
            side = make_side(target, self._phase, None)
            view: View = {}
            for call in calls:
                side.inputs = _double(_copy_inputs(self._draws[call % 2]))
                seed_everything(self._seed + call)
                view = side.view(side.run())
            return copy_view(view)
        except Exception:
            return None


def _copy_inputs(tree: Any) -> Any:
    """Copies of the tensors; one that is there twice stays one."""
    copies: dict[int, torch.Tensor] = {}

    def copied(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in copies:
            copies[id(x)] = x.detach().clone().requires_grad_(x.requires_grad)
        return copies[id(x)]

    return pytree.tree_map(copied, tree)


def _random_states() -> list[bytes]:
    """Where the generators stand that a model may draw from."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    own = (repr(random.getstate()).encode(), repr(np.random.get_state()).encode())
    return [state.numpy().tobytes() for state in states] + list(own)


def _has_nan(view: View) -> bool:
    leaves = (x for x in pytree.tree_leaves(plain(dict(view))) if isinstance(x, torch.Tensor))
    return any(bool(x.isnan().any()) for x in leaves if x.is_floating_point())


def _double(tree: Any) -> Any:
    return pytree.tree_map(
        lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, tree
    )


def _perturb(model: torch.nn.Module, seed: int) -> None:
    """Change every floating parameter in place, the same way on both sides."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                size = float(p.double().square().mean().sqrt()) if p.numel() else 0.0
                noise = torch.randn(p.shape, generator=generator)
                p.add_((noise * max(size, 1e-3) * _PERTURBATION).to(p))
