"""A user's own step in trials: what it returns and keeps is compared, and set back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from in_process import Try

from autocompile.settings.config import CompileConfig

NET = """
import copy
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(x).relu() + WRONG

MODEL = Net()
def get_model(): return MODEL
def get_inputs(): return torch.randn(4, 8)
"""
LIE = "(0.1 if torch.compiler.is_compiling() else 0)"
CLIPPED = """
def get_step(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach()
    return step
"""
ACCUMULATED = """
def get_step(model, optimizer):
    calls, ema = 0, copy.deepcopy(model)
    def step(x):
        nonlocal calls
        calls += 1
        loss = model(x).square().mean()
        loss.backward()
        if calls % 2 == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for old, new in zip(ema.parameters(), model.parameters()):
                    old.lerp_(new, 0.1)
        return loss.item()
    return step
"""
SCHEDULED = """
def get_step(model, optimizer):
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()
    return step
"""
CACHED = """
def get_step(model):
    cache, position = torch.zeros(16, 4, 8), 0
    def step(x):
        nonlocal position
        cache[position] = model(x)
        position = (position + 1) % 16
        return cache.sum(0)
    return step
"""


@pytest.fixture
def write(work: Path) -> Any:
    def write_(step: str, wrong: str = "0") -> None:
        (work / "model.py").write_text(NET.replace("WRONG", wrong) + step)

    return write_


@pytest.mark.parametrize(
    ("phase", "step", "scope"),
    [
        ("step", CLIPPED, "model"),
        ("step", CLIPPED, "step"),
        ("step", ACCUMULATED, "model"),
        ("step", SCHEDULED, "model"),
        ("inference_step", CACHED, "model"),
        ("inference_step", CACHED, "step"),
    ],
)
def test_a_step_is_right_with_a_compiler_and_wrong_with_a_lie(
    write: Any, try_it: Try, phase: str, step: str, scope: str
) -> None:
    config = CompileConfig("aot_eager", scope=scope).to_dict()
    write(step)
    result = try_it("model.py", phase, config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    assert result["graphs"] > 0
    write(step, LIE)
    result = try_it("model.py", phase, config=config, batch_size=None)
    assert result["outcome"] == "wrong_output", result["message"]


def test_a_number_that_the_step_counts_compiles_it_again(
    write: Any, try_it: Try
) -> None:
    write(ACCUMULATED)
    config = CompileConfig("aot_eager", scope="step").to_dict()
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert any("calls % 2) changes" in x for x in result["detail"]["recompile_reasons"])


@pytest.mark.parametrize("calls", [3, 4, 8])
def test_a_step_that_accumulates_is_compared_where_it_steps(
    write: Any, try_it: Try, calls: int
) -> None:
    write(ACCUMULATED.replace("calls % 2", f"calls % {calls}"))
    config = CompileConfig("aot_eager").to_dict()
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    assert not any("not compared" in note for note in result["notes"])
    skips = "if calls % 2 == 0 and not model._compiled_call_impl:"  # where the model is compiled
    text = ACCUMULATED.replace("if calls % 2 == 0:", skips)
    write(text.replace("calls % 2", f"calls % {calls}"))
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "wrong_output", result["message"]


def test_a_wrong_gradient_is_found_before_the_optimizer_steps(
    write: Any, try_it: Try
) -> None:
    half = "(0.5 if torch.compiler.is_compiling() else 0)"  # the gradient, and the loss as it is
    lie = f"{half} * (self.layer(x).relu().detach() - self.layer(x).relu())"
    write(ACCUMULATED.replace("calls % 2", "calls % 100"), lie)
    config = CompileConfig("aot_eager").to_dict()
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "wrong_output"
    assert "gradients" in result["message"]


def test_a_check_gets_one_call_at_a_time(write: Any, try_it: Try) -> None:
    """The steps of a workload are compared one by one, its forward passes together."""
    calls = "def get_calls():\n    for n in (3, 5): yield torch.randn(n, 8)\n"
    check = (
        "def check(expected, actual): assert expected.shape == actual.shape == SHAPE\n"
    )
    config = CompileConfig("aot_eager").to_dict()
    write(CLIPPED + calls + check.replace("SHAPE", "()"))
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    write(CLIPPED + calls + check.replace("SHAPE", "(len(expected), 8)"))
    result = try_it("model.py", "forward", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]


def test_what_get_step_draws_is_the_same_on_both_sides(write: Any, try_it: Try) -> None:
    step = "def get_step(model):\n    noise = torch.randn(8)\n    return lambda x: model(x) + noise\n"
    write(step)
    config = CompileConfig("aot_eager").to_dict()
    result = try_it("model.py", "inference_step", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]


def test_an_optimizer_that_does_not_step_is_found(write: Any, try_it: Try) -> None:
    lie = "optimizer.step() if not torch.compiler.is_compiling() else None"
    write(SCHEDULED.replace("optimizer.step()", lie, 1))
    config = CompileConfig("aot_eager", scope="step").to_dict()
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "wrong_output"
    assert "updates" in result["message"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("def get_step(model): return None", "cannot be called"),
        ("def get_step(model): return lambda x: MODEL(x)", "do not call the model"),
        ("def get_step(model): raise ValueError('no cache')", "no cache"),
        (
            "def get_step(model):\n    async def step(x): return model(x)\n    return step",
            "coroutine or generator",
        ),
        (
            "def get_step(model):\n    def step(x): yield model(x)\n    return step",
            "coroutine or generator",
        ),
    ],
)
def test_a_step_that_is_none_is_one_paragraph(
    write: Any, try_it: Try, step: str, words: str
) -> None:
    write(step)
    result = try_it("model.py", kind="probe", phases=["inference_step"])
    assert words in result["message"]


def test_the_step_of_the_file_is_what_is_tuned(write: Any, try_it: Try) -> None:
    write(CLIPPED)
    assert try_it("model.py", kind="probe", phases=None)["target"]["phases"] == ["step"]
    write(CACHED)
    assert try_it("model.py", kind="probe", phases=None)["target"]["phases"] == [
        "inference_step"
    ]


SECOND = """
def get_step(model, optimizer):
    log_alpha = torch.zeros((), requires_grad=True)
    critic = torch.nn.Linear(8, 1)
    others = torch.optim.Adam([log_alpha, *critic.parameters()], lr=0.01)
    def step(x):
        for each in (optimizer, others):
            each.zero_grad()
        y = model(x)
        loss = (critic(y) * log_alpha.exp()).square().mean() + SHARE * y.mean().detach() * log_alpha
        loss.backward()
        optimizer.step()
        others.step()
        return loss.detach()
    return step
"""


def test_what_a_second_optimizer_trains_is_compared(write: Any, try_it: Try) -> None:
    config = CompileConfig("aot_eager").to_dict()
    write(SECOND.replace("SHARE", "1"))
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    write(SECOND.replace("SHARE", "(2 if model._compiled_call_impl else 1)"))
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "wrong_output"
    write(
        SECOND.replace("SHARE", "1").replace(
            "others.step()", "None if model._compiled_call_impl else others.step()"
        )
    )
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "wrong_output"
    assert "of optimizers" in result["message"]


EVERY_THIRD = """
def get_step(model, optimizer):
    calls, critic = 0, torch.nn.Linear(8, 1)
    others = torch.optim.Adam(critic.parameters(), lr=0.01)
    def step(x):
        nonlocal calls
        calls += 1
        others.zero_grad()
        critic(model(x).detach()).square().mean().backward()
        others.step()
        if calls % 3 == 0:
            optimizer.zero_grad()
            (SIGN * critic(model(x))).mean().backward()
            optimizer.step()
    return step
"""


def test_an_optimizer_that_steps_more_seldom_than_another_is_compared(
    write: Any, try_it: Try
) -> None:
    config = CompileConfig("aot_eager").to_dict()
    write(EVERY_THIRD.replace("SIGN", "1"))
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    assert not result["notes"]
    write(EVERY_THIRD.replace("SIGN", "(-1 if model._compiled_call_impl else 1)"))
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "wrong_output"
    assert "updates" in result["message"]


KEPT = """
import itertools, queue, threading
START = torch.zeros(4, 8)

def write_all(results):
    while True:
        results.get()
        results.task_done()

def get_step(model):
    results, numbers, generator = queue.Queue(), itertools.count(), torch.Generator()
    threading.Thread(target=write_all, args=(results,), daemon=True).start()
    state = START
    def step(x):
        nonlocal state
        state = 0.5 * state + model(x) + torch.rand(4, 8, generator=generator)
        results.put(float(state.sum()))
        results.join()
        assert not START.any()
        return state + next(numbers), threading.active_count()
    return step
"""


def test_whatever_a_step_keeps_begins_anew(write: Any, try_it: Try) -> None:
    """Get_step() makes it, so nothing of it has to be known, copied or written."""
    write(KEPT.replace(", threading.active_count()", ""))
    config = CompileConfig("aot_eager").to_dict()
    result = try_it("model.py", "inference_step", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    assert not any("differs from itself" in note for note in result["notes"]), result[
        "notes"
    ]


COUNTS = """
def get_step(model):
    def step(x):
        return int((model(x) > LIMIT).sum())
    return step
"""


def test_numbers_are_compared_and_nothing_is_refused_before_a_trial(
    write: Any, try_it: Try
) -> None:
    config = CompileConfig("aot_eager").to_dict()
    write(COUNTS.replace("LIMIT", "0.1"))
    result = try_it("model.py", "inference_step", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    write(COUNTS.replace("LIMIT", "(0.1 if model._compiled_call_impl else 0.2)"))
    result = try_it("model.py", "inference_step", config=config, batch_size=None)
    assert result["outcome"] == "wrong_output"
    write(COUNTS.replace("return int", "int").replace("LIMIT", "0.1"))
    result = try_it("model.py", kind="probe", phases=["inference_step"])
    assert "returns nothing that can be compared" in result["message"]


def test_first_calls_may_collect(write: Any, try_it: Try) -> None:
    collects = (
        "buffer.append(x)\n        if len(buffer) < 4: return\n        x = buffer[-4]"
    )
    step = CLIPPED.replace("    def step", "    buffer = []\n    def step")
    write(
        step.replace(
            "optimizer.zero_grad()", f"{collects}\n        optimizer.zero_grad()"
        )
    )
    assert try_it("model.py", kind="probe", phases=None)["outcome"] == "ok"
    config = CompileConfig("aot_eager").to_dict()
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]


def test_what_is_kept_elsewhere_is_said(write: Any, try_it: Try) -> None:
    """A file-level counter is no state that can be set back."""
    text = (
        "calls = [0.0]\ndef get_step(model):\n    def step(x):\n        calls[0] += 1\n"
    )
    write(text + "        return model(x) * calls[0]\n    return step\n")
    config = CompileConfig("aot_eager").to_dict()
    result = try_it("model.py", "inference_step", config=config, batch_size=None)
    assert result["outcome"] == "wrong_output"
    assert "called anew" in result["message"]


def test_a_decoder_with_a_static_cache(write: Any, try_it: Try) -> None:
    """A prompt and one-token steps are two kinds of calls of one workload."""
    example = (Path(__file__).parents[3] / "examples/decoder.py").read_text("utf-8")
    for shown, here in (
        ("num_hidden_layers=4", "num_hidden_layers=1"),
        ("), 16", "), 4"),
    ):
        assert example.count(shown) == 1
        example = example.replace(shown, here)
    Path("decoder.py").write_text(example)
    config = CompileConfig("aot_eager").to_dict()
    result = try_it("decoder.py", "inference_step", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    shapes = {kind["shape"]: kind["calls"] for kind in result["kinds"]}
    assert shapes == {"1×1": 12, "1×24": 1, "1×57": 1, "1×33": 1}
    assert result["graph_breaks"] == 0
    assert result["weights_live"]


# --- a step that is compiled as a whole -----------------------------------------------------------

WHOLE = """
import sys, time
from torch._dynamo import register_backend

@register_backend
def noted(graph, inputs):
    sys.modules["test_own_step"].GRAPHS.append(1)
    time.sleep(SLEEP)
    return graph.forward

@register_backend
def keeps_weights(graph, inputs):
    # As a compiler would that takes weights for constants.
    kept = [x.clone() if isinstance(x, torch.nn.Parameter) else None for x in inputs]
    def run(*args):
        return graph.forward(*[a if k is None else k for a, k in zip(args, kept)])
    return run
"""
ZEROES_FIRST = """
def get_step(model, optimizer):
    def step(x):
        ZERO
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step
"""
GRAPHS: list[int] = []


def whole(write: Any, step: str, sleep_s: float = 0.0) -> None:
    write(WHOLE.replace("SLEEP", str(sleep_s)) + step)
    GRAPHS.clear()


def test_a_compiler_that_drops_what_clears_the_gradients_is_found(
    write: Any, try_it: Try
) -> None:
    """Its first call is right, since there are no gradients yet."""
    config = CompileConfig("aot_eager", scope="step").to_dict()
    honest = ZEROES_FIRST.replace("ZERO", "optimizer.zero_grad()")
    whole(write, honest)
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    dropped = "if not torch.compiler.is_compiling(): optimizer.zero_grad()"
    whole(write, ZEROES_FIRST.replace("ZERO", dropped))
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "wrong_output", result


def test_a_wrong_gradient_where_gradients_exist_already_is_found(
    write: Any, try_it: Try
) -> None:
    """That program is what a loop runs; the first call is another one."""
    lie = (
        "is_later = model.layer.weight.grad is not None and torch.compiler.is_compiling()\n"
        "        optimizer.zero_grad()\n"
        "        if is_later: x = x * 1.5"
    )
    config = CompileConfig("aot_eager", scope="step").to_dict()
    whole(write, ZEROES_FIRST.replace("ZERO", lie))
    result = try_it("model.py", "step", config=config, batch_size=None)
    assert result["outcome"] == "wrong_output", result


CLEARS_LAST = ZEROES_FIRST.replace("ZERO", "pass").replace(
    "optimizer.step()", "optimizer.step()\n        optimizer.zero_grad()"
)
CALLS = "def get_step(model):\n    return lambda x: model(x)\n"


@pytest.mark.parametrize(
    ("phase", "step"),
    [
        ("step", ZEROES_FIRST.replace("ZERO", "optimizer.zero_grad()")),
        ("step", CLEARS_LAST),
        ("inference_step", CALLS),
        ("inference_step", CACHED),
    ],
)
def test_a_whole_step_is_compiled_as_often_as_a_program_compiles_it(
    write: Any, try_it: Try, phase: str, step: str
) -> None:
    config = CompileConfig("noted", scope="step").to_dict()
    whole(write, step, sleep_s=0.2)
    result = try_it("model.py", phase, config=config, batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    in_a_trial = len(GRAPHS)
    in_a_program = graphs_of_a_program(step)
    assert in_a_trial == in_a_program
    # Each of its graphs takes so long, and what torch does beside it is not much more.
    assert 0.2 * in_a_program < result["compile_s"] < 0.2 * in_a_program + 10.0


def graphs_of_a_program(step: str) -> int:
    """How many graphs a loop of plain torch compiles of a step."""
    names: dict[str, Any] = {"torch": torch}
    exec(step, names)
    graphs: list[int] = []

    def noted(graph: Any, inputs: Any) -> Any:
        graphs.append(1)
        return graph.forward

    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    given = [torch.optim.Adam(model.parameters())] if "optimizer" in step else []
    with torch.set_grad_enabled(bool(given)):
        compiled = torch.compile(names["get_step"](model, *given), backend=noted)
        for _ in range(5):
            compiled(torch.randn(4, 8))
    return len(graphs)


@pytest.mark.parametrize("scope", ["model", "step"])
def test_weights_that_a_compiler_takes_for_constants_are_found_in_a_step(
    write: Any, try_it: Try, scope: str
) -> None:
    config = CompileConfig("keeps_weights", scope=scope).to_dict()
    whole(write, CALLS)
    result = try_it("model.py", "inference_step", config=config, batch_size=None)
    assert result["outcome"] == "stale_weights", result
