"""Verifies a side that draws other random numbers than eager, as Inductor's own generator does.

Only their distribution can be compared. The rest of the program is verified on a side compiled with
``fallback_random``, which draws eager's numbers.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean, variance
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome
from autocompile.trial.inspect import telemetry
from autocompile.trial.phases.side import Side, random_states
from autocompile.trial.process.failures import Failed
from autocompile.trial.verify.compare import Leaves, compare, mismatch_scale
from autocompile.trial.verify.outputs import View, copy_view, without
from autocompile.trial.verify.tree import flatten

if TYPE_CHECKING:
    from autocompile.trial.verify.verifier import Verifier

__all__ = [
    "Draws",
    "compare_with_eagers_draws",
    "demand_plausible_draws",
    "depends_on_seed",
    "drawing_as_eager",
    "draws_itself",
    "implausible",
]

# A statistic of a leaf (mean or standard deviation over its elements) is one number per call. If
# both sides draw from the same distribution, all orders of the 2K numbers are equally likely, so
# the K numbers of one side are all below or all above the other's with probability 2 / C(2K, K).
# K is chosen so that the total over all statistics is below one in a million; the condition of six
# standard errors lowers it further.
_FALSE_ALARMS = 1e-6
_FEWEST = 12
_STANDARD_ERRORS = 6.0
_SMALL = 1e-2  # of a leaf's RMS: a smaller difference may be rounding
_MAX_S = 60.0  # for the calls that sample the distribution


class _Seen(NamedTuple):
    """Statistics of one leaf in one call."""

    kind: tuple[Any, ...]
    finite: bool
    mean: float
    deviation: float


class Draws:
    """Statistics of each leaf over calls with different seeds, from copies of their views.

    Attributes:
        leaves: by path, the statistics of each call with the first one's structure.
        restless: paths of the leaves that differ between these calls.
    """

    def __init__(self, views: Iterable[View]) -> None:
        self.first: View = {}
        self.structures: list[Any] = []
        self.leaves: dict[str, list[_Seen]] = {}
        self.restless: set[str] = set()
        for view in views:
            results = without(view, "inputs")
            structure, leaves = flatten(results)
            if not self.structures:
                self.first, first_leaves = results, leaves
            self.structures.append(structure)
            if structure != self.structures[0]:
                continue
            for path, seen, is_first in _seen(leaves, first_leaves):
                self.leaves.setdefault(path, []).append(seen)
                if not is_first:
                    self.restless.add(path)

    @property
    def calls_needed(self) -> int:
        """Calls of each side for a false alarm rate below one in a million."""
        statistics = max(1, 2 * len(self.leaves))
        calls = _FEWEST
        while 2 * statistics / math.comb(2 * calls, calls) > _FALSE_ALARMS:
            calls += 1
        return calls

    def has_structure_of(self, other: Draws) -> bool:
        """Whether all calls of both returned the same structure."""
        return all(s == self.structures[0] for s in self.structures + other.structures)


def demand_plausible_draws(verifier: Verifier, compiled: Side, notes: list[str]) -> None:
    """Check that a side's random numbers follow the seed and are distributed like eager's.

    Call after ``verifier.first_calls``. Does nothing for a side that draws like eager.

    Raises:
        Failed: ``wrong_output``.
    """
    if not verifier.has_own_draws(compiled):
        return
    verifier.demand_repeats(compiled, "when the same seed is set again")
    began = time.monotonic()
    calls = _drawn(verifier, verifier.eager, range(1)).calls_needed
    _drawn(verifier, compiled, range(1))
    if (time.monotonic() - began) * calls > _MAX_S:
        notes.append("the distribution of its random numbers was not checked: calls take long")
        calls = 2
    # Different seeds, since the two samples must be independent.
    ours = _drawn(verifier, verifier.eager, range(calls))
    theirs = _drawn(verifier, compiled, range(calls, 2 * calls))
    verifier.eager.restore()
    problem = implausible(ours, theirs, verifier.tolerance)
    if not problem and ours.has_structure_of(theirs):  # leaves that no draw changes equal eager's
        problem = compare(
            ours.first,
            theirs.first,
            noise=verifier.accepted,
            tolerance=verifier.tolerance,
            restless=ours.restless,
        )
    if problem:
        raise Failed(Outcome.WRONG_OUTPUT, f"{problem} (random numbers)")


def compare_with_eagers_draws(verifier: Verifier, compiled: Side, config: CompileConfig) -> None:
    """Compile the setting again so that it draws like eager, and compare it with eager.

    Call last, since it resets Dynamo. Does nothing for a side that draws like eager.

    Raises:
        Failed: ``wrong_output``, or ``stale_weights`` if it does not follow new weights.
    """
    if not verifier.has_own_draws(compiled):
        return
    telemetry.reset_dynamo(config.backend)
    with drawing_as_eager():
        twin = verifier.another_side(config)
        verifier.first_calls(twin, verifier.seeded_call(twin, 0))
        verifier.weights(twin)


def _drawn(verifier: Verifier, side: Side, calls: range) -> Draws:
    """Results of calls with different seeds, on the same inputs and from the same state."""
    views = (verifier.from_kept_state(side, 2 * call) for call in calls)  # even: the first inputs
    return Draws(without(view, "outputs") if verifier.check else view for view in views)


def drawing_as_eager() -> contextlib.AbstractContextManager[Any]:
    """Context in which Inductor compiles and runs code that draws eager's random numbers."""
    import torch._inductor.config

    context: contextlib.AbstractContextManager[Any]
    context = torch._inductor.config.patch(fallback_random=True)
    return context


def draws_itself(side: Side) -> bool:
    """Whether its random numbers may differ from eager's for the same seed."""
    import torch._inductor.config

    return side.config.backend == "inductor" and not torch._inductor.config.fallback_random


def implausible(eager: Draws, compiled: Draws, tolerance: float | None = None) -> str | None:
    """Why the compiled side's draws cannot have eager's distribution; None if they can.

    Both have as many calls, with different seeds; ``tolerance`` is the user's.
    """
    if eager.has_structure_of(eager) and not eager.has_structure_of(compiled):
        return "another structure than eager's"
    for path, wanted in eager.leaves.items():
        got = compiled.leaves.get(path, [])
        if len({seen.kind for seen in wanted}) > 1 or len(got) != len(wanted):
            continue  # its shape differs between calls
        if other := next((seen.kind for seen in got if seen.kind != wanted[0].kind), None):
            return f"{path} is {other} instead of {wanted[0].kind}"
        if all(s.finite for s in wanted) and not all(s.finite for s in got):
            return f"{path} is not finite, where eager's always is"
        # False alarm at most one in a million, for a result that is equal in half of all calls.
        if len(set(wanted)) == len(wanted) > len(set(got)) == 1:
            return f"{path} is the same whatever the seed, where eager's differs each time"
        if path not in eager.restless or len(eager.structures) < eager.calls_needed:
            continue
        size = max(math.hypot(s.mean, s.deviation) for s in wanted)
        least = max(_SMALL, tolerance or 0.0) * size
        for name, words in (("mean", "mean"), ("deviation", "standard deviation")):
            ours, theirs = ([getattr(seen, name) for seen in side] for side in (wanted, got))
            if _is_elsewhere(ours, theirs, least):
                return (
                    f"the {words} of {path} is {fmean(theirs):.4g} over {len(theirs)} seeds, "
                    f"where eager's is {fmean(ours):.4g}"
                )
    return None


def depends_on_seed(side: Side, call: Callable[[Side, int], Any], noise: float) -> bool:
    """Whether a side's results depend on random numbers.

    ``side`` has kept a state, which is restored afterwards; ``call`` makes a call with the seed of
    its number; ``noise`` is the largest difference between two runs with the same seed.
    """
    before = random_states()
    side.run()
    drawn = before != random_states()
    side.restore()
    if not drawn:
        return False
    views = []
    for index in (0, 2):
        views.append(copy_view(side.view(call(side, index))))
        side.restore()
    return mismatch_scale(*views) > max(1e-6, 10 * noise)


def _seen(leaves: Leaves, first: Leaves) -> Iterator[tuple[str, _Seen, bool]]:
    """Path and statistics of each leaf, and whether it equals the first call's.

    A GPU computes all of them before anything waits for it.
    """
    kinds = [_kind(leaf) for _, leaf in leaves]
    devices = [x.device for _, x in leaves if isinstance(x, torch.Tensor)]
    rows = [_statistics(x, y) for (_, x), (_, y) in zip(leaves, first, strict=True)]
    device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
    found = torch.stack([row.to(device) for row in rows]).tolist() if rows else []
    for (path, _), kind, row in zip(leaves, kinds, found, strict=True):
        finite, mean, deviation, is_first = row
        yield path, _Seen(kind, bool(finite), mean, deviation), bool(is_first)


def _kind(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, str(leaf.device)
    return (type(leaf).__name__,)


def _statistics(leaf: Any, first: Any) -> torch.Tensor:
    """Whether all is finite, mean and deviation of what is, and whether it equals the first."""
    if not isinstance(leaf, torch.Tensor):
        value = float(leaf) if isinstance(leaf, (int, float)) else 0.0
        is_equal = type(leaf) is type(first) and bool(leaf == first)
        return _row(torch.tensor(value, dtype=torch.float64), torch.tensor(is_equal))
    is_first = torch.tensor(False)
    if isinstance(first, torch.Tensor) and _kind(leaf) == _kind(first):
        is_first = ((leaf == first) | ((leaf != leaf) & (first != first))).all()
    return _row(torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf, is_first)


def _row(tensor: torch.Tensor, is_first: torch.Tensor) -> torch.Tensor:
    values = tensor.detach().double()
    is_finite = values.isfinite()
    values, count = values.where(is_finite, 0.0), is_finite.sum().clamp(min=1)
    mean = values.sum() / count
    deviation = ((values - mean).where(is_finite, 0.0).square().sum() / count).sqrt()
    return torch.stack([is_finite.all().double(), mean, deviation, is_first.to(mean)])


def _is_elsewhere(ours: list[float], theirs: list[float], least: float) -> bool:
    """Whether the samples are disjoint, by more than six standard errors and ``least``."""
    if min(ours) <= max(theirs) and min(theirs) <= max(ours):
        return False
    distance = abs(fmean(ours) - fmean(theirs))
    error = math.sqrt(variance(ours) / len(ours) + variance(theirs) / len(theirs))
    return distance > max(least, _STANDARD_ERRORS * error)
