"""compare(): what passes for the same computation, and what never does."""

from __future__ import annotations

import copy
import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from autocompile.trial.verify.compare import compare, mismatch_scale
from autocompile.trial.verify.outputs import copy_view

Pair = namedtuple("Pair", "logits value")
INF, NAN = float("inf"), float("nan")


def out(*leaves: Any) -> dict[str, Any]:
    return {"outputs": leaves}


def values(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def test_equal_nested_outputs_pass() -> None:
    view = out({"a": [values(3), 2], "b": Pair(values(2, 2), None)}, "text", True)
    assert compare(view, copy.deepcopy(view)) is None


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ((values(3), values(3)), (values(3),)),
        ((values(3),), [values(3)]),
        ({"a": values(3)}, {"b": values(3)}),
        (Pair(values(3), values(3)), (values(3), values(3))),
        ({"weight": values(4), "bias": values(4)}, {"weight": values(4)}),
    ],
)
def test_another_structure_is_refused(expected: Any, actual: Any) -> None:
    problem = compare({"outputs": expected}, {"outputs": actual})
    assert problem is not None
    assert "another structure" in problem and "\n" not in problem


NOISE = {"['outputs'][0]": 1e9}
ONES, COUNT = torch.ones(4), torch.arange(100_000)
CLEAN, HOLED = torch.tensor([1.0, 2.0]), torch.tensor([1.0, NAN])
SPIRAL = torch.complex(values(8), values(8).flip(0))


@pytest.mark.parametrize("has_reference", [False, True])
@pytest.mark.parametrize(
    ("expected", "actual", "words"),
    [
        (ONES, ONES.double(), "dtype torch.float64"),
        (ONES, ONES.bfloat16(), "dtype torch.bfloat16"),
        (ONES, ONES.long(), "dtype torch.int64"),
        (ONES.view(4, 1), ONES, "['outputs'][0] has shape ([4]) instead of ([4, 1])"),
        (torch.empty(0, 3), torch.empty(3, 0), "has shape"),
        (ONES, ONES.to("meta"), "device meta instead of cpu"),
        (torch.tensor(2.0), 2.0, "is a float instead of a tensor"),
        (2.0, torch.tensor(2.0), "is a Tensor instead of a float"),
        (3, 4, "is 4 instead of 3"),
        ("a", "b", "is 'b' instead of 'a'"),
        (True, False, "is False instead of True"),
        (1, True, "is a bool instead of a int"),
        (None, 0, "instead of"),
        (3, 3.0, "is a float instead of a int"),
        (np.arange(4.0), np.arange(4.0) + 1, "is off by"),
        (CLEAN, HOLED, "NaN where eager has none, or the reverse, in 1 elements"),
        (HOLED, CLEAN, "NaN where eager has none, or the reverse, in 1 elements"),
        (torch.tensor([NAN, 1.0, 2.0]), torch.tensor([NAN, 1.0, 2.1]), "is off by"),
        (torch.tensor([1.0, -INF, INF]), torch.tensor([-1.0, INF, -INF]), "is off by"),
        (torch.tensor([1.0, -INF, INF]), torch.tensor([1.0, -1e30, INF]), "is off by"),
        (CLEAN.bool(), ~CLEAN.bool(), "['outputs'][0] differs in 2 elements"),
        (CLEAN.byte(), 2 * CLEAN.byte(), "['outputs'][0] differs in 2 elements"),
        (COUNT, COUNT.clone().put_(torch.tensor(50), torch.tensor(51)), "differs in 1 elements"),
        (values(10_000), values(10_000).index_fill(0, torch.tensor(1234), 9.0), "is off by"),
        (SPIRAL, SPIRAL.conj().resolve_conj(), "is off by"),
        (SPIRAL, torch.complex(SPIRAL.real * 1.01, SPIRAL.imag), "is off by"),
        (0.3, 0.3 * 1.01, "instead of 0.3"),
        (0.3, NAN, "instead of 0.3"),
    ],
)
def test_what_rounding_cannot_explain_is_refused(
    expected: Any, actual: Any, words: str, has_reference: bool
) -> None:
    """Beside a float64 run that agrees with eager, too."""
    assert compare(out(expected), copy_view(out(expected))) is None
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    is_tensor = isinstance(expected, torch.Tensor)
    golden = expected.to(wide.get(expected.dtype, expected.dtype)) if is_tensor else expected
    reference = (lambda: out(golden)) if has_reference else (lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert words in str(compare(out(expected), out(actual), reference=reference))
        if isinstance(expected, torch.Tensor) and "off by" not in words:
            assert words in str(compare(out(expected), out(actual), noise=NOISE))


def test_equal_infinities_and_python_numbers_with_rounding_pass() -> None:
    infinities = torch.tensor([1.0, -INF, INF])
    expected, actual = out(infinities, 0.3, NAN), out(infinities.clone(), 0.3 * (1 + 1e-6), NAN)
    assert compare(expected, actual) is None


def test_equal_infinities_pass_in_gradients() -> None:
    tensor = torch.tensor([1.0, INF, -INF])
    assert compare({"gradients": {"w": tensor}}, {"gradients": {"w": tensor.clone()}}) is None


def test_infinities_do_not_hide_that_two_runs_differ() -> None:
    first, second = torch.tensor([1.0, -INF]), torch.tensor([2.0, -INF])
    assert mismatch_scale(out(first), out(second)) > 0.1


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e-6, 1.0, 1e12])
def test_zeros_never_pass_for_values_of_any_size(scale: float) -> None:
    expected = values(64, scale=scale)
    assert compare(out(expected), out(expected * (1 + 1e-6))) is None
    assert "off by 1 " in str(compare(out(expected), out(torch.zeros(64))))


def test_a_masked_logit_does_not_hide_an_error_in_the_others() -> None:
    expected = torch.tensor([[0.3, -0.2, -1e9, 0.8], [0.1, 0.7, -1e9, -0.4]])
    actual = torch.where(expected < -1e8, expected, torch.zeros(()))
    assert compare(out(expected), out(actual)) is not None


def test_small_elements_may_be_off_by_the_rounding_of_the_large_ones() -> None:
    expected = torch.tensor([1.0, 1.0, 1e-9])
    assert compare(out(expected), out(torch.tensor([1.0, 1.0, -1e-9]))) is None


@pytest.mark.parametrize(
    ("dtype", "passes", "fails"),
    [
        (torch.float64, 1e-9, 1e-6),
        (torch.float32, 3e-5, 1e-3),
        (torch.float16, 5e-4, 1e-2),
        (torch.bfloat16, 5e-3, 5e-2),
    ],
)
def test_each_dtype_has_its_own_tolerance(dtype: torch.dtype, passes: float, fails: float) -> None:
    expected = values(64).abs().add(0.5).to(dtype)
    near = (expected.double() * (1 + passes)).to(dtype)
    far = (expected.double() * (1 + fails)).to(dtype)
    assert compare(out(expected), out(near)) is None
    assert compare(out(expected), out(far)) is not None


def test_self_noise_widens_the_tolerance_to_three_times_itself() -> None:
    expected = values(64)
    assert compare(out(expected), out(expected * 1.02)) is not None
    noise = {"['outputs'][0]": 0.01}
    assert compare(out(expected), out(expected * 1.02), noise=noise) is None
    assert compare(out(expected), out(expected * 1.05), noise=noise) is not None


def test_self_noise_is_relative_and_ignores_integers() -> None:
    first = out(torch.full((4,), 1e-6), torch.tensor([1, 2]))
    second = out(torch.full((4,), 1.1e-6), torch.tensor([8, 9]))
    assert mismatch_scale(first, second) == pytest.approx(0.1, rel=1e-3)
    assert mismatch_scale(first, copy_view(first)) == 0.0


def test_a_gradient_of_rounding_alone_may_be_any_rounding() -> None:
    """That of a bias of keys is 0 under a softmax: kernels differ in how far they miss it."""

    def gradients(of_bias: torch.Tensor) -> dict[str, Any]:
        return {"gradients": {"weight": values(32), "bias": of_bias}}

    eager, exact = gradients(values(32, scale=1e-4)), gradients(values(32, scale=1e-17))
    for size in (0.0, 1e-5, -2e-4):
        assert compare(eager, gradients(size * values(32)), reference=lambda: exact) is None
    assert compare(eager, gradients(values(32)), reference=lambda: exact) is not None
    noisy = gradients(values(32, scale=1e-4) + 3e-5)
    for wrong in (torch.zeros(32), values(32, scale=1e-3), values(32, scale=1e-5)):
        assert compare(eager, gradients(wrong), reference=lambda: noisy) is not None


def test_a_gradient_that_eager_has_right_by_chance_may_be_rounded_as_the_others() -> None:
    exact = {n: values(999).roll(k) for k, n in enumerate("abc")}
    off = {"a": 5e-3, "b": 6e-3, "c": 1e-4}
    noise = values(999).flip(0)
    eager = {"gradients": {n: x + off[n] * noise for n, x in exact.items()}}
    golden = {"gradients": {n: x.double() for n, x in exact.items()}}
    near = {"gradients": {**eager["gradients"], "c": exact["c"] + 0.013 * noise}}
    assert compare(eager, near, reference=lambda: golden) is None
    far = {"gradients": {**eager["gradients"], "c": exact["c"] + 0.05 * noise}}
    assert compare(eager, far, reference=lambda: golden) is not None
    for name in ("d", "e", "f", "g"):  # biases that are rounding alone tell nothing
        eager["gradients"][name] = near["gradients"][name] = values(9, scale=1e-4)
        golden["gradients"][name] = values(9, dtype=torch.float64, scale=1e-17)
    assert compare(eager, near, reference=lambda: golden) is None
    sure = {"gradients": {n: x + 1e-6 * noise for n, x in exact.items()}}
    sure["gradients"] |= {n: eager["gradients"][n] for n in "defg"}
    assert compare(sure, near, reference=lambda: golden) is not None


def test_without_a_reference_rounding_passes_and_a_scaled_gradient_does_not() -> None:
    """BERT's dropout draws other numbers in float64, and bfloat16 is off by more than 1 %."""
    eager = {"gradients": {n: values(4000).roll(k) for k, n in enumerate("abc")}}
    torch.manual_seed(0)
    for off, is_right in ((0.03, True), (0.3, False)):
        got = {
            n: x + off * x.abs().mean() * torch.randn(4000) for n, x in eager["gradients"].items()
        }
        assert (compare(eager, {"gradients": got}, reference=lambda: None) is None) is is_right
    small = {"gradients": {**eager["gradients"], "c": 1e-3 * values(4000)}}
    wild = {"gradients": {**eager["gradients"], "c": 3e-4 * values(4000)}}
    for by, is_right in ((0.01, False), (0.9, True)):
        moved = {"['gradients']['c']": by}
        said = compare(small, wild, reference=lambda: None, moved=lambda moved=moved: moved)
        assert (said is None) is is_right
    for factor in (0.97, 1.03):
        scaled = {n: factor * x for n, x in eager["gradients"].items()}
        assert compare(eager, {"gradients": scaled}, reference=lambda: None) is not None


def test_rounding_that_is_as_good_as_eagers_passes_beside_a_float64_run() -> None:
    """Sums that cancel: any float32 order of adding is off by more than the plain tolerance."""
    rows = values(32, 1000, dtype=torch.float64)
    rows[:, -1] = 1e-3 - rows[:, :-1].sum(1)
    columns = list(rows.float().unbind(1))
    golden = out(rows.float().double().sum(1))
    eager, compiled = out(sum(columns)), out(sum(reversed(columns)))
    assert compare(eager, compiled) is not None
    assert compare(eager, compiled, reference=lambda: golden) is None
    assert compare(eager, out(torch.zeros(32)), reference=lambda: golden) is not None


def test_an_overflow_of_eager_does_not_excuse_everything() -> None:
    exact = torch.tensor([1.0, 2.0, 3.0, 70_000.0], dtype=torch.float64)
    eager, wrong = exact.half(), torch.tensor([9.0, -9.0, 9.0, INF]).half()
    assert bool(eager[3].isinf())
    assert compare(out(eager), out(wrong), reference=lambda: out(exact)) is not None


def test_the_float64_run_is_asked_once_and_only_where_it_is_needed() -> None:
    asked = []

    def reference() -> dict[str, Any]:
        asked.append(True)
        return out(values(8).double(), values(8).double())

    view = out(values(8), values(8))
    assert compare(view, copy_view(view), reference=reference) is None
    assert not asked
    far = out(values(8) * 1.01, values(8) * 1.01)
    assert compare(view, far, reference=reference) is not None
    assert len(asked) == 1
    # Eager was the one that was off: both leaves need the float64 run, which is made once.
    assert compare(far, view, reference=reference) is None
    assert len(asked) == 2


def test_gradients_are_held_to_their_root_mean_square() -> None:
    """Single elements may be noise; a wrong tensor does not pass."""
    part = "gradients"
    expected = values(1000)
    flipped = expected.clone()
    flipped[expected.abs().argmin()] *= -1
    assert compare({part: {"w": expected}}, {part: {"w": flipped}}) is None
    for wrong in (torch.zeros(1000), expected * 2, expected * 1.05, expected.roll(1)):
        problem = compare({part: {"w": expected}}, {part: {"w": wrong}})
        assert f"['{part}']['w'] is off by" in str(problem)


def test_a_wrong_gradient_of_one_parameter_is_not_diluted_by_the_others() -> None:
    expected = {"gradients": {"weight": values(10_000), "bias": values(4, scale=1e-3)}}
    actual = {"gradients": {"weight": values(10_000), "bias": torch.zeros(4)}}
    assert "['gradients']['bias'] is off by 1 " in str(compare(expected, actual))


def test_no_gradient_is_none_also_where_eagers_direction_is_noise() -> None:
    """The gradients of a sum of probabilities are rounding errors: float64 has almost none."""
    step, other = values(1000), values(1000).roll(1)
    golden = {"gradients": {"w": values(1000, dtype=torch.float64) * 1e-3}}
    expected = {"gradients": {"w": step}}
    assert compare(expected, {"gradients": {"w": other}}, reference=lambda: golden) is None
    for wrong in (torch.zeros(1000), other * 5):
        actual = {"gradients": {"w": wrong}}
        assert "is off by" in str(compare(expected, actual, reference=lambda: golden))
