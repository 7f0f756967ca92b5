"""Real trials of two ranks that Gloo connects: right ones, those that lie, those of which one fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, SHORT, TARGETS, Bench, assert_nothing_left

import autocompile
from autocompile.errors import TargetError, UsageError
from autocompile.execute.executor import Ending
from autocompile.protocol.requests import Header, Side, TrialRequest
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Checks

RANKS, SHARDED = TARGETS / "ranks.py", TARGETS / "ranks_sharded.py"
pytestmark = pytest.mark.timeout(600)


def ended(
    bench: Bench,
    config: dict[str, Any],
    patience_s: float = PATIENCE_S,
    target: Path = RANKS,
    phase: str = "train_step",
    **header: Any,
) -> Ending:
    """How a trial of two ranks has ended."""
    asked = {"target": str(target), "device": "cpu", "ranks": 2, **header}
    side = Side(CompileConfig.from_dict(config), checks=Checks.ALL)
    request = TrialRequest(
        header=Header(**asked),
        phase=phase,
        sides=(side,),
        batch_size=8,
        limits=SHORT,
    )
    return bench.end(bench.begin(request.to_dict(), patience_s))


def side_of(ending: Ending) -> dict[str, Any]:
    (side,) = ending.payload["sides"]
    return dict(side)


# Right ones --------------------------------------------------------------------------------------


def test_eager_mode_of_two_ranks_is_timed_and_knows_one_of_them(bench: Bench) -> None:
    side = side_of(ended(bench, {"backend": "eager"}))
    assert side["outcome"] == "ok", side["message"]
    assert side["ranks"] == 2
    assert side["checks"] == "all"
    assert 0 < side["alone_s"] < 1
    assert side["measurement"]["compiled_s"]


@pytest.mark.parametrize("ddp", ["default", "unsplit", "static_graph", "bucket_views"])
def test_a_compiled_step_of_two_ranks_is_right(bench: Bench, ddp: str) -> None:
    side = side_of(ended(bench, {"backend": "aot_eager", "ddp": ddp}))
    assert side["outcome"] == "ok", side["message"]
    assert side["graphs"] == 1


@pytest.mark.slow
def test_inductor_in_two_ranks_is_right(bench: Bench) -> None:
    side = side_of(ended(bench, {"backend": "inductor", "optimizer": "fused"}))
    assert side["outcome"] == "ok", side["message"]


def test_a_model_that_wraps_itself_is_tuned_as_it_is(
    bench: Bench, tmp_path: Path
) -> None:
    text = RANKS.read_text().replace("return Net()", "return _Honest(Net())")
    (tmp_path / "own.py").write_text(text)
    own = tmp_path / "own.py"
    side = side_of(ended(bench, {"backend": "aot_eager"}, target=own, strategy="own"))
    assert side["outcome"] == "ok", side["message"]


@pytest.mark.parametrize(
    "config",
    [
        {"backend": "eager", "optimizer": "fused"},
        {"backend": "aot_eager"},
        {"backend": "aot_eager", "scope": "regional", "fsdp": "kept"},
    ],
)
def test_a_step_whose_parameters_are_split_is_right(
    bench: Bench, config: dict[str, Any]
) -> None:
    side = side_of(ended(bench, config, target=SHARDED, strategy="fsdp2"))
    assert side["outcome"] == "ok", side["message"]
    assert side["checks"] == "all"


OWN_STEP = """

def get_step(model, optimizer):
    calls = 0

    def step(x):
        nonlocal calls
        calls += 1
        model.set_requires_gradient_sync(calls % 2 == 0)
        get_loss(model(x), x).backward()
        length = torch.tensor(0.0)
        if calls % 2 == 0:
            length = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            return length, model(x).mean()

    return step
"""


def test_a_step_of_parts_may_add_up_gather_and_end_in_a_forward_pass(
    bench: Bench, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(SHARDED.read_text() + OWN_STEP)
    for config in (
        {"backend": "eager", "optimizer": "fused"},
        {"backend": "aot_eager"},
    ):
        ending = ended(bench, config, target=own, phase="step", strategy="fsdp2")
        assert side_of(ending)["outcome"] == "ok", side_of(ending)["message"]


@pytest.mark.slow
def test_updates_of_two_learners_are_tuned_as_one(bench: Bench) -> None:
    target = Path(f"{TARGETS / 'rl.py'}:config")
    config = {"backend": "aot_eager", "optimizer": "fused"}
    side = side_of(ended(bench, config, target=target, phase="learner_update"))
    assert side["outcome"] == "ok", side["message"]
    assert side["ranks"] == 2


# Those that lie ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "lie", "words"),
    [
        (RANKS, "none", ""),
        (RANKS, "no_average", "differs between rank 0 and 1"),
        (RANKS, "left_out", "differs between rank 0 and 1"),
        (RANKS, "wrong_number", "gradients"),
        (RANKS, "of_before", "gradients"),
        (RANKS, "others_data", "loss"),
        (RANKS, "own_buffers", "buffers"),
        (SHARDED, "none", ""),
        (SHARDED, "left_out", "gradients"),
        (SHARDED, "wrong_number", "gradients"),
        (SHARDED, "others_data", "loss"),
    ],
)
def test_what_computes_something_else_on_some_rank_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, target: Path, lie: str, words: str
) -> None:
    side = side_of(lying(bench, monkeypatch, lie, target=target))
    if not words:
        assert side["outcome"] == "ok", side["message"]
        return
    assert side["outcome"] == "wrong_output", side["message"]
    assert words in side["message"]


def lying(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
    patience_s: float = 60.0,
    target: Path = RANKS,
) -> Ending:
    """How a trial of a liar has ended; whole graphs, as it has buckets that Dynamo does not know."""
    monkeypatch.setenv("TEST_LIE", lie)
    fresh = Bench(bench.job_factory.folder.path.parent / f"lie_{lie}", "spawn", 1)
    is_ddp = target == RANKS
    config = {"backend": "aot_eager", "ddp": "unsplit" if is_ddp else "default"}
    strategy = "ddp" if is_ddp else "fsdp2"
    try:
        return ended(fresh, config, patience_s, target, strategy=strategy)
    finally:
        fresh.executor.close()


# Those of which one fails ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "outcome", "words"),
    [
        ("killed", "crashed", "rank 1: SIGKILL"),
        ("exits", "crashed", "rank 1: exited with code 0"),
        ("raises", "compile_error", "rank 1 of 2: ValueError: this rank cannot do it"),
        ("no_memory", "out_of_memory", "rank 1 of 2"),
    ],
)
def test_the_rank_that_fails_first_names_the_outcome(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lie: str, outcome: str, words: str
) -> None:
    ending = lying(bench, monkeypatch, lie)
    assert (ending.outcome.value, words in ending.message) == (outcome, True), ending
    assert_nothing_left(f"lie_{lie}")


def test_a_rank_that_hangs_is_a_timeout(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = lying(bench, monkeypatch, "hangs", 12.0)
    assert ending.outcome.value == "timeout"
    assert_nothing_left("lie_hangs")


# What is asked -----------------------------------------------------------------------------------


def test_a_phase_without_gradients_has_no_ranks() -> None:
    with pytest.raises(UsageError, match="forward has none"):
        autocompile.tune(RANKS, ranks=2, phases="forward")


def test_a_model_that_ddp_refuses_is_one_paragraph(tmp_path: Path) -> None:
    text = RANKS.read_text().replace("self.second(torch", "(torch")
    frozen = text.replace("return Net()", "return Net().requires_grad_(False)")
    (tmp_path / "frozen.py").write_text(frozen)
    with pytest.raises(TargetError, match=r"rank \d of 2: .*requires a gradient"):
        autocompile.tune(
            tmp_path / "frozen.py",
            ranks=2,
            device="cpu",
            budget_s=60,
            run_dir=tmp_path / "run",
        )
