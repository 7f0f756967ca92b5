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
from autocompile.store.record import Measurement, Outcome, Record, Step

EAGER_PART = {"total": 38, "count": {"addmm": 4}}
COMPILED = {
    "graphs": 1, "kernels_total": 2, "library_total": 4, "operators_total": 0, "templates": 0,
    "kernels": {"cpp_fused_relu_0": 2}, "library": {"addmm": 4}, "operators": {}, "replayed": False,
}  # fmt: skip
BREAK = {"place": "model.py:12", "code": "print(x)", "reason": "Failed to trace print"}


def trial(number: int, config: CompileConfig = DEFAULT_INDUCTOR, **detail: Any) -> Record:
    names = ("graph_breaks", "recompiles", "compile_s", "refresh_s", "calls_per_update")
    facts = {k: detail.pop(k) for k in names if k in detail}
    return Record(
        number, "forward", config, 4, Outcome.OK, Step.EXIT,
        measurement=Measurement((1e-3,) * 8, (5e-4,) * 8),
        **{"graphs": 1, "graph_breaks": 0, "recompiles": 0, "compile_s": 3.0, **facts},
        detail={"eager": EAGER_PART, "compiled": COMPILED, **detail},
    )  # fmt: skip


def candidate(record: Record, speed: float = 2.0) -> Candidate:
    speedup = Interval(speed, speed * 0.99, speed * 1.01)
    return Candidate(
        record, speedup, eager_call_s=1e-3, logs=dict.fromkeys(range(5), math.log(speed))
    )


def test_a_winner_is_explained_by_its_graph_and_its_kernels() -> None:
    best = candidate(trial(0))
    assert why(best, "faster", [best], "cpu") == [
        "one graph, no breaks; 38 operators of eager become 6 calls: 2 fused kernels and "
        "4 library calls"
    ]


def test_a_cuda_graph_is_claimed_only_where_it_was_seen_to_replay() -> None:
    config = CompileConfig(mode="reduce-overhead")
    replayed = candidate(trial(0, config, compiled={**COMPILED, "replayed": True}))
    assert why(replayed, "faster", [], "cuda")[0].endswith("; a CUDA graph replays them")
    assert "replay" not in why(replayed, "faster", [], "cpu")[0]
    assert "replay" not in why(candidate(trial(0, config)), "faster", [], "cuda")[0]
    plain = candidate(trial(0, compiled={**COMPILED, "replayed": True}))
    assert "replay" not in why(plain, "faster", [], "cuda")[0]


def test_where_nothing_is_recorded_nothing_is_said() -> None:
    old = Record(0, "forward", DEFAULT_INDUCTOR, 4, Outcome.OK, Step.EXIT)
    assert why(candidate(old), "faster", [candidate(old)], "cpu") == []
    assert why(None, "failed", [], "cpu") == []
    assert not list(obstacles([old], "cuda"))
    odd = trial(2, compiled="?", eager=[1], breaks="x", cudagraph_skip_reasons=7)
    assert why(candidate(odd), "faster", [], "cuda") == ["one graph, no breaks"]
    assert not list(obstacles([odd], "cuda"))
    missing = trial(3, compiled={**COMPILED, "kernels_total": None})
    assert why(candidate(missing), "faster", [], "cpu") == ["one graph, no breaks"]


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
        9, "forward", config, 4, Outcome.GRAPH_BREAK, Step.COMPILE, detail={"breaks": [BREAK] * 3}
    )
    same = trial(7, graph_breaks=3, breaks=[BREAK] * 3)
    other = trial(8, graph_breaks=1, breaks=[BREAK])
    place = "model.py:12 `print(x)` (Failed to trace print)"
    assert list(obstacles([same, other, failed], "cpu")) == [
        f"trial 7 and 1 more: the graph breaks at {place}, {place} and 1 more",
        f"trial 8: the graph breaks at {place}",
    ]


def test_keeping_eager_is_explained_by_what_compiling_did() -> None:
    best = candidate(trial(0, EAGER, eager={"total": 9}), 1.0)
    told = why(best, "keep_eager", [best, candidate(trial(1), 0.99)], "cpu")
    assert told[0].startswith("plain torch.compile(): 38 operators of eager become 6 calls")
    assert why(best, "keep_eager", [best, candidate(trial(1, compiled=None), 0.99)], "cpu") == []
    assert why(best, "keep_eager", [best], "cpu") == []


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


def test_a_trial_records_what_it_launches_and_where_it_breaks(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(NET)
    detail = bench.run(file, "inductor").payload["detail"]
    eager, compiled = detail["eager"], detail["compiled"]
    assert eager["total"] == 6
    assert eager["count"] == {"addmm": 2, "relu": 1, "mul": 1, "add": 1, "_softmax": 1}
    assert set(eager["seconds"]) == set(eager["count"])
    assert 0 < sum(eager["seconds"].values()) <= eager["seconds_total"] * 1.01
    assert (compiled["kernels_total"], compiled["library"]) == (2, {"addmm": 2})
    assert (compiled["replayed"], compiled["graphs"]) == (False, 2)
    (place,) = detail["breaks"]
    assert (place["place"], place["code"]) == ("net.py:12", "torch._dynamo.graph_break()")
