"""Memory and compile time against what is known: an allocation of so many bytes, a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from conftest import Clock
from in_process import Try, timed_for_a_moment
from test_worker import a_trial, by_hand, in_this_process
from torch._dynamo.backends.registry import register_backend

from autocompile.settings.config import CompileConfig
from autocompile.trial.measure import footprint
from autocompile.trial.tasks import session

MIB = 2**20
LIMITS = {"half_width": 0.5, "max_s": 0.1, "front_s": 0.1, "block_s": 0.002}
pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")


def tried(try_it: Try, work: Path, text: str, **changes: Any) -> dict[str, Any]:
    """What a trial of a ``model.py`` reports."""
    (work / "model.py").write_text(text)
    result = try_it(work / "model.py", **changes)
    assert result["outcome"] == "ok", result
    return result


def peaks_in_mib(result: dict[str, Any]) -> tuple[float, float]:
    """Of eager and of the compiled side."""
    eager, compiled = result["eager_peak_memory_bytes"], result["peak_memory_bytes"]
    return eager / MIB, compiled / MIB


# --- memory on a CPU ----------------------------------------------------------------------------

PIECES = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 2**18))  # 8 MiB

    def forward(self, x):
        pieces = [x * i for i in range({count})]
        return torch.stack([piece.sum() for piece in pieces]) + self.weight[0, 0]

def get_model():
    return Net()

def get_inputs(batch_size):
    return torch.ones({mib}, 2**18)
"""


@pytest.mark.parametrize("mib", [pytest.param(1, marks=pytest.mark.slow), 16])
def test_the_peak_of_a_forward_is_what_it_holds_and_allocates(
    work: Path, try_it: Try, mib: int
) -> None:
    text = PIECES.format(count=16 // mib, mib=mib)
    peaks = peaks_in_mib(tried(try_it, work, text))
    assert peaks == pytest.approx((8 + mib + 16,) * 2, rel=0.05)


TRAINED = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(12, 2**18))  # 12 MiB

    def forward(self, x):
        return (self.weight * x).sum()

def get_model():
    return Net()

def get_inputs(batch_size):
    return torch.ones(2**18)

def get_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9, foreach=False)
"""


@pytest.mark.parametrize(
    "phase", ["optimizer_step", pytest.param("train_step", marks=pytest.mark.slow)]
)
def test_training_holds_gradients_and_optimizer_state(
    work: Path, try_it: Try, phase: str
) -> None:
    """Weights, gradients, momentum; ``aot_eager`` writes to copies, of which two are alive."""
    peaks = peaks_in_mib(tried(try_it, work, TRAINED, phase=phase))
    assert peaks == pytest.approx((3 * 12, 5 * 12), rel=0.05)


HEAVY = """
import torch

torch.set_num_threads(1)  # with more each waits for the others

def get_model():
    return torch.nn.Sequential(  # 50 MiB each
        torch.nn.Linear(2560, 5120, bias=False), torch.nn.Linear(5120, 2560, bias=False)
    )

def get_inputs(batch_size):
    return torch.ones(4, 2560)
"""
BAKED = (("weights", "baked"),)


@pytest.mark.parametrize(
    "config", [CompileConfig("onnxrt", options=BAKED), CompileConfig(freezing=True)]
)
def test_where_no_tensor_shows_the_weights_the_peak_is_not_known(
    work: Path, try_it: Try, config: CompileConfig
) -> None:
    found = tried(try_it, work, SMALL, config=config.to_dict(), calls_per_update=1)
    assert found["peak_memory_bytes"] is None
    assert found["eager_peak_memory_bytes"] > 0


def test_each_storage_counts_once_and_sparse_tensors_do_no_harm() -> None:
    x = torch.ones(1000)
    tree = {"a": x, "b": [x[:10], x.view(10, 100)], "s": x.to_sparse(), "n": 3}
    assert sum(footprint._storages(tree, torch.device("cpu")).values()) == 4000


# --- memory on a GPU: pytest -m gpu tests/trial/measure/test_footprint.py ----------------------

PRODUCT = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Parameter(torch.randn(256, 2**14) / 16)  # 16 MiB
        self.narrow = torch.nn.Parameter(torch.randn(2**14, 8) / 128)

    def forward(self, x):
        return torch.relu(x @ self.wide) @ self.narrow  # 2 GiB between the products

def get_model():
    return Net()

def get_inputs(batch_size):
    return torch.randn(2**15, 256)  # 32 MiB
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("backend", "mode", "temporaries"),
    [
        ("aot_eager", "default", 2),
        ("cudagraphs", "default", 3),
        ("inductor", "default", 1),
        ("inductor", "reduce-overhead", 1),
    ],
)
def test_the_peak_on_a_gpu_counts_what_a_cuda_graph_keeps(
    work: Path, backend: str, mode: str, temporaries: int
) -> None:
    """A replayed graph allocates nothing; what lies between its inputs and outputs is its pool's.

    Eager and whoever does as it does hold the product and its relu; Inductor writes the relu over
    the product. The pool of ``cudagraphs`` has a third such block since the call that was recorded,
    after the two of the call before, and the driver counts it too. In a process of its own, as any
    trial: pools of the case before would count.
    """
    (work / "model.py").write_text(PRODUCT)
    config = CompileConfig(backend=backend, mode=mode).to_dict()
    request = a_trial(
        target=str(work / "model.py"),
        device="cuda",
        config=config,
        batch_size=None,
        limits=LIMITS,
    )
    _, result = by_hand(work / "trial", request)
    assert result["outcome"] == "ok", result
    eager, compiled = peaks_in_mib(result)
    held = 16 + 0.5 + 32
    assert eager == pytest.approx(held + 2 * 2048, rel=0.05)
    assert compiled == pytest.approx(held + temporaries * 2048, rel=0.05)


# --- compile time ---------------------------------------------------------------------------------

SMALL = """
import torch

def get_model():
    return torch.nn.Linear(8, 8)

def get_inputs(batch_size):
    return torch.ones(4, 8)

def get_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=torch.tensor(1e-3), momentum=0.9)
"""


@pytest.mark.parametrize(("phase", "graphs"), [("forward", 1), ("optimizer_step", 2)])
def test_a_backend_that_takes_long_is_seen_in_the_compile_time(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
    graphs: int,
) -> None:
    """A momentum makes another program of the second step: that it compiles counts as well."""
    clock = Clock()
    monkeypatch.setattr("autocompile.trial.measure.timing.time", clock)
    monkeypatch.setattr(session, "screen", timed_for_a_moment)

    def backend(graph: Any, inputs: Any) -> Any:
        clock.work(100.0)
        return graph.forward

    register_backend(backend, name="takes_long")
    (work / "model.py").write_text(SMALL)
    request = a_trial(target=str(work / "model.py"), phase=phase, backend="takes_long")
    result = in_this_process(work / "trial", request, capsys)
    assert result["outcome"] == "ok", result
    assert result["graphs"] == graphs
    assert result["compile_s"] == pytest.approx(graphs * 100.0, rel=0.05)


LINEAR = """import torch
def get_model(): return torch.nn.Linear(4, 4)
def get_inputs(batch_size): return torch.randn(batch_size, 4)
"""


@pytest.mark.parametrize(
    ("backend", "is_known"), [("eager", True), ("aot_eager", False)]
)
def test_eager_mode_on_a_cpu_tells_what_it_costs_to_give_memory_back(
    try_it: Try, tmp_path: Path, backend: str, is_known: bool
) -> None:
    found = tried(try_it, tmp_path, LINEAR, backend=backend)["detail"].get("given_back")
    assert bool(found) is is_known
    if found:
        assert found["times"] > 0.2
        assert found["faults"] < 500
