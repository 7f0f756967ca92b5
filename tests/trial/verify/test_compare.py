"""compare(): what passes for the same computation, and what never does.

Beside the rule for real numbers, that for Python numbers and integers; both ask what rounding moves.
"""

from __future__ import annotations

import copy
import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from autocompile.trial.verify.compare import (
    TRIES,
    Movement,
    Moving,
    compare,
    mismatch_scale,
)
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


def moving(view: Any, share: float, **of: float) -> Moving:
    """What rounding moves: each number by about a share of the size of its leaf.

    Leaves of gradients may have shares of their own.
    """
    generator = torch.Generator().manual_seed(11)

    def shaken(path: Any, x: Any) -> Any:
        by = of.get(
            str(path[-1].key).replace("1.", "")  # of a module
            if hasattr(path[-1], "key")
            else "",
            share,
        )
        if isinstance(x, float):
            return x * (1 + by * float(torch.randn((), generator=generator)))
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        size = x.double().nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
        return (x.double() + by * size * noise).to(x.dtype)

    made = Movement()

    def moved(tries: int) -> Movement:
        while made.tries < tries:
            made.add(view, torch.utils._pytree.tree_map_with_path(shaken, view))
        return made

    return moved


def unknown(tries: int) -> None:
    """Eager cannot be rounded otherwise."""


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
KINDS = ("dtype", "device", "shape", "NaN", "instead of", "differs")
ONES, COUNT = torch.ones(4), torch.arange(100_000)
CLEAN, HOLED = torch.tensor([1.0, 2.0]), torch.tensor([1.0, NAN])
SPIRAL = torch.complex(values(8), values(8).flip(0))


@pytest.mark.parametrize("is_known", [False, True])
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
    expected: Any, actual: Any, words: str, is_known: bool
) -> None:
    """Beside tries that move little, too, and what is no number beside any noise."""
    assert compare(out(expected), copy_view(out(expected))) is None
    view = out(expected)
    moved = moving(view, 1e-6) if is_known else lambda tries: Movement()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert words in str(compare(view, out(actual), moved=moved))
        if isinstance(expected, torch.Tensor) and any(kind in words for kind in KINDS):
            assert words in str(compare(view, out(actual), noise=NOISE, moved=unknown))


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


def test_self_noise_is_relative_and_ignores_integers() -> None:
    first = out(torch.full((4,), 1e-6), torch.tensor([1, 2]))
    second = out(torch.full((4,), 1.1e-6), torch.tensor([8, 9]))
    assert mismatch_scale(first, second) == pytest.approx(0.1, rel=1e-3)
    assert mismatch_scale(first, copy_view(first)) == 0.0


def test_the_worst_of_many_slices_may_be_larger_by_chance() -> None:
    """Of 4,000 samples of one number each, the largest error is four times a usual one."""
    eager = out(values(4000, 1), values(8, 500))
    moved = moving(eager, 0.01)
    torch.manual_seed(0)
    for off, is_right in ((0.014, True), (0.06, False)):
        got = out(*(x + off * torch.randn(x.shape) for x in eager["outputs"]))
        assert (compare(eager, got, moved=moved) is None) is is_right


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "where"),
    [
        ((8, 288, 64), (3, 17)),
        ((2300, 64), (1100,)),
        ((1, 2300, 64), (0, 5)),
        ((64, 10), (slice(None), 4)),
        ((8, 3, 24, 24), (slice(None), slice(None), 11)),
        ((4, 32, 1000), (slice(None), slice(None), 500)),
    ],
    ids=["position", "sample", "position of one", "class", "row of images", "token"],
)
def test_one_wrong_slice_is_found_where_rounding_moves_all_of_it(
    shape: tuple[int, ...], where: Any, dtype: torch.dtype
) -> None:
    """Such an error is one in 2,300 of the whole: less than rounding in bfloat16."""
    share = 1e-2 if dtype is torch.bfloat16 else 1e-6
    eager = out(values(*shape, dtype=dtype))
    moved = moving(eager, share)
    torch.manual_seed(0)
    honest = out((eager["outputs"][0] + share * torch.randn(shape)).to(dtype))
    assert compare(eager, honest, moved=moved) is None
    wrong = copy_view(honest)
    wrong["outputs"][0][where] = 0
    assert "is off by" in str(compare(eager, wrong, moved=moved))
    axis = next(n for n, at in enumerate(where) if isinstance(at, int) and shape[n] > 1)
    if len([n for n in where if isinstance(n, int)]) == 1:
        place = f"at [{where[axis]}] of axis {axis}"
        assert place in str(compare(eager, wrong, moved=moved))


def test_a_row_of_an_embeddings_gradient_is_found() -> None:
    """Most of its rows are 0, as of words that are not in the batch."""
    table = values(5000, 16)
    table[torch.arange(5000) % 50 > 0] = 0
    eager = gradients(table=table.clone(), head=values(64, 16))
    moved = moving(eager, 0.0, table=0.0, head=0.01)
    assert compare(eager, copy_view(eager), moved=moved) is None
    table[100] = 0
    problem = compare(eager, gradients(table=table, head=values(64, 16)), moved=moved)
    assert "['gradients']['table']" in str(problem)
    assert "at [100] of axis 0" in str(problem)


def gradients(**tensors: torch.Tensor) -> dict[str, Any]:
    return {"gradients": tensors}


def three() -> dict[str, torch.Tensor]:
    return {n: values(4000).roll(k) for k, n in enumerate("abc")}


def test_a_gradient_of_rounding_alone_may_be_any_rounding() -> None:
    """That of a bias of keys is 0 under a softmax: kernels differ in how far they miss it."""
    eager = gradients(weight=values(32), bias=values(32, scale=1e-4))
    moved, still = moving(eager, 1e-7, bias=0.9), moving(eager, 1e-7)
    for size in (0.0, 1e-5, -1e-4):
        got = gradients(weight=values(32), bias=size * values(32))
        assert compare(eager, got, moved=moved) is None
        assert compare(eager, got, moved=still) is not None
    large = gradients(weight=values(32), bias=values(32))
    assert compare(eager, large, moved=moved) is not None


def test_a_gradient_of_rounding_alone_may_have_any_length() -> None:
    """In TF32 that of a bias of keys was 2,600 times as long as eager's, and as right."""
    eager = gradients(weight=values(4000), bias=values(768, scale=1e-5))
    moved = moving(eager, 1e-3, bias=500.0)
    got = gradients(weight=values(4000), bias=values(768, scale=2.6e-2))
    assert compare(eager, got, moved=moved) is None
    assert compare(eager, got, moved=moving(eager, 1e-3)) is not None


def test_a_millionth_of_the_largest_gradient_is_what_a_sum_leaves_that_cancels() -> (
    None
):
    """As of a bias before a normalization; how sums round inside no try shows."""
    eager = gradients(weight=values(4000), bias=values(32, scale=1e-7))
    still = moving(eager, 1e-7)
    for size, is_right in ((-4e-7, True), (1e-5, False)):
        got = gradients(weight=values(4000), bias=values(32, scale=size))
        assert (compare(eager, got, moved=still) is None) is is_right


@pytest.mark.parametrize(("part", "most"), [("outputs", 3.0), ("gradients", 15.0)])
def test_some_times_what_eagers_own_rounding_moves_is_rounding(
    part: str, most: float
) -> None:
    """Three times; fifteen of a gradient, where sums round that the tries do not show."""
    eager = three()
    torch.manual_seed(0)
    noise = torch.randn(4000)
    moved = moving({part: eager}, 0.001)
    for off, is_right in ((most - 0.25, True), (most + 0.25, False)):
        got = {part: {n: x + 0.001 * off * noise for n, x in eager.items()}}
        assert (compare({part: eager}, got, moved=moved) is None) is is_right


def test_a_row_of_a_gradient_may_be_off_by_more_where_rounding_moved_others_in_a_try() -> (
    None
):
    """An activation that is 0 or not moves one row of a gradient, and another one each time."""
    torch.manual_seed(0)
    weight = torch.randn(64, 256)
    movements = {"gradients": Movement(), "outputs": Movement()}

    def with_row(row: int, off: float) -> torch.Tensor:
        got = weight.clone()
        got[row] += off * torch.randn(256)
        return got

    for number in range(TRIES[-1]):
        for part, movement in movements.items():
            movement.add({part: {"w": weight}}, {part: {"w": with_row(number, 0.02)}})

    def is_right(part: str, off: float) -> bool:
        moved = movements[part]
        views = {part: {"w": weight}}, {part: {"w": with_row(60, off)}}
        return compare(*views, moved=lambda tries: moved) is None

    assert is_right("gradients", 0.12)
    assert not is_right("gradients", 0.2)
    assert not is_right("outputs", 0.02), "a row that is another one is wrong"


def test_a_slice_of_a_gradient_may_be_off_by_fifteen_times_and_no_more() -> None:
    weight = values(64, 256)
    moved = moving({"gradients": {"weight": weight}}, 0.01)
    torch.manual_seed(0)
    for off, is_right in ((0.14, True), (0.21, False)):
        got = weight.clone()
        got[5] += off * torch.randn(256)
        found = compare(
            {"gradients": {"weight": weight}},
            {"gradients": {"weight": got}},
            moved=moved,
        )
        assert (found is None) is is_right


def test_one_number_may_be_off_by_ten_times_what_rounding_moves() -> None:
    for loss, part in ((torch.tensor(2.0), "loss"), (2.0, "outputs")):
        moved = moving({part: loss}, 2e-4)
        by = float(moved(TRIES[-1]).slices(f"['{part}']").scale(torch.ones(())))
        for multiple, is_right in ((9.0, True), (11.0, False)):
            got = {part: loss + multiple * by}
            assert (compare({part: loss}, got, moved=moved) is None) is is_right


def test_a_number_that_item_gave_is_rounded_as_its_tensor_is() -> None:
    """The loss of a step in bfloat16 that returns ``loss.item()``: 3e-4 off, and right."""
    view = out(2.460613)
    assert compare(view, out(2.459877), moved=moving(view, 2e-4)) is None
    assert "instead of 2.460613" in str(
        compare(view, out(2.2), moved=moving(view, 2e-4))
    )


def flipping(view: Any, positions: Any, by: int = 1) -> Moving:
    """What rounding moves: integers at some positions, in every second try."""
    made = Movement()

    def moved(tries: int) -> Movement:
        while made.tries < tries:
            other = copy_view(view)
            if made.tries % 2:
                if isinstance(other["outputs"][0], int):
                    other = out(other["outputs"][0] + by)
                else:
                    other["outputs"][0][positions] += by
            made.add(view, other)
        return made

    return moved


def test_as_many_labels_may_flip_as_rounding_flips() -> None:
    """Of near ties among 10,000 ``argmax``; where rounding flips none, none may."""
    eager = out(COUNT[:10_000] % 7)
    for flipped, by_rounding, is_right in (
        (30, 10, True),
        (39, 10, True),
        (60, 10, False),
        (1, 0, False),
    ):
        got = copy_view(eager)
        got["outputs"][0][:flipped] += 1
        moved = flipping(eager, slice(500, 500 + by_rounding))
        said = compare(eager, got, moved=moved)
        assert (said is None) is is_right, (flipped, by_rounding)
        assert said is None or f"differs in {flipped} elements" in said


def test_a_count_may_be_off_by_what_rounding_changes_it() -> None:
    eager = out(117)
    for got, is_right in ((118, True), (120, True), (300, False)):
        said = compare(eager, out(got), moved=flipping(eager, None))
        assert (said is None) is is_right
    assert "is 118 instead of 117" in str(compare(eager, out(118)))


def test_rounding_does_not_make_gradients_longer_or_shorter() -> None:
    eager = three()
    moved = moving(gradients(**eager), 0.02)
    for factor, is_right in ((0.98, False), (1.02, False), (1.005, True)):
        together = {n: factor * x for n, x in eager.items()}
        alone = {**eager, "b": factor * eager["b"]}
        for got in (together, alone):
            said = compare(gradients(**eager), gradients(**got), moved=moved)
            assert (said is None) is is_right, said


def test_of_gradients_that_are_rounding_alone_the_lengths_are_compared() -> None:
    eager = three()
    chaos = moving(gradients(**eager), 1.0)
    for factor, is_right in ((0.0, False), (5.0, False), (-1.0, True)):
        got = gradients(**{n: factor * x for n, x in eager.items()})
        assert (compare(gradients(**eager), got, moved=chaos) is None) is is_right


def test_more_tries_are_made_before_anything_is_refused() -> None:
    """The first few happened to move a number little."""
    eager = out(torch.tensor(2.0))
    asked = []
    made = Movement()

    def moved(tries: int) -> Movement:
        asked.append(tries)
        while made.tries < tries:
            made.add(eager, out(torch.tensor(2.0 + (0.1 if made.tries > 4 else 1e-3))))
        return made

    assert compare(eager, out(torch.tensor(2.3)), moved=moved) is None
    assert asked == [*TRIES]


def test_nothing_is_tried_where_the_tolerance_is_kept() -> None:
    view = out(values(8), 2, 0.5, True)
    assert compare(view, copy_view(view), moved=None) is None  # type: ignore[arg-type]


def test_infinities_and_kinds_of_gradients_are_no_rounding() -> None:
    eager = gradients(weight=values(32), bias=values(32))
    eager["gradients"]["weight"][0] = INF
    other = copy_view(eager)
    other["gradients"]["weight"][0] = -INF
    assert compare(eager, other, moved=moving(eager, 0.9)) is not None
    whole = gradients(weight=torch.complex(values(8), values(8)))
    real = gradients(weight=whole["gradients"]["weight"].real.clone())
    assert "dtype" in (compare(whole, real) or "")


def test_an_infinite_gradient_is_no_rounding() -> None:
    eager = gradients(weight=values(32), bias=values(32, scale=1e-4))
    wrong = gradients(weight=values(32), bias=values(32, scale=1e-4))
    wrong["gradients"]["bias"][3] = INF
    moved = moving(eager, 1e-7, bias=0.9)
    assert compare(eager, wrong, moved=moved) is not None


def test_the_running_mean_of_what_has_no_mean_is_rounding() -> None:
    """Of a convolution after BatchNorm, as in a depthwise block: 0, but for rounding."""

    def buffers(mean: float, var: float = 0.9) -> dict[str, Any]:
        return {
            "buffers": {
                "1.running_mean": values(32, scale=mean),
                "1.running_var": values(32).abs() * var,
            }
        }

    assert compare(buffers(1e-10), buffers(-3e-7)) is None
    assert compare(buffers(1e-10), buffers(1e-5)) is not None
    short = moving(buffers(1e-10), 1e-10, running_mean=1e5)
    assert compare(buffers(1e-10), buffers(1e-5), moved=short) is None
    assert compare(buffers(1e-10), buffers(1e-1), moved=short) is not None
    assert compare(buffers(1e-3), buffers(1.01e-3)) is not None
    wrong = buffers(1e-10, 0.91)
    assert compare(buffers(1e-10), wrong) is not None, "the deviation is no mean"


def test_where_rounding_is_not_known_a_multiple_of_the_tolerance_passes() -> None:
    eager = three()
    torch.manual_seed(0)
    noise = torch.randn(4000)
    for off, is_right in ((0.01, True), (0.06, False)):
        got = gradients(**{n: x + off * noise for n, x in eager.items()})
        assert (compare(gradients(**eager), got, moved=unknown) is None) is is_right
    noisy = {f"['gradients']['{name}']": 0.1 for name in eager}
    zero = gradients(**{**eager, "c": torch.zeros(4000)})
    assert compare(gradients(**eager), zero, noise=noisy, moved=unknown) is not None
    outputs = out(values(64).abs() + 1)
    for off, is_right in ((5e-4, True), (5e-3, False)):
        got = out(outputs["outputs"][0] * (1 + off))
        assert (compare(outputs, got, moved=unknown) is None) is is_right
    near = {"['outputs'][0]": 0.01}
    for off, is_right in ((0.02, True), (0.05, False)):
        got = out(outputs["outputs"][0] * (1 + off))
        said = compare(outputs, got, noise=near, moved=unknown)
        assert (said is None) is is_right, "three times eager's own noise"


def test_an_overflow_of_eager_does_not_excuse_everything() -> None:
    eager = torch.tensor([1.0, 2.0, 3.0, INF]).half()
    wrong = torch.tensor([9.0, -9.0, 9.0, INF]).half()
    moved = moving(out(eager), 1e-3)
    assert compare(out(eager), out(eager.clone()), moved=moved) is None
    assert compare(out(eager), out(wrong), moved=moved) is not None


def test_gradients_are_held_to_their_root_mean_square() -> None:
    """Single elements may be noise; a wrong tensor does not pass."""
    part = "gradients"
    expected = values(1000)
    flipped = expected.clone()
    flipped[expected.abs().argmin()] *= -1
    view = {part: {"w": expected}}
    moved = moving(view, 1e-3)
    assert compare(view, {part: {"w": flipped}}, moved=moved) is None
    for wrong in (torch.zeros(1000), expected * 2, expected * 1.05, expected.roll(1)):
        problem = str(compare(view, {part: {"w": wrong}}, moved=moved))
        assert f"['{part}']['w']" in problem
        assert "is off by" in problem


def test_a_wrong_gradient_of_one_parameter_is_not_diluted_by_the_others() -> None:
    expected = {"gradients": {"weight": values(10_000), "bias": values(4, scale=1e-3)}}
    actual = {"gradients": {"weight": values(10_000), "bias": torch.zeros(4)}}
    assert "['gradients']['bias'] is off by 1 " in str(compare(expected, actual))
