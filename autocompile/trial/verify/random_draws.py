"""Whether random numbers that Inductor draws by its own generator are plausible.

They are other numbers than eager's, so only their distribution can be compared. That the rest of
the program is right is shown by a side compiled with ``fallback_random``, which draws eager's.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from autocompile.trial.phases.phases import Side
from autocompile.trial.target.state import random_states
from autocompile.trial.verify.compare import mismatch_scale
from autocompile.trial.verify.outputs import View
from autocompile.trial.verify.tree import blank, comparable, paths

__all__ = ["Draws", "depends_on_seed", "drawing_as_eager", "implausible", "wrong_length"]

# Each statistic of a leaf (mean and standard deviation over its elements) is one number per call.
# If both sides draw from the same distribution, all orders of the 2K numbers are equally likely,
# whatever that distribution is: that K of one side all lie below or above those of the other
# happens with probability 2 / C(2K, K). K is chosen so that over all statistics together this is
# less than one in a million; the condition of six standard errors only lowers it further.
_FALSE_ALARMS = 1e-6
_FEWEST = 12
_STANDARD_ERRORS = 6.0
_SMALL = 1e-2  # of a leaf's root mean square: a difference that may be rounding
_LENGTH = 2.0  # a step of another draw is not longer or shorter than by this factor


class _Seen(NamedTuple):
    """Of one leaf at one call."""

    kind: tuple[Any, ...]
    finite: bool
    mean: float
    deviation: float


class Draws:
    """What calls with different seeds gave, leaf by leaf, without their tensors.

    Attributes:
        first: the comparable tree of the first call.
        restless: the paths of what is not the same at each call.
        calls: how many there were.
    """

    def __init__(self) -> None:
        self.first: Any = None
        self.restless: set[str] = set()
        self.calls = 0
        self._structure: Any = None
        self._is_fixed = True
        self.leaves: dict[str, list[_Seen]] = {}

    def add(self, view: View) -> None:
        """Take in the view of one call; it must be a copy."""
        tree = comparable({name: part for name, part in view.items() if name != "inputs"})
        self.calls += 1
        if self.first is None:
            self.first, self._structure = tree, pytree.tree_structure(tree)
        elif pytree.tree_structure(tree) != self._structure:
            self._is_fixed = False
            return
        for (path, leaf), first in zip(paths(tree), pytree.tree_leaves(self.first), strict=True):
            self.leaves.setdefault(path, []).append(_seen(leaf))
            if not _is_equal(leaf, first):
                self.restless.add(path)

    @property
    def calls_needed(self) -> int:
        """So many calls of each side make a false alarm less likely than one in a million."""
        statistics = max(1, 2 * len(self.leaves))
        calls = _FEWEST
        while 2 * statistics / math.comb(2 * calls, calls) > _FALSE_ALARMS:
            calls += 1
        return calls

    def has_structure_of(self, other: Draws) -> bool:
        """Whether all calls of both gave the same structure."""
        return self._is_fixed and other._is_fixed and self._structure == other._structure

    @property
    def is_fixed(self) -> bool:
        """Whether each call gave the same structure."""
        return self._is_fixed

    def steady(self, restless: set[str]) -> View:
        """The first call without what differs from call to call."""
        tree: View = blank(self.first, restless)
        return tree


def drawing_as_eager() -> contextlib.AbstractContextManager[Any]:
    """While it is entered, Inductor compiles what draws the random numbers that eager draws."""
    import torch._inductor.config

    patched: contextlib.AbstractContextManager[Any] = torch._inductor.config.patch(
        fallback_random=True
    )
    return patched


def implausible(eager: Draws, compiled: Draws, tolerance: float | None = None) -> str | None:
    """Why the compiled side's draws cannot be of eager's distribution; None if they can.

    Args:
        eager: of calls with some seeds.
        compiled: of as many calls with other seeds.
        tolerance: the user's own relative one, where it is larger than ours.
    """
    if eager.is_fixed and not eager.has_structure_of(compiled):
        return "another structure than eager's"
    for path, wanted in eager.leaves.items():
        got = compiled.leaves.get(path, [])
        if len({seen.kind for seen in wanted}) > 1 or len(got) != len(wanted):
            continue  # of another shape at each call
        if other := next((seen.kind for seen in got if seen.kind != wanted[0].kind), None):
            return f"{path} is {other} instead of {wanted[0].kind}"
        if all(s.finite for s in wanted) and not all(s.finite for s in got):
            return f"{path} is not finite, where eager's always is"
        # At worst 1 in a million, for a result that is the same in half of all calls.
        if len(set(wanted)) == len(wanted) > len(set(got)) == 1:
            return f"{path} is the same whatever the seed, where eager's differs each time"
        if path not in eager.restless or eager.calls < eager.calls_needed:
            continue
        size = max(math.hypot(s.mean, s.deviation) for s in wanted)
        least = max(_SMALL, tolerance or 0.0) * size
        for name in ("mean", "deviation"):
            ours = [getattr(seen, name) for seen in wanted]
            theirs = [getattr(seen, name) for seen in got]
            if _is_elsewhere(ours, theirs, least):
                word = "mean" if name == "mean" else "standard deviation"
                return (
                    f"the {word} of {path} is {_mean(theirs):.4g} over {len(theirs)} seeds, "
                    f"where eager's is {_mean(ours):.4g}"
                )
    return None


def wrong_length(want: View, got: View) -> str | None:
    """What is wrong with a step of the same state and other random numbers: its length."""
    lengths = [
        math.sqrt(sum(float(u.double().square().sum()) for u in view["updates"].values()))
        for view in (want, got)
    ]
    if lengths[0] / _LENGTH <= lengths[1] <= lengths[0] * _LENGTH:
        return None
    return f"it moves the weights by {lengths[1]:.2g}, where eager moves them by {lengths[0]:.2g}"


def depends_on_seed(side: Side, call: Callable[[int], View], noise: float) -> bool:
    """Whether a side draws random numbers that change what it gives; it must have kept a state.

    Args:
        side: restored afterwards.
        call: makes the side's call of that number, which has a seed of its own; even ones are on
            the same inputs.
        noise: the largest relative difference between two runs with the same seed.
    """
    before = random_states()
    side.run()
    drawn = before != random_states()
    side.restore()
    if not drawn:
        return False
    views = []
    for index in (0, 2):
        side.restore()
        views.append(call(index))
    side.restore()
    return mismatch_scale(*views) > max(1e-6, 10 * noise)


def _seen(leaf: Any) -> _Seen:
    if isinstance(leaf, torch.Tensor):
        kind: tuple[Any, ...] = (tuple(leaf.shape), leaf.dtype, str(leaf.device))
        tensor = torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf
    else:
        kind = (type(leaf).__name__,)
        tensor = torch.tensor(leaf if isinstance(leaf, (int, float)) else 0.0)
    values = tensor.detach().double()
    finite = values[values.isfinite()]
    mean = float(finite.mean()) if finite.numel() else 0.0
    deviation = float((finite - mean).square().mean().sqrt()) if finite.numel() else 0.0
    return _Seen(kind, finite.numel() == values.numel(), mean, deviation)


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())
    return type(one) is type(other) and bool(one == other)


def _is_elsewhere(ours: list[float], theirs: list[float], least: float) -> bool:
    """Whether one sample lies wholly beside the other, by six standard errors and ``least``."""
    if min(ours) <= max(theirs) and min(theirs) <= max(ours):
        return False
    distance = abs(_mean(ours) - _mean(theirs))
    error = math.sqrt(_variance(ours) / len(ours) + _variance(theirs) / len(theirs))
    return distance > max(least, _STANDARD_ERRORS * error)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _variance(values: list[float]) -> float:
    middle = _mean(values)
    return sum((x - middle) ** 2 for x in values) / (len(values) - 1)
