"""Why the winner wins and the others do not: sentences over records, and what a trial records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench

from autocompile.estimate.candidates import Candidate
from autocompile.estimate.intervals import Interval
from autocompile.report.explain import why, why_not
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.store.measurement import Measurement
from autocompile.store.record import Outcome, Record, Step

EAGER_PART = {"total": 38, "count": {"addmm": 4}}
COMPILED = {
    "graphs": 1, "kernels_total": 2, "library_total": 4, "operators_total": 0, "templates": 0,
    "kernels": {"cpp_fused_relu_0": 2}, "library": {"addmm": 4}, "operators": {}, "replayed": False,
}  # fmt: skip
BREAK = {"place": "model.py:12", "code": "print(x)", "reason": "Failed to trace print"}
LITE = {**COMPILED, "kernels_total": 0, "operators_total": 30, "library_total": 0}


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


def reasons(*losers: Candidate, best: Candidate | None = None, device: str = "cpu") -> list[str]:
    best = best or candidate(trial(0))
    rows = why_not(best, [best, *losers], [], [0], device)
    return [row["reason"] for row in rows]


def test_a_winner_is_explained_by_its_graph_and_its_kernels() -> None:
    best = candidate(trial(0))
    assert why(best, "faster", [best], "cpu") == [
        "one graph, no breaks; 38 operators of eager become 6 calls: 2 fused kernels and "
        "4 library calls (addmm)"
    ]


def test_a_cuda_graph_is_claimed_only_where_it_was_seen_to_replay() -> None:
    config = CompileConfig(mode="reduce-overhead")
    replayed = candidate(trial(0, config, compiled={**COMPILED, "replayed": True}))
    assert why(replayed, "faster", [], "cuda")[0].endswith("; a CUDA graph replays them")
    assert "replay" not in why(replayed, "faster", [], "cpu")[0]
    assert "replay" not in why(candidate(trial(0, config)), "faster", [], "cuda")[0]
    plain = candidate(trial(0, compiled={**COMPILED, "replayed": True}))
    assert "replay" not in why(plain, "faster", [], "cuda")[0]
    assert reasons(candidate(trial(1), 1.5), best=replayed, device="cuda") == [
        "no CUDA graphs (0.75× the best's speed)"
    ]


def test_where_nothing_is_recorded_nothing_is_said() -> None:
    old = Record(0, "forward", DEFAULT_INDUCTOR, 4, Outcome.OK, Step.EXIT)
    assert why(candidate(old), "faster", [candidate(old)], "cpu") == []
    assert why(None, "failed", [], "cpu") == []
    loser = Record(1, "forward", CompileConfig(mode="lite"), 4, Outcome.OK, Step.EXIT)
    assert reasons(candidate(loser, 1.5)) == []
    odd = trial(2, compiled="?", eager=[1], breaks="x", recompile_reasons=7)
    assert reasons(candidate(odd, 1.5)) == []
    assert reasons(candidate(trial(3, compiled=None), 1.5)) == []


def test_each_loser_is_told_by_what_its_records_hold() -> None:
    lite = trial(1, CompileConfig(mode="lite"), compiled=LITE)
    more = trial(2, CompileConfig(dynamic=True), compiled={**COMPILED, "kernels_total": 8})
    broken = trial(3, CompileConfig(dynamic=False), graph_breaks=1, breaks=[BREAK])
    again = trial(
        4, recompiles=2, recompile_reasons=["0/0: tensor 'x' size mismatch at index 0"]
    )  # fmt: skip
    unfused = trial(5, CompileConfig(backend="aot_eager"), compiled=None)
    losers = [candidate(r, 1.9 - 0.1 * r.number) for r in (lite, more, broken, again, unfused)]
    assert reasons(*losers) == [
        "fuses nothing: 30 calls of libraries and operators (0.90× the best's speed)",
        "12 calls instead of 6 (0.85× the best's speed)",
        "the graph breaks at model.py:12 `print(x)` (Failed to trace print) "
        "(0.80× the best's speed)",
        "compiled again 2 times (tensor 'x' size mismatch at index 0) (0.75× the best's speed)",
        "fuses nothing: the 38 operators of eager (0.70× the best's speed)",
    ]


def test_equal_reasons_share_a_line_and_ties_are_told_elsewhere() -> None:
    best = candidate(trial(0))
    lite = trial(1, CompileConfig(mode="lite"), compiled=LITE)
    dynamic = trial(2, CompileConfig(mode="lite", dynamic=True), compiled=LITE)
    same = candidate(trial(3, CompileConfig(mode="max-autotune"), compile_s=6.1))
    every = [best, candidate(lite, 1.0), candidate(dynamic, 1.2), same]
    rows = why_not(best, every, [], [0], "cpu")
    unfused = "fuses nothing: 30 calls of libraries and operators (0.50 to 0.60× the best's speed)"
    longer = "as fast within the noise, compiles 3.1 s longer"
    assert [tuple(row.values()) for row in rows] == [
        (["inductor max-autotune"], [3], longer),
        (["inductor lite", "inductor lite · dynamic"], [1, 2], unfused),
    ]
    assert len(why_not(best, every, [], [0, 3], "cpu")) == 1


@pytest.mark.parametrize(
    ("device", "said", "shown"),
    [
        ("cuda", ["mutated inputs (1 instances)"], [": an input is changed in place"]),
        ("cuda:0", [], [""]),
        ("cpu", ["cpu device (arg0_1)"], []),  # no setting loses because a CPU has none
    ],
)
def test_cuda_graphs_that_were_given_up_are_told(
    device: str, said: list[str], shown: list[str]
) -> None:
    config = CompileConfig(mode="reduce-overhead")
    loser = trial(1, config, cudagraph_skips=1, cudagraph_skip_reasons=said)
    told = [f"torch gave up CUDA graphs{why_} (0.50× the best's speed)" for why_ in shown]
    assert reasons(candidate(loser, 1.0), device=device) == told


def test_what_new_weights_cost_is_why_constant_ones_lose() -> None:
    loser = trial(1, CompileConfig(freezing=True), refresh_s=0.7, calls_per_update=1250)
    told = "new weights, every 1 250 calls, cost more than it saves (0.50× the best's speed)"
    slow = candidate(trial(0), 1.8)  # calls of 556 microseconds, where the loser's take 500
    assert reasons(candidate(loser, 0.9), best=slow) == [told]
    assert reasons(candidate(loser, 1.0)) == []  # its calls are no faster than the best's
    unknown = trial(1, CompileConfig(freezing=True), refresh_s=0.7)
    assert reasons(candidate(unknown, 1.0)) == []


def test_fullgraph_that_failed_says_where_the_graph_breaks() -> None:
    config = CompileConfig(fullgraph=True)
    failed = Record(
        9, "forward", config, 4, Outcome.GRAPH_BREAK, Step.COMPILE, detail={"breaks": [BREAK] * 3}
    )
    place = "model.py:12 `print(x)` (Failed to trace print)"
    row = why_not(None, [], [failed], [], "cpu")[0]
    assert row["settings"] == ["inductor · fullgraph"]
    assert row["reason"] == f"the graph breaks at {place}, {place} and 1 more"


def test_keeping_eager_is_explained_by_time_and_by_what_compiling_did() -> None:
    eager_part = {
        "total": 9, "count": {}, "seconds": {"addmm": 9e-4, "relu": 4e-5},
        "seconds_total": 9.4e-4, "call_s": 1e-3,
    }  # fmt: skip
    best = candidate(trial(0, EAGER, eager=eager_part), 1.0)
    told = why(best, "keep_eager", [best, candidate(trial(1), 0.99)], "cpu")
    assert told[0] == (
        "90 % of an eager call is in library calls (addmm), which compiled code makes too"
    )
    assert told[1].startswith("plain torch.compile(): 38 operators of eager become 6 calls")
    python = {**eager_part, "seconds": {}, "seconds_total": 3e-4, "total": 2}
    best = candidate(trial(0, EAGER, eager=python), 1.0)
    told = why(best, "keep_eager", [best, candidate(trial(1, compiled=None), 0.99)], "cpu")
    assert told == [
        "70 % of an eager call is spent between operators, in Python",
        "eager runs 2 operators per call: nothing to fuse",
    ]
    disturbed = {**eager_part, "call_s": 1e-4}
    best = candidate(trial(0, EAGER, eager=disturbed), 1.0)
    assert "library calls (addmm), which" not in str(why(best, "keep_eager", [best], "cpu"))


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
