"""Compares a compiled side's view with eager's.

``outputs``, ``loss`` and ``buffers`` are compared element by element, ``gradients`` and ``updates``
by their root mean square, since single elements of them may be rounding noise. Where a tolerance
fails, what eager's own rounding moves decides, then a float64 run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch

from autocompile.trial.verify.outputs import View, flatten, pieces, without

# Relative tolerances by dtype, from PyTorch's dynamo benchmarks for inference.
_TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float64: 1e-8}
_FLOAT32 = 1e-4
_GRADIENT_TOLERANCE = 1e-2
UNREFERENCED = (
    10.0  # times the tolerance, where no float64 run can tell rounding from errors
)
_FP64_SMALL = 1000  # elements: such a tensor may be further from float64
ELSEWHERE = (
    0.25  # a run this far from eager computed something else, as other random numbers
)
# Elements this much larger than the small ones (logits masked by -1e9) are compared separately.
_HUGE = 1e3
_SAMPLE = 1_000_000
_NOISE = 1e-6  # of the largest gradient, or of a deviation: what is smaller is rounding
ALL = ""  # in place of a path: all gradients taken as one
MOST_ROUNDING = (
    0.5  # of a gradient: more than that is rounding alone, but for its length
)
_UNREFERENCED_GRADIENT = 5e-3  # the same, of a gradient: at most ten times this
_MOST_NOISE = 10.0  # times as long as eager's, where it is noise
_SMALL = 0.05  # share of the length of all gradients whose length may be rounding too
_LENGTHS = 2.0  # times as long, or half, may be a gradient whose direction is rounding
_MULTIPLE = 3.0  # of what eager's own rounding moves
# Of a result of so few numbers, such as the loss: by chance no try may move them much.
_FEW, _MULTIPLE_OF_FEW = 4, 10.0
_LONGER = 0.02  # than eager's may be a gradient, at least
_GRADIENTS = ("['gradients']", "['updates']")  # a view has one of them
_MEAN, _VARIANCE = "running_mean']", "running_var']"  # of normalizing layers

Leaves = list[tuple[str, Any]]


class Movement(NamedTuple):
    """How far eager's results move where its operations are rounded otherwise.

    Attributes:
        by: relative difference by path, that of all gradients as one at ``ALL``.
        longer: relative change of the length of gradients, in the same way.
        epsilon: of the precision that it multiplies matrices in.
        sizes: RMS by path, of what was moved.
    """

    by: Mapping[str, float] = {}
    longer: Mapping[str, float] = {}
    epsilon: float = 0.0
    sizes: Mapping[str, float] = {}


def _finite(x: torch.Tensor) -> torch.Tensor:
    return x.double().nan_to_num(0.0, 0.0, 0.0)


def _size(x: torch.Tensor, limit: float = math.inf) -> float:
    """RMS of the elements that are finite and not above a limit."""
    total, count = _squares(_as_real(x), limit).tolist()
    return math.sqrt(total / max(1, count))


def _squares(x: torch.Tensor, limit: float = math.inf) -> torch.Tensor:
    """Sum of the squares up to a limit and how many they are, on the device of the tensor."""
    total = torch.zeros(2, dtype=torch.float64, device=x.device)
    for piece in pieces(x):
        sizes = _finite(piece).abs()
        counted = sizes <= limit
        total += torch.stack([sizes.square().where(counted, 0.0).sum(), counted.sum()])
    return total


def _largest_ordinary(x: torch.Tensor) -> float:
    """The size above which an element is huge compared to the small ones."""
    sample = _finite(x.reshape(-1)[:: max(1, x.numel() // _SAMPLE + 1)]).abs()
    if not sample.numel():
        return math.inf
    small = float(sample.masked_fill(sample == 0, math.nan).nanquantile(0.1))
    return math.inf if math.isnan(small) else _HUGE * small


def _is_real(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _as_real(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()  # a model may return a parameter
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _misses(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """The difference in float64; 0 where both are the same infinity or NaN, else infinite there."""
    same = (want == got) | (want.isnan() & got.isnan())
    difference = (want.double() - got.double()).masked_fill(same, 0.0)
    return difference.nan_to_num(math.inf, math.inf, math.inf)


def _error(expected: torch.Tensor, actual: torch.Tensor, floor: float = 0.0) -> float:
    """Relative error: RMS of the difference over RMS of the expected values, at least ``floor``.

    Computed separately for ordinary and huge elements, and the larger returned.
    """
    expected, actual = _as_real(expected), _as_real(actual).to(expected.device)
    limit, worst = _largest_ordinary(expected), 0.0
    total = torch.zeros(2, 3, dtype=torch.float64, device=expected.device)
    for want, got in zip(pieces(expected), pieces(actual), strict=True):
        difference, sizes = _misses(want, got), _finite(want)
        is_huge = sizes.abs() > limit
        for row, mask in zip(total, (~is_huge, is_huge), strict=True):
            parts = (x.square().where(mask, 0.0).sum() for x in (difference, sizes))
            row += torch.stack([*parts, mask.sum()])
    for errors, squares, count in total.tolist():  # of ordinary and huge ones
        worst = max(worst, _Pair(errors, squares, 0.0, count).error(floor))
    return worst


class _Pair(NamedTuple):
    """Sums of squares over two tensors: of their difference, the first and the second."""

    apart: float
    first: float
    second: float
    elements: float

    @property
    def size(self) -> float:
        return math.sqrt(self.first / max(1.0, self.elements))

    @property
    def ratio(self) -> float:
        """How long the second is, in lengths of the first."""
        if not self.first:
            return math.inf if self.second else 1.0
        return math.sqrt(self.second / self.first)

    def error(self, floor: float = 0.0) -> float:
        """RMS of the difference over that of the first, at least ``floor``."""
        difference = math.sqrt(self.apart / max(1.0, self.elements))
        scale = max(self.size, floor)
        return difference / scale if scale else difference


def _pairs_of(ours: Leaves, theirs: Leaves) -> dict[str, _Pair]:
    """All gradients that can be compared, by path, and as one at ``ALL``.

    Waits for the device once: where others use a GPU too, each time takes milliseconds.
    """
    sums_of: dict[str, torch.Tensor] = {}
    counts = []
    for (path, a), (_, b) in zip(ours, theirs, strict=False):
        if not (path.startswith(_GRADIENTS) and _is_real(a) and _is_real(b)):
            continue
        if a.shape == b.shape and a.is_complex() == b.is_complex():
            a, b = _as_real(a), _as_real(b).to(a.device)
            sums_of[path] = torch.zeros(3, dtype=torch.float64, device=a.device)
            counts.append(a.numel())
            for x, y in zip(pieces(a), pieces(b), strict=True):
                each = (_misses(x, y), _finite(x), _finite(y))
                sums_of[path] += torch.stack([part.square().sum() for part in each])
    if not sums_of:
        return {}
    device = next(iter(sums_of.values())).device
    sums = torch.stack([x.to(device) for x in sums_of.values()]).tolist()
    every = [_Pair(a, b, c, n) for (a, b, c), n in zip(sums, counts, strict=True)]
    whole = _Pair._make(sum(each) for each in zip(*every, strict=True))
    return {**dict(zip(sums_of, every, strict=True)), ALL: whole}


def _noise_floors(leaves: Leaves, pairs: Mapping[str, _Pair]) -> Callable[[str], float]:
    """By path, the RMS below which a gradient or a running mean is noise.

    Relative to the largest gradient, as of a bias before BatchNorm, and to the deviation beside the
    mean, which is 0 but for rounding where the inputs of a convolution are normalized.
    """
    sizes = {path: pair.size for path, pair in pairs.items() if path != ALL}
    sizes |= {path: _size(x) for path, x in leaves if path.endswith((_MEAN, _VARIANCE))}
    floors: dict[str, float] = {}
    for path, size in sizes.items():
        size = math.sqrt(size) if path.endswith(_VARIANCE) else size
        floors[_group(path)] = max(floors.get(_group(path), 0.0), _NOISE * size)
    return lambda path: (
        0.0 if path.endswith(_VARIANCE) else floors.get(_group(path), 0.0)
    )


def _group(path: str) -> str:
    """All gradients, the mean and variance of one module, or nothing."""
    if path.startswith(_GRADIENTS):
        return _GRADIENTS[0]
    return path.rpartition("running_")[0] if path.endswith((_MEAN, _VARIANCE)) else ""


def differences(first: View, second: View) -> dict[str, float]:
    """The relative difference of each leaf of two equal runs, by path; of all gradients as one."""
    ours, theirs = flatten(first).leaves, flatten(second).leaves
    if len(ours) != len(theirs):
        return {ALL: math.inf}
    pairs = _pairs_of(ours, theirs)
    floor_of = _noise_floors(ours, pairs)
    errors = {path: pair.error(floor_of(path)) for path, pair in pairs.items()}
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        can_be = (
            path not in errors and _is_real(a) and _is_real(b) and a.shape == b.shape
        )
        errors.setdefault(path, _error(a, b, floor_of(path)) if can_be else 0.0)
    return errors


def lengths(first: View, second: View) -> dict[str, float]:
    """The relative change of the length of each gradient, by path, and of all as one."""
    pairs = _pairs_of(flatten(first).leaves, flatten(second).leaves)
    return {path: abs(pair.ratio - 1) for path, pair in pairs.items() if pair.first}


def sizes(view: View) -> dict[str, float]:
    """RMS by path."""
    leaves = flatten(view).leaves
    pairs = _pairs_of(leaves, leaves)
    others = {path: _size(x) for path, x in leaves if path not in pairs and _is_real(x)}
    return {path: pair.size for path, pair in pairs.items()} | others


def largest(*errors: Mapping[str, float]) -> dict[str, float]:
    """The largest error of each path."""
    paths = dict.fromkeys(path for each in errors for path in each)
    return {path: max(each.get(path, 0.0) for each in errors) for path in paths}


def mismatch_scale(first: View, second: View, restless: Collection[str] = ()) -> float:
    """The largest relative difference between two equal runs, called self-noise."""
    errors = differences(first, second).items()
    return max((error for path, error in errors if path not in restless), default=0.0)


def compare(
    expected: View,
    actual: View,
    *,
    noise: Mapping[str, float] | None = None,
    moved: Callable[[], Movement] = lambda: Movement(),
    reference: Callable[[], View | None] | None = None,
    tolerance: float | None = None,
    skip: tuple[str, ...] = (),
    restless: Collection[str] = (),
) -> str | None:
    """A description of the first error in ``actual``, against eager's ``expected``, or None.

    Args:
        noise: eager's difference from itself by path; the tolerance is at least three times this.
        moved: what eager's own rounding moves; called only if the tolerance fails.
        reference: computes the view in float64, or None if it cannot; called only if ``moved`` does
            not explain the error. Then an error against float64 of a small multiple of eager's
            passes; without one, up to ten times the tolerance.
        tolerance: the user's; replaces that of outputs and may only raise the others.
        skip: parts that are not compared.
        restless: paths of leaves whose values are not compared.
    """
    eager, compiled = flatten(without(expected, *skip)), flatten(without(actual, *skip))
    if eager.structure != compiled.structure:
        return f"another structure: {compiled[0]:.120} instead of {eager[0]:.120}"
    pairs = _pairs_of(eager.leaves, compiled.leaves)
    floor_of = _noise_floors(eager.leaves, pairs)
    golden: Leaves | None = None
    rounding: _Rounding | None = None
    for index, (path, want) in enumerate(eager.leaves):
        _, got = compiled.leaves[index]
        if path in restless:
            want, got = _blank(want), _blank(got)
        usual, floor = _tolerance(path, want, tolerance), floor_of(path)
        pair = pairs.get(path) if path not in restless else None
        allowed = max(usual, 3 * (noise or {}).get(path, 0.0))
        if is_gradient := path.startswith(_GRADIENTS):
            # Capped even if eager is noisy: a gradient of zeros has an error of 1.
            allowed = min(max(allowed, _GRADIENT_TOLERANCE), MOST_ROUNDING)
        if problem := _compare_kind(path, want, got, allowed):
            return problem
        if not _is_real(want):
            continue
        if problem := _compare_values(path, want, got, allowed, floor, pair):
            if strange := _other_nans(path, want, got):
                return strange
            rounding = rounding or _Rounding(moved(), pairs)
            if rounding.explains(path, want, got, floor):
                continue
            if reference is None:
                return problem
            if golden is None:
                golden = flatten(without(reference() or {}, *skip)).leaves
                rounding.learn(_pairs_of(golden, eager.leaves))
            if is_gradient and not rounding.has_length(ALL):
                return problem
            if not golden:  # nobody's fault: what a reference might excuse is let pass
                most = min(allowed, _UNREFERENCED_GRADIENT) if is_gradient else allowed
                error = pair.error(floor) if pair else _error(want, got, floor)
                if error > UNREFERENCED * most:
                    return problem
                continue
            exact = golden[index][1] if len(golden) == len(eager.leaves) else None
            if is_gradient and not rounding.has_length(path):
                return problem
            if not _as_good_as_eager(path, want, got, exact, usual / 10):
                return problem
    return None


class _Rounding:
    """What rounding explains of a difference.

    What moves by ``m`` may be off by ``3 m``, or ``10 m`` if it is a few numbers, within limits. A
    gradient, and all as one, may be longer by 2 % or by as many times what moves its length, and
    shorter by as much, or as the exact one may be: eager's has noise of the length ``m`` in it.
    """

    def __init__(self, moved: Movement, pairs: Mapping[str, _Pair]) -> None:
        self._moved, self._pairs = moved, pairs
        self._exact: Mapping[str, _Pair] = {}

    def learn(self, exact: Mapping[str, _Pair]) -> None:
        """Take the gradients of a float64 run into account, which are paired with eager's."""
        self._exact = exact if exact.keys() == self._pairs.keys() else {}

    def explains(
        self, path: str, want: torch.Tensor, got: torch.Tensor, floor: float
    ) -> bool:
        pair, size = self._pairs.get(path), _size(want)
        by = self._by(path, size)
        if not pair:
            # Where all gradients are rounding alone, nothing is known.
            most = math.inf if self._moved.by.get(ALL, 0.0) <= ELSEWHERE else ELSEWHERE
            least = floor / _NOISE * self._moved.epsilon  # of the deviation
            error = _error(want, got, least)
            most = min(_multiple(want.numel()) * by, most)
            return error <= most or (size < least and error <= 1.0)
        if not (self.has_length(ALL) and self.has_length(path)):
            return False
        if by > MOST_ROUNDING and self._is_small(path):
            return math.isfinite(pair.apart)
        limit = MOST_ROUNDING if by <= MOST_ROUNDING else math.inf
        return pair.error(floor) <= min(_multiple(pair.elements) * by, limit)

    def _by(self, path: str, size: float) -> float:
        """What moves by itself; a number that was moved when it was small moves less now."""
        by = self._moved.by.get(path, 0.0) * self._shrunk(path, size)
        return by if math.isfinite(by) else 0.0

    def _shrunk(self, path: str, size: float) -> float:
        """How much smaller a number is now than when it was moved, beside all gradients.

        What rounding moves stays: a sum that happens to cancel moves by more of itself.
        """
        sizes = self._moved.sizes
        if not size or path not in sizes:
            return 1.0
        pair = self._pairs.get(ALL) if path in self._pairs else None
        return (
            sizes[path]
            / size
            * (pair.size / sizes[ALL] if pair and sizes.get(ALL) else 1.0)
        )

    def _is_small(self, path: str) -> bool:
        return (
            path != ALL and self._pairs[path].first < _SMALL**2 * self._pairs[ALL].first
        )

    def has_length(self, path: str) -> bool:
        pair, exact = self._pairs[path], self._exact.get(path)
        by = self._by(path, pair.size)
        if not self._moved.by and exact:
            by = exact.error()
        if by > MOST_ROUNDING:
            if self._is_small(path):
                return pair.ratio <= _MOST_NOISE
            return 1 / _LENGTHS <= pair.ratio <= _LENGTHS
        longer = self._moved.longer.get(path, 0.0) * self._shrunk(path, pair.size)
        allowed = max(_LONGER, _multiple(pair.elements) * longer)
        least = most = 1.0
        if exact and exact.ratio:  # from the length in float64 to that of eager
            least, most = min(1.0, 1 / exact.ratio), max(1.0, 1 / exact.ratio)
        least = min(least - allowed, 1 / math.sqrt(1 + by * by))
        return least <= pair.ratio <= most + allowed


def _multiple(elements: float) -> float:
    return _MULTIPLE if elements > _FEW else _MULTIPLE_OF_FEW


def _blank(x: Any) -> Any:
    return torch.zeros_like(x) if isinstance(x, torch.Tensor) else None


def _tolerance(path: str, want: Any, asked: float | None) -> float:
    """The relative tolerance of one leaf without eager's self-noise."""
    dtype = _as_real(want).dtype if isinstance(want, torch.Tensor) else torch.float32
    usual = _TOLERANCE.get(dtype, _FLOAT32)
    if asked is None:
        return usual
    return asked if path.startswith("['outputs']") else max(usual, asked)


def _compare_kind(path: str, want: Any, got: Any, tolerance: float) -> str | None:
    """Compare everything that rounding cannot explain: all but the values of floating tensors."""
    if not isinstance(want, torch.Tensor):
        if type(want) is not type(got):
            return (
                f"{path} is a {type(got).__name__} instead of a {type(want).__name__}"
            )
        return (
            None
            if _is_same(want, got, tolerance)
            else f"{path} is {got!r} instead of {want!r}"
        )
    if not isinstance(got, torch.Tensor):
        return f"{path} is a {type(got).__name__} instead of a tensor"
    for name in ("shape", "dtype", "device"):
        if (seen := getattr(got, name)) != (right := getattr(want, name)):
            return f"{path} has {name} {seen} instead of {right}".replace(
                "torch.Size", ""
            )
    if not _is_real(want):
        others = int((want != got).sum())
        return f"{path} differs in {others} elements" if others else None
    return None


def _other_nans(path: str, want: torch.Tensor, got: torch.Tensor) -> str | None:
    strange = int((_as_real(want).isnan() != _as_real(got).isnan()).sum())
    what = f"{path} has NaN where eager has none, or the reverse, in {strange} elements"
    return what if strange else None


def _is_same(want: Any, got: Any, tolerance: float) -> bool:
    if isinstance(want, float):  # from ``.item()``, with the rounding of its tensor
        return math.isclose(want, got, rel_tol=tolerance) or (
            want != want and got != got
        )
    return want is got or bool(want == got)


def _compare_values(
    path: str,
    want: torch.Tensor,
    got: torch.Tensor,
    tolerance: float,
    floor: float,
    pair: _Pair | None,
) -> str | None:
    if pair:
        if pair.size < floor:  # noise: only its size is bounded
            tolerance = 1.0
        is_close = pair.error(floor) <= tolerance
    else:
        want, got = _as_real(want), _as_real(got)
        # The absolute tolerance is relative to the values' size: with a fixed one, zeros would
        # pass for small outputs.
        least = max(floor, tolerance * _size(want, _largest_ordinary(want)))
        is_close = all(
            bool(torch.isclose(a, b, rtol=tolerance, atol=least, equal_nan=True).all())
            for a, b in zip(pieces(got), pieces(want), strict=True)
        )
    if is_close:
        return None
    error = pair.error(floor) if pair else _error(want, got, floor)
    return f"{path} is off by {error:.2g} (relative RMS; tolerance {tolerance:.0e})"


def _as_good_as_eager(
    path: str, want: torch.Tensor, got: torch.Tensor, golden: Any, slack: float
) -> bool:
    """Compare both with a float64 run, by the rule of ``torch._dynamo.utils.same``."""
    if not _is_real(golden) or golden.shape != want.shape:
        return False
    if want.is_complex() != golden.is_complex():
        return False
    is_float32 = want.dtype in (torch.float32, torch.complex64)
    want, got, golden = (_as_real(x) for x in (want, got, golden))
    # float64 does not overflow where eager does; compiled must overflow like eager.
    strange = ~want.isfinite()
    if bool(((want != got) & strange & ~want.isnan()).any()):
        return False
    if bool(strange.any()):
        want, got, golden = (x.masked_fill(strange, 0.0) for x in (want, got, golden))
    is_gradient = path.startswith(_GRADIENTS)
    error_of = _whole_error if is_gradient else _error
    eagers_error, error = error_of(golden, want), error_of(golden, got)
    if eagers_error > ELSEWHERE and not is_gradient:
        return False
    multiple = 2.0 if is_float32 and want.numel() >= _FP64_SMALL else 3.0
    return error <= multiple * eagers_error + slack


def _whole_error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    path = _GRADIENTS[0]
    return _pairs_of([(path, expected)], [(path, actual)])[ALL].error()
