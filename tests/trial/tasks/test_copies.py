"""How many times the parameters of a model a trial holds at its peak, by the blocks of its process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import preload

WIDTH, LAYERS = 520, 16  # enough that sides give back memory
WEIGHT = 4 * WIDTH**2
NET = f"""
import torch

def get_model():
    layers = [torch.nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})]
    return torch.nn.Sequential(*layers)

def get_inputs():
    return torch.randn(2, {WIDTH})

def get_optimizer(model):
    return torch.optim.Adam(model.parameters())
"""
# Blocks of the size of a weight: tensors with the shape of one, not the float64 pieces of a check.
CHILD = """
import sys
import blocks
weight = int(sys.argv[2])
counted = blocks.Blocks()
from autocompile.trial import worker
worker.run(sys.argv[1])
print(sum(size == weight for size, _ in counted.at_peak()))
"""


@pytest.mark.parametrize(("phase", "most"), [("forward", 3), ("train_step", 9)])
def test_a_trial_holds_few_copies_of_the_parameters(
    work: Path, phase: str, most: int
) -> None:
    (work / "net.py").write_text(NET)
    request = {
        "kind": "trial",
        "target": str(work / "net.py"),
        "device": "cpu",
        "phase": phase,
        "sides": [{"config": {"backend": "aot_eager"}}],
        "limits": {"rounds": 2, "most": 3, "max_s": 0.1, "front_s": 0.1},
    }
    (work / "request.json").write_text(json.dumps(request))
    here = str(Path(__file__).parents[2])
    environment = {**preload(work, WEIGHT), "PYTHONPATH": here}
    command = [sys.executable, "-c", CHILD, str(work), str(WEIGHT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, result, count = done.stdout.splitlines()
    assert json.loads(result)["sides"][0]["outcome"] == "ok", done.stdout + done.stderr
    # Noise for the weights of a layer, for one, is drawn for one layer after the other.
    assert int(count) / LAYERS < most + 0.5
