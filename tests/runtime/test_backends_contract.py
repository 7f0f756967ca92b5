"""What every backend that is offered has to keep: one that is new in the table has to as well."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch._dynamo

from autocompile.runtime.applying import process_of
from autocompile.runtime.compiling import compile_function
from autocompile.settings.backends import BACKENDS, Backend
from autocompile.settings.config import CompileConfig
from autocompile.trial.measure import environment

Compile = Callable[[Any], Callable[..., Any]]
pytestmark = pytest.mark.usefixtures("_onnx_translations", "_fresh_dynamo")

FOUND_WRONG = {
    "openvino": "it computes in bfloat16 and overwrites its outputs: tune leaves it out"
}


def cases(variants: bool = True) -> Iterator[Any]:
    """Each backend of the table, with each variant of it that is not for full effort alone."""
    unusable = environment.backends(torch.device("cpu"), list(BACKENDS))
    for name, known in BACKENDS.items():
        marks = [pytest.mark.slow] * (name == "inductor")
        if reason := unusable[name] or FOUND_WRONG.get(name):
            marks.append(pytest.mark.skip(reason=reason))
        usual = [] if known.has_modes else list(known.variants)
        for options in ({}, *(variant.options for variant in usual if variants)):
            label = " ".join(
                (name, *(f"{key}={value}" for key, value in options.items()))
            )
            config = CompileConfig(name, options=tuple(options.items()))
            yield pytest.param(config, id=label, marks=marks)
    yield pytest.param(
        CompileConfig("aot_eager"), id="aot_eager"
    )  # torch's own, for comparison
    yield pytest.param(
        CompileConfig(freezing=True), id="inductor frozen", marks=pytest.mark.slow
    )


@pytest.fixture(params=cases())
def compiler(request: pytest.FixtureRequest) -> Compile:
    model = torch.nn.Module()  # to freeze needs one, and finds the weights by itself
    return lambda function: compile_function(function, request.param, model)


# For what is the same whichever way a backend holds the weights, in which its variants differ.
without_variants = pytest.mark.parametrize("compiler", [*cases(False)], indirect=True)


def test_ours_are_those_that_torch_finds_by_an_entry_point() -> None:
    ours = {name for name, known in BACKENDS.items() if known.ours}
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    points = re.findall(
        r'^(\w+) = "(autocompile\.runtime\.backends\.\w+):', project, re.MULTILINE
    )
    assert {name for name, _ in points} == ours
    assert all(importlib.util.find_spec(module) for _, module in points)


def test_every_backend_says_what_to_do() -> None:
    assert all(known.todo for known in BACKENDS.values())


def test_a_new_entry_is_all_that_a_probe_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, table = torch.device("cpu"), cast("dict[str, Backend]", BACKENDS)
    for known, reason in (
        (Backend(package="no_such_package"), "no_such_package is not installed"),
        (Backend(registered_by="no_such_package"), "no_such_package is not installed"),
        (
            Backend(package="no_such_package", needs="a flux"),
            "needs a flux; this is torch ",
        ),
        (Backend(device="cuda"), "it runs on cuda only"),
        (Backend(device="cuda"), "it runs on cuda only"),
        (Backend(ours=True), "is not installed in this interpreter"),
        (Backend(), "knows no backend of this name"),
    ):
        monkeypatch.setitem(table, "fancy", known)
        assert reason in environment.backends(cpu, ["fancy"])["fancy"]
    assert set(environment.backends(cpu)) == set(BACKENDS)


class Small(torch.nn.Module):
    """Convolution, BatchNorm, linear: the layers whose weights backends like to repack."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8 * 36, 5)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        features = torch.relu(self.norm(self.conv(x)))
        return {"logits": self.head(features.flatten(1)), "features": [features, 3]}


def images(size: int) -> torch.Tensor:
    return torch.randn(size, 3, 8, 8, generator=torch.Generator().manual_seed(size))


def agree(
    function: Callable[..., Any], compiled: Callable[..., Any], *args: Any
) -> None:
    torch.testing.assert_close(compiled(*args), function(*args), rtol=1e-4, atol=1e-5)


@contextlib.contextmanager
def or_refused(words: str) -> Iterator[None]:
    """To refuse in these words is right too."""
    try:
        yield
    except RuntimeError as error:
        if not re.search(words, str(error)):
            raise


def test_outputs_are_right_keep_their_structure_and_survive_the_next_call(
    compiler: Compile,
) -> None:
    model = Small().eval()
    compiled = compiler(model)
    agree(model, compiled, images(4))
    first = compiled(images(4))["logits"]
    kept = first.clone()
    compiled(2 * images(4))
    torch.testing.assert_close(first, kept, rtol=0, atol=0)

    @torch.no_grad()
    def call(number: int) -> None:  # several threads may call it
        for _ in range(50):
            torch.testing.assert_close(
                compiled(inputs[number])["logits"], wanted[number], rtol=1e-3, atol=1e-4
            )

    inputs = [images(4) + i for i in range(4)]
    wanted = [model(x)["logits"] for x in inputs]
    with ThreadPoolExecutor(len(inputs)) as pool:
        list(pool.map(call, range(4)))  # raises what a thread has raised


def test_weights_that_change_or_lie_elsewhere_take_effect(compiler: Compile) -> None:
    model = Small().eval()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.1, fused=True
    )  # no counter sees it
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def scale_data(factor: float) -> None:
        model.head.weight.data = factor * model.head.weight.data

    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: model.conv.weight.mul_(1.5),
        lambda: model.norm.running_var.add_(0.5),  # type: ignore[operator]
        lambda: model.load_state_dict(
            {k: 0.9 * v for k, v in model.state_dict().items()}
        ),
        lambda: torch._foreach_mul_(list(model.parameters()), 1.1),
        optimizer.step,
        optimizer.step,
        # In another place.
        lambda: setattr(
            model.head, "weight", torch.nn.Parameter(2 * model.head.weight)
        ),
        lambda: setattr(model.conv.weight, "data", 3 * model.conv.weight.data),
        # Twice in between: the memory of the first is free again.
        *[
            lambda factor=factor: [scale_data(factor) for _ in "12"]
            for factor in (0.9, 1.1, 0.8)
        ],
    ]
    compiled = compiler(model)
    for change in changes:
        change()
        agree(model, compiled, images(4))


def test_a_weight_of_a_compiled_step_takes_effect(compiler: Compile) -> None:
    """Dynamo guards on what an optimizer steps, and makes it an attribute of any graph."""
    first, last, x = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.ones(2, 3)
    stepped = [*first.parameters(), *last.parameters()]
    optimizer = torch.optim.SGD(stepped, lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for weight in stepped:
        weight.grad = torch.ones_like(weight)
    step()
    linear = torch.nn.functional.linear

    def twice(x: torch.Tensor) -> torch.Tensor:  # two attributes in a row
        return linear(linear(x, *stepped[:2]), *stepped[2:])

    compiled = compiler(twice)
    for _ in range(2):
        agree(twice, compiled, x)
        step()


@without_variants
@pytest.mark.parametrize(
    "inputs",
    [
        [images(size) for size in (4, 2, 7, 1, 4)],
        [images(4).to(memory_format=torch.channels_last), images(8)[::2]],
    ],
    ids=["shapes", "layouts"],
)
def test_shapes_and_layouts_may_change(
    compiler: Compile, inputs: list[torch.Tensor]
) -> None:
    model = Small().eval()
    compiled = compiler(model)
    for x in inputs:
        agree(model, compiled, x)


@without_variants
@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_threads_will_do(compiler: Compile, threads: int) -> None:
    with process_of({"threads": threads}):
        model = Small().eval()
        agree(model, compiler(model), images(4))


@without_variants
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.float64, torch.bool, torch.bfloat16]
)
def test_numbers_of_any_kind_are_taken(compiler: Compile, dtype: torch.dtype) -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.where(y > 0, y, -y), x.to(torch.float32).sum()

    x, y = torch.ones(4, 3).to(dtype), torch.linspace(-1, 1, 12).reshape(4, 3)
    with or_refused("OpenVINO (does not compute in|computes .* in 32 bits|has no )"):
        torch.testing.assert_close(compiler(both)(x, y), both(x, y))


def test_a_graph_that_breaks_is_right(compiler: Compile) -> None:
    model = Small().eval()

    def broken(x: torch.Tensor) -> torch.Tensor:
        logits = model(x)["logits"]
        torch._dynamo.graph_break()
        return logits.softmax(-1)

    with or_refused("the graph breaks"):
        agree(broken, compiler(broken), images(4))


@without_variants
def test_random_numbers_follow_the_seed(compiler: Compile) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.exp(), 0.5, training=True).sum(-1)

    compiled = compiler(noisy)
    results = []
    with or_refused("dropout.* draws random numbers"):
        for _ in range(2):
            torch.manual_seed(3)
            results.append(compiled(images(4)))
        torch.testing.assert_close(results[0], results[1])
        assert results[0].count_nonzero() > 0


@without_variants
def test_an_index_by_numbers_is_taken_and_one_by_a_mask_is_refused(
    compiler: Compile,
) -> None:
    rows, columns = torch.arange(4)[:, None], torch.arange(3)[None]
    x = torch.rand(4, 3, 8)
    agree(by_numbers := lambda x: x.exp()[rows, columns], compiler(by_numbers), x)
    by_mask = compiler(lambda x: x.exp()[x > 0.5])
    with or_refused("returns depends on values"):
        torch.testing.assert_close(by_mask(x), x.exp()[x > 0.5])


class Counting(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.sum(0))  # type: ignore[operator]
        return super().forward(x) + self.seen  # type: ignore[operator]


def test_a_buffer_that_the_model_writes_is_written(compiler: Compile) -> None:
    model = Counting()
    twin, compiled = copy.deepcopy(model), compiler(model)
    with or_refused("writes to its (inputs|own buffers)"):
        for _ in range(3):
            agree(twin, compiled, torch.ones(2, 3))
        torch.testing.assert_close(model.seen, twin.seen)


@without_variants
def test_a_float_may_change(compiler: Compile) -> None:
    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return (x * by).softmax(-1)

    compiled = compiler(scaled)
    for by in (1.0, 0.7, 0.3, 1.0):
        agree(scaled, compiled, images(4), by)


@without_variants
def test_a_number_that_is_read_from_a_tensor_may_change(compiler: Compile) -> None:
    """What comes after it is a graph of its own, which is compiled again for another number."""

    def by_its_mean(x: torch.Tensor) -> torch.Tensor:
        by = x.mean().item()
        return (x * by if by > 0 else x).softmax(-1)

    compiled = compiler(by_its_mean)
    for shift in (0.1, 0.3, -0.2, 0.5):
        agree(by_its_mean, compiled, images(4) + shift)


def test_several_models_may_meet_new_shapes_in_several_threads(
    compiler: Compile,
) -> None:
    models = [
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()) for _ in range(2)
    ]
    compiled = [compiler(model) for model in models]
    for model, each in zip(models, compiled, strict=True):
        for size in (2, 3):  # from now on one graph for all shapes
            agree(model, each, torch.ones(size, 3))

    @torch.no_grad()
    def call(number: int) -> None:
        for size in (4, 5):
            x = torch.ones(size + number // 2, 3)
            agree(models[number % 2], compiled[number % 2], x)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))
