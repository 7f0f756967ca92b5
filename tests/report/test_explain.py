"""Why the winner wins: sentences over records, and what a trial records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench

from autocompile.estimate.candidates import Candidate
from autocompile.estimate.intervals import Interval
from autocompile.report.explain import obstacles, why
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.store.record import GraphBreak, Measurement, Outcome, Record, Step

BREAK = GraphBreak(place="model.py:12", code="print(x)", reason="Failed to trace print")


def trial(
    number: int, config: CompileConfig = DEFAULT_INDUCTOR, **detail: Any
) -> Record:
    names = ("graph_breaks", "recompiles", "compile_s", "refresh_s", "calls_per_update",
             "cudagraph_skips", "breaks")  # fmt: skip
    facts = {k: detail.pop(k) for k in names if k in detail}
    return Record(
        number, "forward", config, 4, outcome=Outcome.OK, step=Step.EXIT,
        measurement=Measurement((1e-3,) * 8, (5e-4,) * 8),
        **{"graphs": 1, "graph_breaks": 0, "recompiles": 0, "compile_s": 3.0, **facts},
        detail=detail,
    )  # fmt: skip


def candidate(record: Record, speed: float = 2.0) -> Candidate:
    speedup = Interval(speed, speed * 0.99, speed * 1.01)
    return Candidate(
        record,
        speedup,
        eager_call_s=1e-3,
        logs=dict.fromkeys(range(5), math.log(speed)),
    )


def test_a_cuda_graph_is_claimed_only_where_torch_gave_none_up() -> None:
    config = CompileConfig(mode="reduce-overhead")
    replayed = candidate(trial(0, config, cudagraph_skips=0))
    assert why(replayed, "faster", [], "cuda") == [
        "one graph, no breaks; a CUDA graph replays them"
    ]
    assert why(replayed, "faster", [], "cpu") == ["one graph, no breaks"]
    for unknown in (trial(0, config), trial(0, config, cudagraph_skips=1), trial(0)):
        assert "replay" not in why(candidate(unknown), "faster", [], "cuda")[0]


def test_where_nothing_is_recorded_nothing_is_said() -> None:
    old = Record(0, "forward", DEFAULT_INDUCTOR, 4, outcome=Outcome.OK, step=Step.EXIT)
    assert why(candidate(old), "faster", [candidate(old)], "cpu") == []
    assert why(None, "failed", [], "cpu") == []
    assert not list(obstacles([old], "cuda"))
    odd = trial(2, cudagraph_skip_reasons=7)
    assert why(candidate(odd), "faster", [], "cuda") == ["one graph, no breaks"]
    assert not list(obstacles([odd], "cuda"))


@pytest.mark.parametrize(
    ("device", "said", "shown"),
    [
        ("cuda", ["mutated inputs (1 instances)"], [": mutated inputs (1 instances)"]),
        ("cuda:0", [], [""]),
        ("cpu", ["cpu device (arg0_1)"], []),  # no setting loses because a CPU has none
    ],
)
def test_cuda_graphs_that_were_given_up_are_told(
    device: str, said: list[str], shown: list[str]
) -> None:
    config = CompileConfig(mode="reduce-overhead")
    loser = trial(1, config, cudagraph_skips=1, cudagraph_skip_reasons=said)
    told = [f"trial 1: torch gave up CUDA graphs{why_}" for why_ in shown]
    assert list(obstacles([loser], device)) == told


def test_where_the_graph_breaks_is_told_once_also_of_fullgraph_that_failed() -> None:
    config = CompileConfig(fullgraph=True)
    failed = Record(
        9,
        "forward",
        config,
        4,
        outcome=Outcome.GRAPH_BREAK,
        step=Step.COMPILE,
        breaks=[BREAK] * 3,
    )
    same = trial(7, graph_breaks=3, breaks=[BREAK] * 3)
    other = trial(8, graph_breaks=1, breaks=[BREAK])
    place = "model.py:12 `print(x)` (Failed to trace print)"
    assert list(obstacles([same, other, failed], "cpu")) == [
        f"trial 7 and 1 more: the graph breaks at {place}, {place} and 1 more",
        f"trial 8: the graph breaks at {place}",
    ]


def test_keeping_eager_is_explained_by_what_compiling_did() -> None:
    best, broke = (
        candidate(trial(0, EAGER), 1.0),
        trial(1, graph_breaks=1, breaks=[BREAK]),
    )
    assert why(best, "keep_eager", [best, candidate(broke, 0.99)], "cpu") == [
        "plain torch.compile(): the graph breaks at model.py:12 `print(x)` (Failed to trace print)"
    ]
    assert why(best, "keep_eager", [best, candidate(trial(1), 0.99)], "cpu") == []


# --- what a trial records -----------------------------------------------------------------------

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 128), nn.Linear(128, 8)

    def forward(self, x):
        x = self.a(x).relu()
        torch._dynamo.graph_break()
        return torch.softmax(self.b(x) * 2 + 1, -1)

def get_model():
    return Net()

def get_inputs(batch_size):
    return torch.randn(batch_size, 64)
"""


def test_a_trial_records_what_eager_runs_and_where_the_graph_breaks(
    bench: Bench, tmp_path: Path
) -> None:
    file = tmp_path / "net.py"
    file.write_text(NET)
    (place,) = bench.run(file, "aot_eager").payload["sides"][0]["breaks"]
    assert (place["place"], place["code"]) == (
        "net.py:12",
        "torch._dynamo.graph_break()",
    )
