"""Does the compiled side compute the same thing as eager?

A view is a dictionary of parts: ``outputs``, ``loss`` (compared element by element), ``gradients``
and ``updates`` (compared by root mean square: the sign of an Adam step flips where a gradient is
rounding noise around zero, so single elements cannot be held to a tolerance there).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["View", "compare", "copy_view", "mismatch_scale"]

View = Mapping[str, Any]

# Relative tolerances by dtype: what PyTorch's own dynamo benchmarks accept for inference.
_TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float64: 1e-8}
_FLOAT32 = 1e-4
_UPDATE_TOLERANCE = 1e-2
# Against float64, compiled may be off by this multiple of eager's own error, a rule taken from
# torch._dynamo.utils.same.
_FP64_MULTIPLE = {torch.float32: 2.0}
_FP64_SMALL = 1000


def copy_view(view: View) -> View:
    """A deep copy that later calls cannot overwrite (CUDA graphs reuse their output memory)."""
    copied: View = pytree.tree_map(
        lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, dict(view)
    )
    return copied


def _paths(tree: Any) -> list[tuple[str, Any]]:
    return [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(tree)[0]]


def _describe(tree: Any) -> str:
    return str(pytree.tree_structure(tree)).replace("\n", "")[:120]


def _rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt()) if x.numel() else 0.0


def _error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """Root mean square of the difference over that of the expected values."""
    both = expected.isnan() & actual.isnan()
    difference = (expected.double() - actual.double()).masked_fill(both, 0.0)
    scale = _rms(expected.double().nan_to_num(0.0, 0.0, 0.0))
    error = _rms(difference)
    return error / scale if scale else error


def mismatch_scale(first: View, second: View) -> float:
    """The largest relative difference between two runs of the same thing: its self-noise."""
    worst = 0.0
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True)
    for a, b in pairs:
        if isinstance(a, torch.Tensor) and a.is_floating_point() and a.shape == b.shape:
            worst = max(worst, _error(a, b))
    return worst


def compare(
    expected: View,
    actual: View,
    *,
    noise: float = 0.0,
    reference: Callable[[], View] | None = None,
) -> str | None:
    """What is wrong with ``actual``; None when nothing is.

    Args:
        expected: eager's view.
        actual: the compiled side's view.
        noise: eager's self-noise, which widens the tolerance to three times itself.
        reference: computes the same view in float64; asked only where the plain tolerance fails.
            Then compiled passes if it is no further from float64 than a small multiple of eager.
    """
    if pytree.tree_structure(expected) != pytree.tree_structure(actual):
        return f"another structure: {_describe(actual)} instead of {_describe(expected)}"
    golden: list[Any] | None = None
    for index, ((path, want), (_, got)) in enumerate(
        zip(_paths(expected), _paths(actual), strict=True)
    ):
        problem = _compare_leaf(path, want, got, noise)
        if problem is None or not isinstance(want, torch.Tensor) or reference is None:
            if problem:
                return problem
            continue
        if golden is None:
            golden = pytree.tree_leaves(reference())
        if not _as_good_as_eager(want, got, golden[index]):
            return problem
    return None


def _compare_leaf(path: str, want: Any, got: Any, noise: float) -> str | None:
    if type(want) is not type(got) and not isinstance(want, torch.Tensor):
        return f"{path} is a {type(got).__name__} instead of a {type(want).__name__}"
    if not isinstance(want, torch.Tensor):
        return None if want is got or want == got else f"{path} is {got!r} instead of {want!r}"
    if not isinstance(got, torch.Tensor):
        return f"{path} is a {type(got).__name__} instead of a tensor"
    for name in ("shape", "dtype", "device"):
        if getattr(want, name) != getattr(got, name):
            seen, right = getattr(got, name), getattr(want, name)
            return f"{path} has {name} {seen} instead of {right}".replace("torch.Size", "")
    if not want.is_floating_point() and not want.is_complex():
        same = torch.equal(want, got)
        return None if same else f"{path} differs in {int((want != got).sum())} elements"
    if want.is_complex():
        want, got = torch.view_as_real(want), torch.view_as_real(got)
    strange = int((want.isnan() != got.isnan()).sum())
    if strange:
        return f"{path} has NaN where eager has none, or the reverse, in {strange} elements"
    tolerance = max(_TOLERANCE.get(want.dtype, _FLOAT32), 3 * noise)
    if path.startswith(("['gradients']", "['updates']")):
        return _compare_rms(path, want, got, max(tolerance, _UPDATE_TOLERANCE))
    # The absolute part follows the size of the values: with a fixed one, zeros would pass for
    # any output that is small.
    size = _rms(want.nan_to_num(0.0, 0.0, 0.0))
    close = torch.isclose(got, want, rtol=tolerance, atol=tolerance * size, equal_nan=True)
    if bool(close.all()):
        return None
    return f"{path} is off by {_error(want, got):.2g} (relative RMS; tolerance {tolerance:.0e})"


def _compare_rms(path: str, want: torch.Tensor, got: torch.Tensor, tolerance: float) -> str | None:
    error = _error(want, got)
    if error <= tolerance:
        return None
    return f"{path} is off by {error:.2g} (relative RMS; tolerance {tolerance:.0e})"


def _as_good_as_eager(want: torch.Tensor, got: torch.Tensor, golden: Any) -> bool:
    """The rule of ``torch._dynamo.utils.same``: compare both with a float64 run."""
    if not isinstance(golden, torch.Tensor) or golden.shape != want.shape:
        return False
    if want.shape != got.shape or want.dtype != got.dtype:
        return False
    if bool((want.isnan() != got.isnan()).any()):
        return False
    multiple = 3.0 if want.numel() < _FP64_SMALL else _FP64_MULTIPLE.get(want.dtype, 3.0)
    slack = _TOLERANCE.get(want.dtype, _FLOAT32) / 10
    return _error(golden, got) <= multiple * _error(golden, want) + slack
