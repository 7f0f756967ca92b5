"""The backend ``openvino_onnx`` beyond the contract: 64-bit integers, which it has in 32 bits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch._dynamo

from autocompile.runtime.backends.onnx import Unsupported
from autocompile.runtime.backends.openvino_onnx import OvSession

pytestmark = pytest.mark.usefixtures("_onnx_translations", "_fresh_dynamo")

Function = Callable[[torch.Tensor], torch.Tensor]
EMBED = torch.nn.Embedding(97, 4)
IDS = torch.tensor([[1, 2, 3, 40_000, 5_000_000]])
LARGE = torch.tensor([1, 2**40 + 1])
NARROW = torch.full((5,), 2**31 - 1, dtype=torch.int32)


def hashed(x: torch.Tensor) -> torch.Tensor:
    return EMBED((x * 1_000_003) % 97).tanh()


def largest(x: torch.Tensor) -> torch.Tensor:
    return (x.long().topk(2).values * 1000).float() / 3


def test_what_may_need_64_bits_is_refused_with_the_operator() -> None:
    for function, x in ((hashed, IDS), (largest, NARROW), (lambda x: x + 1, LARGE)):
        compiled = torch.compile(function, backend="openvino_onnx")
        with pytest.raises(
            Exception, match=r"cannot run this graph: OpenVINO computes \w+ of 64"
        ):
            compiled(x)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: (x * 1_000_003) % 97, IDS),
        (lambda x: x.pow(5), IDS),
        (lambda x: x % 97, IDS),
        (lambda x: x != 2**40 + 1, LARGE),
        (lambda x: x.float(), LARGE),
        (lambda x: x.view(1, -1), LARGE),
        (lambda x: x.sum(), LARGE),
        (lambda x: x.cumsum(0), LARGE),
        (lambda x: (x.long().sort().values * 1000).float() / 3, NARROW),
        (lambda x: (x.long() * 0).scatter_add(0, x.long() * 0, x.long()) / 3, NARROW),
    ],
)
def test_each_operator_that_may_need_64_bits_is_refused(
    function: Function, x: torch.Tensor
) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (function(x),))
    with pytest.raises(Unsupported, match=r"in 32 bits|cuts to 32"):
        OvSession(graph, [x], False)


def attends(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[1])
    distances = (places[:, None] - places[None]).abs() + 1
    return EMBED(x[:, 1:]).sum(1) + EMBED(distances).mean((0, 1))


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (attends, IDS % 97),
        (lambda x: (x > 0).sum(-1), torch.randn(3, 9)),
        (lambda x: x.argmax(-1) + 1, torch.randn(3, 9)),
        (lambda x: x.gather(1, x.argsort(1)), torch.randn(3, 9)),
    ],
)
def test_indices_and_counts_are_computed_by_openvino(
    function: Function, x: torch.Tensor
) -> None:
    compiled = torch.compile(function, backend="openvino_onnx")
    torch.testing.assert_close(compiled(x), function(x))


def test_a_signal_after_a_compiled_function_ended_in_another_thread_kills_nobody() -> (
    None
):
    script = (
        "import signal, threading, torch\n"
        "signal.signal(signal.SIGUSR2, lambda *_: print('handled'))\n"
        "box = [torch.compile(torch.nn.Linear(4, 4).eval(), backend='openvino_onnx')]\n"
        "with torch.no_grad():\n"
        "    box[0](torch.ones(1, 4))\n"
        "def end():\n"
        "    box.clear(), torch._dynamo.reset(), __import__('gc').collect()\n"
        "thread = threading.Thread(target=end)\n"
        "thread.start(), thread.join()\n"
        "signal.raise_signal(signal.SIGUSR2)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "handled\n"), ran.stderr
