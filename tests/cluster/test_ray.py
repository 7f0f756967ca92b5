"""Real Ray clusters of this machine, with nodes of one CPU, fake GPUs and labels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

MODEL = """
import torch
from beside import WIDTH

def get_model():
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

def get_inputs(batch_size):
    return (torch.randn(batch_size, WIDTH),)
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    made.shutdown()


def labelled(kind: str) -> dict[str, Any]:
    return {"num_cpus": 1, "num_gpus": 1, "labels": {"ray.io/accelerator-type": kind}}


@pytest.fixture
def model(work: Path) -> Path:
    (work / "model.py").write_text(MODEL)
    (work / "beside.py").write_text("WIDTH = 16\n")
    return work / "model.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_type_gets_a_whole_run_of_its_own(cluster: Any, model: Path) -> None:
    import autocompile
    from autocompile.commands.cluster import tune_all

    cluster.add_node(**labelled("T4"))
    cluster.add_node(num_cpus=1, num_gpus=1, resources={"accelerator_type:H100": 1})
    space = autocompile.SearchSpace(backends=("inductor",), modes=("default",), batch_sizes=(4,))
    found = tune_all(
        "model.py",
        ray=cluster.address,
        accelerators=("H100", "T4"),
        device="cpu",
        phases=("forward",),
        space=space,
        trials=3,
        budget_s=100,
        show="plain",
    )
    assert not found.errors, found.errors
    assert set(found.results) == {"H100", "T4"}
