"""compare(): what passes for the same computation, and what never does."""

from __future__ import annotations

import copy
import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from autocompile.trial.verify.compare import ALL, Movement, compare, mismatch_scale
from autocompile.trial.verify.outputs import copy_view

Pair = namedtuple("Pair", "logits value")
INF, NAN = float("inf"), float("nan")


def out(*leaves: Any) -> dict[str, Any]:
    return {"outputs": leaves}


def values(
    *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(
        dtype
    )


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
        (
            COUNT,
            COUNT.clone().put_(torch.tensor(50), torch.tensor(51)),
            "differs in 1 elements",
        ),
        (
            values(10_000),
            values(10_000).index_fill(0, torch.tensor(1234), 9.0),
            "is off by",
        ),
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
    golden = (
        expected.to(wide.get(expected.dtype, expected.dtype)) if is_tensor else expected
    )
    reference = (lambda: out(golden)) if has_reference else (lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert words in str(compare(out(expected), out(actual), reference=reference))
        if isinstance(expected, torch.Tensor) and "off by" not in words:
            assert words in str(compare(out(expected), out(actual), noise=NOISE))


def test_equal_infinities_and_python_numbers_with_rounding_pass() -> None:
    infinities = torch.tensor([1.0, -INF, INF])
    expected, actual = (
        out(infinities, 0.3, NAN),
        out(infinities.clone(), 0.3 * (1 + 1e-6), NAN),
    )
    assert compare(expected, actual) is None


def test_equal_infinities_pass_in_gradients() -> None:
    tensor = torch.tensor([1.0, INF, -INF])
    assert (
        compare({"gradients": {"w": tensor}}, {"gradients": {"w": tensor.clone()}})
        is None
    )


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
def test_each_dtype_has_its_own_tolerance(
    dtype: torch.dtype, passes: float, fails: float
) -> None:
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


def gradients(**tensors: torch.Tensor) -> dict[str, Any]:
    return {"gradients": tensors}


def moving(
    together: float = 0.0, epsilon: float = 1e-7, **by: float
) -> Callable[[], Movement]:
    paths = {f"['gradients']['{name}']": share for name, share in by.items()}
    return lambda: Movement({**paths, ALL: together}, {ALL: together / 10}, epsilon)


def test_a_gradient_of_rounding_alone_may_be_any_rounding() -> None:
    """That of a bias of keys is 0 under a softmax: kernels differ in how far they miss it."""
    weight, moved = values(32), moving(weight=1e-7, bias=0.9)
    eager = gradients(weight=weight, bias=values(32, scale=1e-4))
    for size in (0.0, 1e-5, -2e-4):
        got = gradients(weight=weight, bias=size * values(32))
        assert compare(eager, got, moved=moved) is None
        assert compare(eager, got, moved=moving(bias=0.01)) is not None
    assert (
        compare(eager, gradients(weight=weight, bias=values(32)), moved=moved)
        is not None
    )


def test_what_eagers_own_rounding_moves_three_times_as_far_is_rounding() -> None:
    eager = {n: values(4000).roll(k) for k, n in enumerate("abc")}
    torch.manual_seed(0)
    noise = torch.randn(4000)
    for off, is_right in ((0.055, True), (0.065, False)):
        got = {n: x + off * noise for n, x in eager.items()}
        said = compare(
            gradients(**eager), gradients(**got), moved=moving(a=0.02, b=0.02, c=0.02)
        )
        assert (said is None) is is_right
    loss = {"loss": torch.tensor(2.0)}
    for off, is_right in (
        (1.9e-3, True),
        (2.1e-3, False),
    ):  # ten times: it is one number
        said = compare(
            loss,
            {"loss": torch.tensor(2 + 2 * off)},
            moved=lambda: Movement({"['loss']": 2e-4}),
        )
        assert (said is None) is is_right


def test_rounding_does_not_make_all_gradients_longer() -> None:
    eager = {n: values(4000).roll(k) for k, n in enumerate("abc")}
    for factor, is_right in ((0.97, False), (1.03, False), (1.015, True)):
        scaled = gradients(**{n: factor * x for n, x in eager.items()})
        said = compare(
            gradients(**eager), scaled, moved=moving(0.02, a=0.02, b=0.02, c=0.02)
        )
        assert (said is None) is is_right


def test_one_gradient_may_not_be_longer_either() -> None:
    eager = {n: values(4000).roll(k) for k, n in enumerate("abc")}
    moved = moving(0.02, a=0.02, b=0.02, c=0.02)
    for factor, is_right in ((0.97, False), (1.03, False), (1.015, True)):
        got = gradients(**{**eager, "b": factor * eager["b"]})
        assert (compare(gradients(**eager), got, moved=moved) is None) is is_right


def test_of_gradients_that_are_rounding_alone_the_lengths_are_compared() -> None:
    eager = {n: values(4000).roll(k) for k, n in enumerate("abc")}
    chaos = moving(1.0, a=1.0, b=1.0, c=1.0)
    for factor, is_right in (
        (0.0, False),
        (0.4, False),
        (2.5, False),
        (1.6, True),
        (-1.0, True),
    ):
        got = gradients(**{n: factor * x for n, x in eager.items()})
        assert (compare(gradients(**eager), got, moved=chaos) is None) is is_right
    half = moving(0.51, a=0.51, b=0.51, c=0.51)  # then their directions are still known
    turned = gradients(**{**eager, "b": -eager["b"]})
    assert compare(gradients(**eager), turned, moved=half) is not None
    alone = gradients(**{**eager, "b": torch.zeros(4000)})
    assert compare(gradients(**eager), alone, moved=chaos) is not None


def test_without_the_noise_of_eagers_rounding_a_gradient_is_shorter_and_never_longer() -> (
    None
):
    eager = {n: values(4000).roll(k) for k, n in enumerate("abc")}
    noisy = lambda: Movement({f"['gradients']['{n}']": 0.4 for n in "abc"} | {ALL: 0.4})  # noqa: E731
    for factor, is_right in ((0.94, True), (0.9, False), (1.05, False)):
        got = gradients(**{n: factor * x for n, x in eager.items()})
        assert (compare(gradients(**eager), got, moved=noisy) is None) is is_right


def test_the_length_is_between_that_of_eager_and_that_in_float64() -> None:
    exact, moved = values(4000), moving(weight=1e-3)
    golden = gradients(weight=exact.double())
    for share, factor, is_right in (
        (1.3, 1.0, True),
        (1.3, 0.6, False),
        (1.3, 1.4, False),
    ):
        eager, got = gradients(weight=share * exact), gradients(weight=factor * exact)
        said = compare(eager, got, moved=moved, reference=lambda: golden)
        assert (said is None) is is_right


def test_infinities_and_kinds_of_gradients_are_no_rounding() -> None:
    eager = gradients(weight=values(32), bias=values(32))
    eager["gradients"]["weight"][0] = INF
    other = copy_view(eager)
    other["gradients"]["weight"][0] = -INF
    assert compare(eager, other, moved=moving(weight=0.9, bias=0.9)) is not None
    whole = gradients(weight=torch.complex(values(8), values(8)))
    real = gradients(weight=whole["gradients"]["weight"].real.clone())
    assert "dtype" in (compare(whole, real) or "")


def test_gradients_as_long_as_those_in_float64_are_right() -> None:
    """Eager's sums in bfloat16 may all be too short."""
    exact = {n: values(4000).roll(k) for k, n in enumerate("abc")}
    golden = gradients(**{n: x.double() for n, x in exact.items()})
    eager = gradients(**{n: 0.96 * x for n, x in exact.items()})
    moved = moving(a=0.02, b=0.02, c=0.02)
    for factor, is_right in ((1.0, True), (1.1, False), (0.9, False)):
        got = gradients(**{n: factor * x for n, x in exact.items()})
        said = compare(eager, got, moved=moved, reference=lambda: golden)
        assert (said is None) is is_right


def test_an_infinite_gradient_is_no_rounding() -> None:
    eager = gradients(weight=values(32), bias=values(32, scale=1e-4))
    wrong = gradients(weight=values(32), bias=values(32, scale=1e-4))
    wrong["gradients"]["bias"][3] = INF
    assert compare(eager, wrong, moved=moving(weight=1e-7, bias=0.9)) is not None


def test_what_moved_when_it_was_small_is_sure_when_it_is_large() -> None:
    moved = Movement({"['loss']": 30.0}, sizes={"['loss']": 1e-4})
    for loss, is_right in ((1e-4, True), (2.0, False)):
        got = {"loss": torch.tensor(loss * 1.5)}
        said = compare({"loss": torch.tensor(loss)}, got, moved=lambda: moved)
        assert (said is None) is is_right


def test_a_loss_may_be_rounding_alone_unless_all_gradients_are() -> None:
    got = {"loss": torch.tensor(0.0)}
    for together, is_right in ((0.01, True), (0.5, False)):
        moved = Movement({"['loss']": 0.6, ALL: together})
        said = compare(
            {"loss": torch.tensor(2e-9)}, got, moved=lambda moved=moved: moved
        )
        assert (said is None) is is_right


def test_the_running_mean_of_what_has_no_mean_is_rounding() -> None:
    """Of a convolution after BatchNorm, as in a depthwise block: 0, but for rounding."""

    def buffers(mean: float, var: float = 0.9) -> dict[str, Any]:
        found = {
            "1.running_mean": values(32, scale=mean),
            "1.running_var": values(32).abs() * var,
        }
        return {"buffers": {**found, "2.running_mean": values(32, scale=1e-9)}}

    assert compare(buffers(1e-10), buffers(1.3e-9)) is None
    assert compare(buffers(1e-10), buffers(1e-5)) is not None
    assert compare(buffers(1e-10), buffers(1e-5), moved=moving(epsilon=2**-7)) is None
    assert (
        compare(buffers(1e-10), buffers(1e-1), moved=moving(epsilon=2**-7)) is not None
    )
    assert compare(buffers(1e-3), buffers(1.01e-3)) is not None
    other = buffers(1e-3)
    other["buffers"] |= {
        "1.cache": torch.full((8,), 1e6),
        "1.scale": values(32, scale=1e-2),
    }
    wrong = {"buffers": {**other["buffers"], "1.scale": values(32, scale=1.1e-2)}}
    assert compare(other, wrong) is not None, "of other buffers nothing is known"
    alone = buffers(1e-3)
    alone["buffers"]["2.running_mean"] = values(32, scale=2e-9)
    assert compare(buffers(1e-3), alone) is not None, (
        "nothing beside it says how small it is"
    )


def test_without_any_reference_a_multiple_of_the_tolerance_passes() -> None:
    eager = {n: values(4000).roll(k) for k, n in enumerate("abc")}
    torch.manual_seed(0)
    noise = torch.randn(4000)
    for off, is_right in ((0.04, True), (0.06, False)):
        got = gradients(**{n: x + off * noise for n, x in eager.items()})
        said = compare(gradients(**eager), got, reference=lambda: None)
        assert (said is None) is is_right
    noisy = {f"['gradients']['{name}']": 0.1 for name in eager}
    zero = gradients(**{**eager, "c": torch.zeros(4000)})
    assert (
        compare(gradients(**eager), zero, noise=noisy, reference=lambda: None)
        is not None
    )
    outputs = out(values(64).abs() + 1)
    for off, is_right in ((5e-4, True), (5e-3, False)):
        said = compare(
            outputs, out(outputs["outputs"][0] * (1 + off)), reference=lambda: None
        )
        assert (said is None) is is_right


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
    assert (
        compare(expected, {"gradients": {"w": other}}, reference=lambda: golden) is None
    )
    for wrong in (torch.zeros(1000), other * 5):
        actual = {"gradients": {"w": wrong}}
        assert "is off by" in str(compare(expected, actual, reference=lambda: golden))


def test_a_sum_that_cancels_moves_by_more_of_itself() -> None:
    """As the gradient of a bias of two classes, whose terms change between batches."""
    other = values(4000)
    eager = gradients(bias=torch.tensor([1e-3, -1e-3]), weight=other)
    got = gradients(bias=torch.tensor([1.08e-3, -1.08e-3]), weight=other)
    by = moving(bias=2e-3, weight=1e-3)().by
    for size, is_right in ((1e-3, False), (1e-2, True)):  # when rounding was tried
        sizes = {
            "['gradients']['bias']": size,
            ALL: float(other.square().mean().sqrt()),
        }
        moved = Movement(by, sizes=sizes, longer=by)
        assert (
            compare(eager, got, moved=lambda moved=moved: moved) is None
        ) is is_right
