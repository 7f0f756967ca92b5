"""The backend ``onnxrt`` beyond the contract: what it refuses and builds anew."""

from __future__ import annotations

import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo

from autocompile.runtime.backends import onnx, onnxrt

pytestmark = pytest.mark.usefixtures("_onnx_translations", "_fresh_dynamo")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many weights are constants of each session that is built."""
    found: list[int] = []
    build = onnx.OnnxSession._build

    def noted(self: Any, args: Any) -> None:
        found.append(len(self._baked))
        build(self, args)

    monkeypatch.setattr(onnx.OnnxSession, "_build", noted)
    return found


def compiled_by(function: Callable[..., Any], **options: str) -> Callable[..., Any]:
    return torch.compile(function, backend="onnxrt", options=options)  # type: ignore[call-overload, no-any-return]


def agree(
    function: Callable[..., Any], compiled: Callable[..., Any], *args: Any
) -> None:
    torch.testing.assert_close(compiled(*args), function(*args), rtol=1e-4, atol=1e-4)


def test_torch_finds_it_without_an_import() -> None:
    program = (
        "import torch; m = torch.nn.Linear(3, 3); x = torch.ones(2, 3)\n"
        "with torch.no_grad(): off = torch.compile(m, backend='onnxrt')(x) - m(x)\n"
        "print(off.abs().max().item() < 1e-6)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.stdout == "True\n", done.stderr


def test_gradients_are_refused_in_words() -> None:
    compiled = compiled_by(torch.nn.Linear(3, 3))
    with torch.enable_grad(), pytest.raises(Exception, match="computes no gradients"):
        compiled(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"mode": "max-autotune"}, "has no modes and one option"),
        ({"options": {"weight": "baked"}}, "has no modes and one option"),
        ({"options": {"weights": "warm"}}, "weights, 'live' or 'baked'"),
    ],
)
def test_what_does_not_exist_is_refused_in_words(
    asked: dict[str, Any], said: str
) -> None:
    compiled = torch.compile(torch.nn.Linear(3, 3), backend="onnxrt", **asked)
    with pytest.raises(Exception, match=said):
        compiled(torch.ones(2, 3))


def between(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(torch.relu(x + 1)).exp()


@pytest.mark.parametrize("function", [torch.linalg.svdvals, between])
def test_an_operator_that_cannot_be_exported_is_named(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(Exception, match=r"ONNX Runtime cannot run this graph: .*svd"):
        compiled_by(function)(torch.randn(5, 5))


@pytest.mark.parametrize(("weights", "expected"), [("baked", [2, 2]), ("live", [0])])
def test_only_baked_weights_are_read_again_and_only_when_they_changed(
    weights: str, expected: list[int], builds: list[int]
) -> None:
    model, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    compiled = compiled_by(model, weights=weights)
    for change in (0.0, 1.0):
        if change:
            model.bias.add_(change)
        for _ in range(3):
            agree(model, compiled, x)
    assert builds == expected


def test_a_session_goes_when_the_next_comes_and_stays_stale_while_none_can_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds a copy of the weights."""
    made: list[weakref.ref[Any]] = []
    session, broken = onnxrt._session, False

    def watched(*args: Any) -> Any:
        if broken:
            raise onnx.Unsupported("no memory for a session")
        new = session(*args)
        made.append(weakref.ref(new))
        return new

    monkeypatch.setattr(onnxrt, "_session", watched)
    model, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    compiled = compiled_by(model, weights="baked")
    for _ in range(3):
        compiled(x)
        model.bias.add_(1.0)
    assert [ref() is None for ref in made] == [True, True, False]
    broken = True
    for _ in range(2):
        with pytest.raises(onnx.Unsupported, match="no memory"):
            compiled(x)
    broken = False
    agree(model, compiled, x)


@pytest.mark.parametrize(
    ("kind", "said"), [("elem_type", "float32 in torch"), ("dim", r"not \[4")]
)
def test_a_model_whose_outputs_are_others_than_torch_gives_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    """It would write past the end of the memory that is bound."""
    export = torch.onnx.export

    def other(*args: Any, **kwargs: Any) -> Any:
        made = export(*args, **kwargs)
        model = made.model_proto
        told = model.graph.output[0].type.tensor_type
        if kind == "dim":
            told.shape.dim[0].dim_value = 4
        else:
            told.elem_type = 11  # float64
        return SimpleNamespace(model_proto=model)

    monkeypatch.setattr(torch.onnx, "export", other)
    with pytest.raises(Exception, match=said):
        compiled_by(torch.nn.Linear(3, 3))(torch.ones(2, 3))


def test_one_graph_for_all_shapes_keeps_a_session_for_each_of_the_last(
    builds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "_MOST_SESSIONS", 3)

    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x.flatten(1).sum(1)

    compiled = torch.compile(double, backend="onnxrt", dynamic=True)
    for size, made in ((2, 1), (3, 2), (4, 3), (2, 3), (5, 4), (5, 4), (2, 5)):
        agree(double, compiled, torch.ones(size, 3))
        assert len(builds) == made


def test_what_is_returned_as_it_came_is_the_same_object() -> None:
    def passing(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        return x, x + 1, 3

    x = torch.ones(3)
    same, more, three = compiled_by(passing)(x)
    assert same is x and three == 3
    torch.testing.assert_close(more, x + 1)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        more: Any = {
            "num_layers": 2,
            "dropout": 0.5,
            "batch_first": True,
            "bidirectional": True,
        }
        self.long, self.gated = torch.nn.LSTM(6, 8, **more), torch.nn.GRU(6, 8, **more)

    def forward(self, x: torch.Tensor) -> Any:
        return self.long(x), self.gated(x)


@pytest.mark.parametrize("backend", ["onnxrt", "openvino_onnx"])
def test_recurrent_layers_without_dropout_draw_nothing(backend: str) -> None:
    if backend == "openvino_onnx":
        pytest.importorskip("openvino")
    layers = Recurrent().eval()
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(layers, backend=backend, fullgraph=True)
        for _ in range(2):
            agree(layers, compiled, torch.randn(3, 5, 6))
            for weight in layers.parameters():
                weight.mul_(1.5)


def test_attention_without_dropout_draws_nothing() -> None:
    def attends(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x).relu()

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="onnxrt leaves")
        agree(attends, compiled_by(attends), torch.randn(2, 4, 8, 16))
