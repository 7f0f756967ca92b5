"""The first trial of settings: what compiles nothing shares a process with eager mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from in_process import Try

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, x):
        if not self.conv.weight.is_contiguous():
            raise RuntimeError("only rows")
        return self.head(torch.relu(self.conv(x)).flatten(1))

def get_model():
    return Net()

def get_inputs(batch_size):
    return (torch.randn(batch_size, 3, 4, 4),)

def get_optimizer(model):
    return torch.optim.Adam(model.parameters())

def get_loss(output, inputs):
    return output.square().mean()
"""


def sides(*configs: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"config": {"backend": "eager", **config}, "number": number, "checks": "first"}
        for number, config in enumerate(configs, 7)
    ]


def test_eager_mode_and_its_optimizers_are_timed_in_turns_in_one_process(
    tmp_path: Path, try_it: Try
) -> None:
    (tmp_path / "net.py").write_text(NET)
    asked = sides({}, {"optimizer": "fused"})
    result = try_it(tmp_path / "net.py", "train_step", sides=asked)
    eager, fused = result["sides"]
    assert [eager["number"], fused["number"]] == [7, 8]
    assert eager["outcome"] == fused["outcome"] == "ok"
    times = [one["measurement"]["eager_s"] for one in (eager, fused)]
    assert times[0] == times[1], "the same blocks of eager mode"
    assert fused["peak_memory_bytes"] and "held_bytes" not in fused["detail"]


def test_what_fails_leaves_the_others_their_figures(
    tmp_path: Path, try_it: Try
) -> None:
    (tmp_path / "net.py").write_text(NET)
    asked = sides({}, {"memory_format": "channels_last"})
    result = try_it(tmp_path / "net.py", "forward", sides=asked)
    eager, rows = result["sides"]
    assert eager["outcome"] == "ok" and eager["measurement"]
    assert rows["outcome"] == "compile_error" and "only rows" in rows["message"]
    assert rows["measurement"] is None
