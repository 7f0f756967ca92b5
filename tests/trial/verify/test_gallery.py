"""A gallery: every liar is caught with its outcome, and no honest model is refused."""

from __future__ import annotations

import pytest
from conftest import TARGETS
from in_process import Try

from autocompile.settings.config import CompileConfig

LIARS = TARGETS / "lying_backends.py"
HONEST = TARGETS / "honest_models.py"


@pytest.mark.parametrize(
    ("backend", "phase", "model", "outcome", "words"),
    [
        ("zeros", "forward", "", "wrong_output", "is off by 1 "),
        ("off_by_a_hundredth", "forward", "", "wrong_output", "is off by 0.01 "),
        (
            "bakes_weights",
            "forward",
            "",
            "stale_weights",
            "in-place update of the weights",
        ),
        (
            "bakes_buffers",
            "forward",
            ":normalizing",
            "wrong_output",
            "update of the weights",
        ),
        (
            "ignores_writes",
            "forward",
            ":writing",
            "wrong_output",
            "['inputs'][0] is off by",
        ),
        ("keeps_by_address", "forward", "", "wrong_output", "(after the timing)"),
        ("stays_with_the_second", "forward", "", "wrong_output", "(after the timing)"),
        ("right_twice", "forward", "", "wrong_output", "(call 3)"),
        ("wears_out", "forward", "", "wrong_output", "(after the timing)"),
        (
            "same_memory",
            "forward",
            "",
            "wrong_output",
            "overwritten by the next call (call 2)",
        ),
        (
            "same_memory_late",
            "forward",
            "",
            "wrong_output",
            "(a call after the timing)",
        ),
        ("one_nan", "forward", "", "wrong_output", "NaN where eager has none"),
        ("swaps", "forward", ":two_heads", "wrong_output", "['outputs'][0] is off by"),
        ("widens", "forward", "", "wrong_output", "dtype torch.float64 instead of"),
        ("wrong_gradient", "train_step", "", "wrong_output", "['gradients']"),
        ("steps_twice", "optimizer_step", "", "wrong_output", "(call 2)"),
        ("negates", "train_step", "", "wrong_output", "(call 1)"),
        (
            "aot_eager",
            "forward",
            ":never_captured",
            "not_compiled",
            "captured no graph",
        ),
        ("fails", "forward", ":errors_suppressed", "compile_error", "cannot do it"),
    ],
)
def test_a_liar_is_caught(
    try_it: Try,
    backend: str,
    phase: str,
    model: str,
    outcome: str,
    words: str,
) -> None:
    result = try_it(f"{LIARS}{model}", phase, backend)
    assert (result["outcome"], words in result["message"]) == (outcome, True), result[
        "message"
    ]


def test_a_liar_in_a_whole_step_is_caught(try_it: Try) -> None:
    config = CompileConfig("steps_twice", scope="step").to_dict()
    result = try_it(LIARS, "train_step", config=config)
    assert (result["outcome"], "(call 2)" in result["message"]) == (
        "wrong_output",
        True,
    )


@pytest.mark.parametrize(
    ("model", "phase", "backend"),
    [
        ("half", "forward", "inductor"),
        ("softmaxes", "forward", "inductor"),
        ("softmaxes", "train_step", "aot_eager"),
        ("dropping", "train_step", "inductor"),
        ("normed", "train_step", "inductor"),
        ("recurrent", "forward", "inductor"),
        ("unrolled", "train_step", "aot_eager"),
        ("attention", "forward", "inductor"),
        ("attention", "train_step", "aot_eager"),
        ("words", "forward", "inductor"),
        ("words", "train_step", "aot_eager"),
        ("structured", "forward", "inductor"),
        ("structured", "train_step", "aot_eager"),
        ("in_place", "forward", "inductor"),
        ("branching", "forward", "inductor"),
        ("branching", "train_step", "aot_eager"),
        ("passes_through", "forward", "inductor"),
        ("caching", "forward", "inductor"),
        ("choosing", "forward", "inductor"),
    ],
)
def test_an_honest_model_is_not_refused(
    try_it: Try, model: str, phase: str, backend: str
) -> None:
    result = try_it(f"{HONEST}:{model}", phase, backend)
    assert result["outcome"] == "ok", result["message"]
    assert result["graphs"] >= 1
    assert not any("overwritten" in note for note in result["notes"])


@pytest.mark.parametrize("model", ["normalizing", "writing"])
def test_an_honest_backend_is_not_refused_where_a_liar_is(
    try_it: Try, model: str
) -> None:
    result = try_it(f"{LIARS}:{model}", "forward", "aot_eager")
    assert result["outcome"] == "ok", result["message"]
    assert result["weights_live"] is True


def test_an_lstm_that_dynamo_leaves_in_eager_is_not_called_compiled(
    try_it: Try,
) -> None:
    assert try_it(f"{HONEST}:recurrent_in_eager")["outcome"] == "not_compiled"


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["inductor", "cudagraphs"])
@pytest.mark.parametrize("model", ["half", "structured", "passes_through", "branching"])
def test_what_cuda_graphs_overwrite_is_a_note(
    try_it: Try, model: str, backend: str
) -> None:
    mode = "reduce-overhead" if backend == "inductor" else "default"
    config = CompileConfig(backend=backend, mode=mode).to_dict()
    result = try_it(f"{HONEST}:{model}", config=config, device="cuda")
    assert result["outcome"] == "ok", result["message"]
    assert any(
        "overwritten by the next call (CUDA graphs)" in note for note in result["notes"]
    )
