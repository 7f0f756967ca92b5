"""What one eager call does: operators, the time in which a GPU is busy, waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autocompile.trial.measure.profiled import covered, profile
from autocompile.trial.model.load import build, import_target
from autocompile.trial.tasks.steps import inputs_of, profile_of_eager

CPU = torch.device("cpu")
NET = """
import torch

def get_model():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())

def get_calls():
    return [torch.randn(n, 64) for n in (2, 4, 8)]
"""


def test_time_that_two_kernels_share_counts_once() -> None:
    assert covered([(5.0, 7.0), (0.0, 2.0), (1.0, 3.0), (6.0, 6.5)]) == 5.0
    assert covered([]) == 0.0


def test_a_check_tells_it_before_anything_is_compiled(tmp_path: Path) -> None:
    """Also of a model that does not compile, of the first call of a workload, and changes nothing."""
    path = tmp_path / "net.py"
    path.write_text(NET)
    target = build(str(path), import_target(str(path)))
    before = [p.clone() for p in target.model.parameters()]
    forward, step = (
        profile_of_eager(target, phase, inputs_of(target, phase, 4, 0))
        for phase in ("forward", "train_step")
    )
    assert forward["operators"] == 2
    assert step["operators"] > 2
    after = target.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_operators_are_those_that_python_calls_and_the_longest_is_named() -> None:
    x, y = torch.randn(400, 400), torch.randn(400)

    def call() -> torch.Tensor:
        return (x @ x).add(y).relu()

    seen = profile(call, CPU)
    assert seen["operators"] == 3
    assert seen["longest"] == "mm"
    assert 0.5 < seen["longest_share"] <= 1
    assert "busy_share" not in seen


@pytest.mark.gpu
def test_a_gpu_that_waits_for_python_and_a_host_that_waits_for_it() -> None:
    device = torch.device("cuda")
    small = torch.ones(16, device=device)
    large = torch.randn(8192, 8192, device=device)

    def waits() -> float:
        return sum(float(small.sum()) for _ in range(3))

    idle = profile(waits, device)
    assert idle["busy_share"] < 0.5
    ((place, count),) = idle["waits"].items()
    assert place.startswith("test_profiled.py:")
    assert count == 3
    busy = profile(lambda: large @ large, device)
    assert busy["busy_share"] > 0.9
    assert busy["waits"] == {}
    assert busy["kernels"] >= 1
