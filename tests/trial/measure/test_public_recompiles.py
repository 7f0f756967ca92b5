"""The recompiles that people report of torch.compile: one small model each, in a real trial.

Each ends with the right outcome, and its reason says in plain words what to change.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from in_process import Try

from autocompile.settings.config import CompileConfig
from autocompile.trial.tasks import later

SCHEDULE = later.schedule  # before a test's trials leave it out


@dataclass(frozen=True)
class Case:
    """A model, what it is called with, and how its trial ends."""

    forward: str
    calls: str  # what get_calls() gives; of a function of n, the inputs of one shape
    words: str
    graphs: int | None = None  # of a trial that works; None: recompile_limit
    dynamic: bool | None = None
    init: str = ""
    arguments: str = "x"


CASES = {
    "an attribute that counts": Case(
        "self.n += 1\nreturn self.layer(x) * self.n",
        "[torch.ones(2, 4)] * 4",
        "the number self.n changes and is a constant of compiled code: keep it in a tensor",
        init="self.n = 0",
    ),
    "a float that changes, static": Case(
        "return self.layer(x) * by",
        "[{'x': torch.ones(2, 4), 'by': n / 16} for n in range(1, 13)]",
        "the number by changes and is a constant of compiled code: pass it as a tensor, or compile",
        dynamic=False,
        arguments="x, by",
    ),
    "a float that changes": Case(
        "return self.layer(x) * by",
        "[{'x': torch.ones(2, 4), 'by': n / 16} for n in range(1, 13)]",
        "the number by changes",
        graphs=2,  # torch makes it an input at the second value
        arguments="x, by",
    ),
    "many batch sizes, static": Case(
        "return self.layer(x)",
        "[torch.ones(n, 4) for n in range(2, 14)]",
        "axis 0 of x has size 9, then 10: dynamic=True",
        dynamic=False,
    ),
    "many batch sizes": Case(
        "return self.layer(x)",
        "[torch.ones(n, 4) for n in range(2, 14)]",
        "axis 0 of x has size 2, then 3",
        graphs=2,
    ),
    "a smaller last batch": Case(
        "return self.layer(x)",
        "[torch.ones(8, 4)] * 5 + [torch.ones(3, 4)]",
        "axis 0 of x has size 8, then 3: dynamic=True",
        graphs=2,
    ),
    "a growing cache, static": Case(
        "return self.layer(torch.cat([past, x], 1)).sum(1)",
        "[{'x': torch.ones(1, 1, 4), 'past': torch.ones(1, n, 4)} for n in range(12)]",
        "axis 1 of past has size 7, then 8: dynamic=True, or torch._dynamo.mark_dynamic(past, 1)",
        dynamic=False,
        arguments="x, past",
    ),
    "a growing cache": Case(
        "return self.layer(torch.cat([past, x], 1)).sum(1)",
        "[{'x': torch.ones(1, 1, 4), 'past': torch.ones(1, n, 4)} for n in range(12)]",
        "axis 1 of past has size 1, then 2: 1 is a constant always",
        graphs=3,  # of no token, of one, of more
        dynamic=True,
        arguments="x, past",
    ),
    "keys that change": Case(
        "return self.layer(sum(x.values()))",
        "[{'x': {f'k{n}': torch.ones(2, 4)}} for n in range(10)]",
        "x has other keys ('k7' in some calls only): give it the same ones",
    ),
    "a list of another length": Case(
        "return self.layer(sum(x))",
        "[([torch.ones(2, 4)] * n,) for n in range(1, 11)]",
        "x has another length than 8: give it one length, or stack it",
    ),
    "gradients that come and go": Case(
        "with torch.set_grad_enabled(learns):\n    return self.layer(x)",
        "[{'x': torch.ones(2, 4), 'learns': n % 2 == 0} for n in range(4)]",
        "learns is true in some calls and false in others: each way is a program of its own",
        graphs=2,
        arguments="x, learns",
    ),
    "inputs with gradients and without": Case(
        "return self.layer(x)",
        "[torch.ones(2, 4, requires_grad=n % 2 == 0) for n in range(4)]",
        "x requires gradients in some calls only",
        graphs=2,
    ),
    "autocast that comes and goes": Case(
        "with torch.autocast('cpu', torch.bfloat16, enabled=less):\n"
        "    return self.layer(x).float()",
        "[{'x': torch.ones(2, 4), 'less': n % 2 == 0} for n in range(4)]",
        "less is true in some calls and false in others",
        graphs=2,
        arguments="x, less",
    ),
    "a dtype that alternates": Case(
        "return self.layer(x.float())",
        "[torch.ones(2, 4, dtype=d) for d in (torch.float32, torch.bfloat16) * 2]",
        "x is float, then bfloat16: give it one dtype",
        graphs=2,
    ),
}


def write(work: Path, forward: str, init: str, arguments: str, inputs: str) -> None:
    text = f"""
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            {init}
        def forward(self, {arguments}):
            FORWARD

    def get_model(): return Net()
    {inputs}
    """
    body = textwrap.indent(forward, " " * 8).lstrip()
    (work / "model.py").write_text(textwrap.dedent(text).replace("FORWARD", body))


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_workload_that_recompiles_says_why(
    work: Path, try_it: Try, case: Case
) -> None:
    write(
        work,
        case.forward,
        case.init,
        case.arguments,
        f"def get_calls(): return {case.calls}",
    )
    config = CompileConfig("aot_eager", dynamic=case.dynamic)
    result = try_it("model.py", config=config.to_dict(), batch_size=None)
    if case.graphs:
        assert (result["outcome"], result["graphs"]) == ("ok", case.graphs), result[
            "message"
        ]
        assert any(
            case.words in reason for reason in result["detail"]["recompile_reasons"]
        )
        return
    assert result["outcome"] == "recompile_limit"
    assert result["message"].startswith(
        "compiled anew until torch's limit, and eager from there"
    )
    assert case.words in result["message"]
    assert (
        "axis" in case.words or "(model.py:10)" in result["message"]
    )  # a size has no line


def test_a_recompile_at_each_call_is_no_slow_ok_below_the_limit(
    work: Path, try_it: Try
) -> None:
    """With one shape and a limit that no trial reaches."""
    body, one = (
        "self.n += 1\nreturn self.layer(x) * self.n",
        "def get_inputs(n): return X",
    )
    write(work, body, "self.n = 0", "x", one.replace("X", "torch.ones(n, 4)"))
    path = work / "model.py"
    path.write_text(path.read_text() + "torch._dynamo.config.recompile_limit = 1000\n")
    result = try_it("model.py")
    assert (result["outcome"], result["step"]) == ("recompile_limit", "measure")
    assert "while it was timed: the number self.n changes" in result["message"]


@pytest.mark.parametrize("rate", ["0.1", "torch.tensor(0.1)"])
def test_a_learning_rate_that_is_a_number(
    work: Path, try_it: Try, monkeypatch: pytest.MonkeyPatch, rate: str
) -> None:
    """A schedule sets another: torch 2.13 makes one program for all others, static one for each."""
    monkeypatch.setattr(later, "schedule", SCHEDULE)
    optimizer = (
        f"def get_optimizer(m): return torch.optim.SGD(m.parameters(), lr={rate})"
    )
    write(
        work,
        "return self.layer(x)",
        "",
        "x",
        "def get_inputs(n): return torch.ones(n, 4)",
    )
    path = work / "model.py"
    path.write_text(f"{path.read_text()}\n{optimizer}\n")
    config = CompileConfig("aot_eager", scope="step")
    result: dict[str, Any] = try_it("model.py", "train_step", config=config.to_dict())
    assert result["outcome"] == "ok", result["message"]
    notes = [
        note for note in result["notes"] if "learning-rate schedule recompiles" in note
    ]
    assert len(notes) == (rate == "0.1")
    assert all("SGD(params, lr=torch.tensor(0.1" in note for note in notes)
