"""Compares a compiled side's view with eager's, by one rule for each kind of leaf.

Real numbers are compared slice by slice (``slices.py``). The plain tolerance of the dtype decides
first. Where a slice fails it, the scale of its error is measured: what the slice moves by where
eager's own operations are rounded otherwise at random (``rounding.py``), or where eager is just run
again, at least what the whole leaf moves by. An error of three times that is rounding, and a larger
one is wrong. The worst of
many slices may be larger, by chance alone or as one was in a try, and so may a mean over few numbers.
Gradients must have the right length, too.

Integers and booleans may differ as often as rounding changes eager's own. A Python number is a
tensor without axes. Structure, types, shapes, dtypes, devices and infinities are compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from autocompile.trial.values import flatten
from autocompile.trial.verify.outputs import View, without
from autocompile.trial.verify.slices import (
    Apart,
    Moves,
    apart,
    as_real,
    chances,
    counts,
    names_of,
)

# Relative tolerances by dtype, from PyTorch's dynamo benchmarks for inference.
_TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float64: 1e-8}
_FLOAT32 = 1e-4

# Of what rounding moves. Two computations that round alike are sqrt(2) apart.
_MULTIPLE = 3.0
# Of a gradient. A backward pass sums over samples and positions, in another order on each side, and
# how sums round inside the tries do not show: on an H200 gradients of right settings were up to 7.5
# apart as a whole, and 12.3 in a slice (`multiples` in studies/verification/h200.json).
_OF_GRADIENT = 15.0
# More for a mean over few numbers: this over their count. The scale is a mean over some tries
# itself, so the ratio has the tails of Student's t. With ``_MULTIPLE`` it is ten for one number.
_OF_FEW = 7.0
# How often eager is rounded otherwise: a few times first, since most settings are right, and more
# often before a setting is refused.
TRIES = (4, 16)
# Of the length of a gradient, beside what rounding moves it by. In float32 the error of a gradient
# tells more; in bfloat16, where rounding turns a gradient by several percent, its length does.
_LENGTH = 0.01
# At most, of all gradients as one: where these are rounding alone, none at all would do, too.
_MOST_OF_ALL = 0.5
# Where eager cannot be rounded otherwise: times the tolerance, and of a gradient, whose dtype does
# not tell in which precision it was computed.
UNKNOWN = 10.0
_UNKNOWN_GRADIENT = 0.05
# Of the integers of a leaf that rounding flips at all, beside three times what it flips.
_FLIPS = 1e-3
# Of the largest gradient, and of the deviation beside a mean: an error that is smaller is what
# rounding leaves of a sum that cancels, as the gradient of a bias before a normalization does, or
# the mean of a convolution after one. How sums round inside the tries do not show.
_NOISE = 1e-6

# As far beyond its limit as the whole leaf, a slice is what is wrong.
_MUCH = 2.0

ALL = ""  # in place of a path: all gradients taken as one
_GRADIENTS = ("['gradients']", "['updates']")  # a view has one of them
_MEAN, _VARIANCE = "running_mean']", "running_var']"  # of normalizing layers


@dataclass
class Moved:
    """How far one leaf of eager's view moved, summed over the tries.

    Attributes:
        slices: the change, by slice.
        together: sums of squares of the change, and of the leaf.
        lengths: squared relative changes of the length.
        flips: the largest share of the elements of an integer leaf that changed.
        amount: the largest change of an integer without axes.
    """

    slices: Moves = field(default_factory=Moves)
    together: torch.Tensor | None = None
    lengths: torch.Tensor | None = None
    flips: float = 0.0
    amount: float = 0.0

    def add(self, squares: torch.Tensor, error: torch.Tensor | None = None) -> None:
        """Take one more try into account: the three sums of squares, and errors by slice."""
        change = (_ratio(squares) - 1).square().nan_to_num(0.0, 0.0, 0.0)
        self.lengths = change if self.lengths is None else self.lengths + change
        self.together = squares if self.together is None else self.together + squares
        if error is not None:
            self.slices.add(error)


@dataclass
class Movement:
    """How far eager's view of a call moves where its operations are rounded otherwise.

    Attributes:
        tries: how often that was tried.
        leaves: by path; all gradients as one at ``ALL``.
        by_itself: how far eager's results move although nothing is rounded otherwise. Kernels whose
            threads add up in any order may do so in some calls only, and further than by rounding.
    """

    tries: int = 0
    leaves: dict[str, Moved] = field(default_factory=dict)
    by_itself: Movement | None = None

    def add(self, want: View, got: View) -> None:
        """Take one more try into account.

        Raises:
            ValueError: its results have another structure, so nothing can be said.
        """
        ours, theirs = flatten(want), flatten(got)
        if ours.structure != theirs.structure:
            raise ValueError("its results have another structure")
        gradients = []
        for (path, a), (_, b) in zip(ours.leaves, theirs.leaves, strict=True):
            moved = self.leaves.setdefault(path, Moved())
            first, second = _as_tensor(a), _as_tensor(b)
            if first is None or second is None or not _is_alike(first, second):
                continue
            if is_real(first):
                far = apart(first, second)
                moved.add(far.squares, far.error)
                if of_gradient(path):
                    gradients.append(far.squares)
            elif first.numel():
                change = (first.double() - second.double().to(first.device)).abs()
                moved.flips = max(moved.flips, float((change > 0).double().mean()))
                if not first.dim():
                    moved.amount = max(moved.amount, float(change))
        if gradients:
            self.leaves.setdefault(ALL, Moved()).add(_sum(gradients))
        self.tries += 1

    def slices(self, path: str) -> Moves:
        """How far the slices of a leaf move."""
        return self.leaves.get(path, Moved()).slices

    def length(self, path: str) -> float:
        """What the length of a gradient, or of all as one, moves by, relative to itself."""
        lengths = self.leaves.get(path, Moved()).lengths
        own = 0.0 if lengths is None else math.sqrt(float(lengths) / self.tries)
        return max(own, self.by_itself.length(path)) if self.by_itself else own

    def flips(self, path: str) -> tuple[float, float]:
        """The largest share of the elements of an integer leaf that changed, and by how much."""
        found = [each.leaves.get(path, Moved()) for each in self._both]
        return max(m.flips for m in found), max(m.amount for m in found)

    def explained(self, path: str, x: torch.Tensor, is_gradient: bool) -> torch.Tensor:
        """The errors of the slices of a leaf that are no error of a compiler."""
        both = [explained(x, m.slices(path), is_gradient) for m in self._both]
        return torch.stack(both).amax(0)

    def scale(self, path: str, x: torch.Tensor) -> torch.Tensor:
        """What the slices of a leaf move by."""
        return torch.stack([m.slices(path).scale(x) for m in self._both]).amax(0)

    @property
    def _both(self) -> list[Movement]:
        return [self, self.by_itself] if self.by_itself else [self]

    @property
    def of_gradients(self) -> float:
        """What all gradients as one move by, relative to their length."""
        together = self.leaves.get(ALL, Moved()).together
        if together is None or not float(together[1]):
            return 0.0
        return math.sqrt(float(together[0] / together[1]))


def explained(x: torch.Tensor, moves: Moves, is_gradient: bool = False) -> torch.Tensor:
    """The errors of the slices of a tensor that rounding explains where it moves them so far."""
    # A row of an output is wrong where rounding has chosen another one: only of a gradient, which
    # sums over many samples, may one that was chosen otherwise show in all of a slice.
    multiple = _OF_GRADIENT * moves.worst(x) if is_gradient else _MULTIPLE * chances(x)
    return (multiple + _OF_FEW / counts(x)) * moves.scale(x)


_Pair = tuple[str, Any, Any]
"""A path, and its leaves of eager and of the compiled side."""

Moving = Callable[[int], Movement | None]
"""Gives what at least so many tries move; None where eager cannot be rounded otherwise."""


@dataclass(frozen=True)
class _Leaf:
    """A leaf of both views, of which kind, shape and dtype are equal."""

    path: str
    want: torch.Tensor
    got: torch.Tensor
    tolerance: float
    far: Apart
    words: str = ""  # both values, of Python numbers
    floor: float = 0.0  # an error below it is rounding

    @property
    def is_gradient(self) -> bool:
        return of_gradient(self.path)

    def misses(self) -> torch.Tensor:
        """By how much the plain tolerance is exceeded in the worst slice, on the device."""
        allowed = torch.maximum(self.tolerance * self.far.scale, self._least)
        return (self.far.error - allowed).max()

    def limit(self, movement: Movement) -> torch.Tensor:
        """The largest error of each slice that rounding explains."""
        least = torch.finfo(as_real(self.want).dtype).eps * self.far.size[0]
        by = movement.explained(self.path, self.want, self.is_gradient)
        return torch.maximum(by + least, self._least)

    def is_rounding(self, movement: Movement) -> bool:
        """Whether rounding moves it by all that it is, so that its length says nothing."""
        by = movement.scale(self.path, self.want)[0]
        return max(float(by), self.floor) >= float(self.far.size[0])

    @property
    def _least(self) -> torch.Tensor:
        return self.floor * chances(self.want)


def compare(
    expected: View,
    actual: View,
    *,
    noise: Mapping[str, float] | None = None,
    moved: Moving = lambda tries: Movement(),
    tolerance: float | None = None,
    skip: tuple[str, ...] = (),
    restless: Collection[str] = (),
) -> str | None:
    """A description of the first error in ``actual``, against eager's ``expected``, or None.

    Args:
        noise: eager's difference from itself by path; three times this is right where it is not
            known what rounding moves.
        moved: what eager's own rounding moves; called only if the tolerance fails.
        tolerance: the user's; replaces that of outputs and may only raise the others.
        skip: parts that are not compared.
        restless: paths of leaves whose values are not compared.
    """
    pairs, problem = _pairs_of_kinds(without(expected, *skip), without(actual, *skip))
    if problem:
        return problem
    compared = [pair for pair in pairs if pair[0] not in restless]
    if problem := _first(_other_thing(*pair) for pair in compared):
        return problem
    real = _real_leaves(compared, tolerance)
    missed = numbers([leaf.misses() for leaf in real])
    far = [leaf for leaf, by in zip(real, missed, strict=True) if by > 0]
    if problem := _first(map(_other_infinities, far)):
        return problem
    return _unexplained(far, _whole_leaves(compared), real, moved, noise or {})


def kind_problem(expected: View, actual: View) -> str | None:
    """What is wrong with ``actual`` whatever random numbers were drawn, or None.

    Structure, types, shapes, and a tensor without a finite number where all of eager's are.
    """
    pairs, problem = _pairs_of_kinds(expected, actual)
    return problem or _first(_not_finite(*pair) for pair in pairs)


def _not_finite(path: str, want: Any, got: Any) -> str | None:
    """Whether all is infinite or NaN, where eager has none of these: some may be by a draw."""
    first, second = _as_tensor(want), _as_tensor(got)
    if first is None or second is None or not first.numel():
        return None
    is_strange = bool(first.isfinite().all()) and not bool(second.isfinite().any())
    return (
        f"{path} has no finite number, where all of eager's are" if is_strange else None
    )


def _pairs_of_kinds(expected: View, actual: View) -> tuple[list[_Pair], str | None]:
    """The leaves of two views side by side, or how structure or kinds differ."""
    eager, compiled = flatten(expected), flatten(actual)
    if eager.structure != compiled.structure:
        words = f"{compiled[0]:.120} instead of {eager[0]:.120}"
        return [], f"another structure: {words}"
    pairs = _paired(eager.leaves, compiled.leaves)
    return pairs, _first(_other_kind(*pair) for pair in pairs)


def _paired(ours: list[tuple[str, Any]], theirs: list[tuple[str, Any]]) -> list[_Pair]:
    return [(path, a, b) for (path, a), (_, b) in zip(ours, theirs, strict=True)]


def _real_leaves(pairs: list[_Pair], asked: float | None) -> list[_Leaf]:
    """The leaves of real numbers, with their differences."""
    leaves = []
    for path, want, got in pairs:
        first, second = _as_tensor(want), _as_tensor(got)
        if first is None or second is None or not is_real(first):
            continue
        words = "" if want is first else f"{got!r} instead of {want!r}"
        usual, far = tolerance_of(path, first, asked), apart(first, second)
        leaves.append(_Leaf(path, first, second, usual, far, words))
    floors = _floors({leaf.path: leaf.far for leaf in leaves})
    return [replace(leaf, floor=floors.get(leaf.path, 0.0)) for leaf in leaves]


def _whole_leaves(pairs: list[_Pair]) -> list[_Pair]:
    """The integers and booleans that differ, as they came."""
    return [
        (path, want, got)
        for path, want, got in pairs
        if (first := _as_tensor(want)) is not None
        and (second := _as_tensor(got)) is not None
        and not is_real(first)
        and not torch.equal(first, second)
    ]


def _other_thing(path: str, want: Any, got: Any) -> str | None:
    """Whether what is no number differs: a text, an enumeration, nothing."""
    if _as_tensor(want) is not None and _as_tensor(got) is not None:
        return None
    is_same = want is got or bool(want == got)
    return None if is_same else f"{path} is {got!r} instead of {want!r}"


def _unexplained(
    far: list[_Leaf],
    whole: list[_Pair],
    real: list[_Leaf],
    moved: Moving,
    noise: Mapping[str, float],
) -> str | None:
    """The first of the leaves that miss the tolerance whose error is more than rounding."""
    gradients = [leaf.far.squares for leaf in real if leaf.is_gradient]
    problem = None
    for tries in TRIES if far or whole else ():
        movement = moved(tries)
        if movement is None:
            found = [_unknown(leaf, noise.get(leaf.path, 0.0)) for leaf in far]
            return _first([*found, *(_flipped(*each, Movement()) for each in whole)])
        found = [_wrong(leaf, movement) for leaf in far]
        found += [_flipped(*each, movement) for each in whole]
        if gradients and any(leaf.is_gradient for leaf in far):
            found.append(_another_length(ALL, _sum(gradients), math.inf, movement))
        if not (problem := _first(found)):
            return None
    return problem


def _wrong(leaf: _Leaf, movement: Movement) -> str | None:
    """In which slice an error is more than rounding."""
    if bool((leaf.far.error > (limit := leaf.limit(movement))).any()):
        return _off(leaf, limit)
    if not leaf.is_gradient or leaf.is_rounding(movement):
        return None
    return _another_length(leaf.path, leaf.far.squares, leaf.want.numel(), movement)


def _unknown(leaf: _Leaf, noise: float) -> str | None:
    """Which slice is far off although it is not known what rounding moves."""
    usual = _UNKNOWN_GRADIENT if leaf.is_gradient else UNKNOWN * leaf.tolerance
    share = max(leaf.tolerance, usual, 3 * noise)
    limit = share * leaf.far.scale
    return _off(leaf, limit) if bool((leaf.far.error > limit).any()) else None


def worst_slice(error: torch.Tensor, limit: torch.Tensor) -> int:
    """Which slice is wrong: 0, the whole, unless one is much further beyond its limit."""
    beyond = (error / limit).nan_to_num(0.0)
    worst = int(beyond.argmax())
    is_whole = bool(beyond[0] > 1) and bool(beyond[worst] < _MUCH * beyond[0])
    return 0 if is_whole else worst


def _off(leaf: _Leaf, limit: torch.Tensor) -> str:
    """How far a leaf is off, or one slice of it that is much further off than the whole."""
    if leaf.words:
        return f"{leaf.path} is {leaf.words}"
    error, size = leaf.far.error, leaf.far.scale
    worst = worst_slice(error, limit)
    place = [*names_of(leaf.want)][worst]
    unit = float(size[worst]) or 1.0
    why = f"relative RMS; tolerance {leaf.tolerance:.0e}"
    if float(limit[worst]) / unit > leaf.tolerance:
        why += f", rounding explains {float(limit[worst]) / unit:.2g}"
    off = f"is off by {float(error[worst]) / unit:.2g} ({why})"
    return f"{leaf.path} at {place} {off}" if place else f"{leaf.path} {off}"


def _another_length(
    path: str, squares: torch.Tensor, elements: float, movement: Movement
) -> str | None:
    """Whether a gradient, or all as one, is longer or shorter than rounding makes it."""
    ratio = float(_ratio(squares))
    multiple = _MULTIPLE + _OF_FEW / max(1, elements)
    most = _LENGTH + multiple * movement.length(path)
    if abs(ratio - 1) <= (min(most, _MOST_OF_ALL) if path == ALL else most):
        return None
    what = path if path != ALL else "the gradient of all parameters"
    return f"{what} is off by {abs(ratio - 1):.2g} in its length"


def _flipped(path: str, want: Any, got: Any, movement: Movement) -> str | None:
    """Whether more integers differ than rounding flips."""
    flips, amount = movement.flips(path)
    first, second = _as_tensor(want), _as_tensor(got)
    assert first is not None
    assert second is not None
    differ = first != second
    allowed = _MULTIPLE * flips + _FLIPS if flips else 0.0
    is_right = float(differ.double().mean()) <= allowed
    if not first.dim():  # a count: that it changes says nothing, but by how much does
        change = abs(float(first) - float(second))
        is_right &= change <= (_MULTIPLE + _OF_FEW) * amount
    if is_right:
        return None
    if not isinstance(want, torch.Tensor):
        return f"{path} is {got!r} instead of {want!r}"
    return f"{path} differs in {int(differ.sum())} elements"


def _other_kind(path: str, want: Any, got: Any) -> str | None:
    """What differs and is no value: type, shape, dtype or device."""
    if not isinstance(want, torch.Tensor):
        if type(want) is type(got):
            return None
        return f"{path} is a {type(got).__name__} instead of a {type(want).__name__}"
    if not isinstance(got, torch.Tensor):
        return f"{path} is a {type(got).__name__} instead of a tensor"
    for name in ("shape", "dtype", "device"):
        seen, right = getattr(got, name), getattr(want, name)
        if seen != right:
            words = f"{path} has {name} {seen} instead of {right}"
            return words.replace("torch.Size", "")
    return None


def _other_infinities(leaf: _Leaf) -> str | None:
    """Whether one is infinite or NaN where the other is not: never rounding."""
    if math.isfinite(float(leaf.far.error[0])):
        return None
    if leaf.words:
        return f"{leaf.path} is {leaf.words}"
    strange = int((as_real(leaf.want).isnan() != as_real(leaf.got).isnan()).sum())
    if not strange:
        return (
            f"{leaf.path} is off by inf (infinite where eager is not, or the reverse)"
        )
    words = "has NaN where eager has none, or the reverse, in"
    return f"{leaf.path} {words} {strange} elements"


def tolerance_of(path: str, want: torch.Tensor, asked: float | None) -> float:
    """The relative tolerance of one leaf."""
    usual = _TOLERANCE.get(as_real(want).dtype, _FLOAT32)
    if asked is None:
        return usual
    return asked if path.startswith("['outputs']") else max(usual, asked)


def _floors(leaves: Mapping[str, Apart]) -> dict[str, float]:
    """By path, the error of a gradient or of a running mean below which it is rounding."""
    names = [p for p in leaves if of_gradient(p) or p.endswith(_VARIANCE)]
    sizes = dict(zip(names, numbers([leaves[p].size[0] for p in names]), strict=True))
    gradients = [path for path in names if of_gradient(path)]
    most = _NOISE * max((sizes[path] for path in gradients), default=0.0)
    floors = dict.fromkeys(gradients, most)
    for path in names:
        if path.endswith(_VARIANCE):
            mean = path.replace(_VARIANCE, _MEAN)
            floors[mean] = _NOISE * math.sqrt(sizes[path])
    return floors


def of_gradient(path: str) -> bool:
    """Whether a leaf of a view is a gradient, or what a step made of one."""
    return path.startswith(_GRADIENTS)


def is_real(x: Any) -> bool:
    """Whether it is a tensor of floating or complex numbers."""
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _as_tensor(x: Any) -> torch.Tensor | None:
    """A tensor, or a Python number as one without axes; None for anything else."""
    if isinstance(x, torch.Tensor):
        return x
    if isinstance(x, (bool, int)):
        return torch.tensor(x, dtype=torch.int64) if abs(x) < 2**63 else None
    # Of ``.item()``: as exact as what it was computed from, and not as float64.
    if isinstance(x, (float, complex)):
        dtype = torch.complex64 if isinstance(x, complex) else torch.float32
        return torch.tensor(x, dtype=dtype)
    return None


def _is_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two leaves can be subtracted element by element."""
    are_real = is_real(first), is_real(second)
    return are_real[0] == are_real[1] and as_real(first).shape == as_real(second).shape


def _ratio(squares: torch.Tensor) -> torch.Tensor:
    """How long the second of two tensors is, in lengths of the first."""
    _, first, second = squares
    nothing = torch.where(second > 0, math.inf, 1.0).to(squares)
    return torch.where(first > 0, (second / first).sqrt(), nothing)


def _sum(squares: Iterable[torch.Tensor]) -> torch.Tensor:
    """The sum of vectors that may be on several devices."""
    every = [*squares]
    return torch.stack([x.to(every[0].device) for x in every]).sum(0)


def numbers(values: list[torch.Tensor]) -> list[float]:
    """Values of tensors without axes; waits for each device once."""
    if not values:
        return []
    found: list[float] = torch.stack([x.to(values[0].device) for x in values]).tolist()
    return found


def _first(problems: Iterable[str | None]) -> str | None:
    return next(filter(None, problems), None)


# --- how far two runs of eager mode are apart -----------------------------------------------------


def relative_differences(first: View, second: View) -> dict[str, float]:
    """The relative difference of each leaf of two equal runs, by path; of all gradients as one."""
    ours, theirs = flatten(first).leaves, flatten(second).leaves
    if len(ours) != len(theirs):
        return {ALL: math.inf}
    errors = {path: 0.0 for path, _ in ours}
    real = {}
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        if is_real(a) and is_real(b) and as_real(a).shape == as_real(b).shape:
            real[path] = apart(a, b)
    if not real:
        return errors
    floors = _floors(real)
    rows = numbers([x for far in real.values() for x in (far.error[0], far.size[0])])
    for path, error, size in zip(real, rows[::2], rows[1::2], strict=True):
        scale = max(size, floors.get(path, 0.0))
        errors[path] = error / scale if scale else error
    gradients = [far.squares for path, far in real.items() if of_gradient(path)]
    if gradients:
        apart_, first_, _ = _sum(gradients).tolist()
        errors[ALL] = math.sqrt(apart_ / first_) if first_ else math.sqrt(apart_)
    return errors


def largest(*errors: Mapping[str, float]) -> dict[str, float]:
    """The largest error of each path."""
    paths = dict.fromkeys(path for each in errors for path in each)
    return {path: max(each.get(path, 0.0) for each in errors) for path in paths}


def mismatch_scale(first: View, second: View, restless: Collection[str] = ()) -> float:
    """The largest relative difference between two equal runs, called self-noise."""
    errors = relative_differences(first, second).items()
    return max((error for path, error in errors if path not in restless), default=0.0)
