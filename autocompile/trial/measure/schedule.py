"""Tries ten changes of the learning rate, as a scheduler makes them.

Dynamo treats a learning rate that is a Python number as a constant: each new value may recompile
the step, up to the recompile limit, after which torch silently runs eager.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from autocompile.store.record import Outcome, Record
from autocompile.trial.inspect import telemetry
from autocompile.trial.phases.side import Side
from autocompile.trial.process.failures import Failed, first_words
from autocompile.trial.verify.verifier import Verifier

__all__ = ["try_schedule"]

_CHANGES = 10
_DECAY = 0.7  # per change: a side that uses an older rate is off by 40 % or more


def try_schedule(verifier: Verifier, compiled: Side, result: Record, budget_s: float) -> None:
    """Change the learning rate on both sides, step, and compare; then put everything back.

    Entries ``lr_changes``, ``lr_recompiles`` and ``lr_ends_eager`` join the detail, and a note with
    advice joins the notes where there is something to say. Nothing is timed after it: what it
    compiles stays in Dynamo's cache. Stops before a change that is expected to end after
    ``budget_s``.

    Raises:
        Failed: ``wrong_output``, if a step does not follow the learning rate.
    """
    eager, theirs = verifier.eager, _groups(compiled)
    groups = [*_groups(eager), *theirs]
    if not groups or not all(_is_rate(g.get("lr")) for g in groups):
        return
    rates = [float(g["lr"]) for g in groups]
    eager.restore()
    kept, before = eager.kept, telemetry.dynamo_facts().graphs
    compile_s = result.compile_s or 0.0
    is_number = any(not isinstance(g["lr"], torch.Tensor) for g in theirs)
    next_s = compile_s if is_number else 0.0
    began = time.monotonic()
    done, ends_eager, problem, error = 0, False, None, None
    try:
        while not problem and done < _CHANGES and time.monotonic() - began + next_s <= budget_s:
            took = time.monotonic()
            _set_rates(groups, rates, _DECAY ** (done + 1))
            problem = _wrong_step(verifier, compiled, done + 1)
            next_s = time.monotonic() - took
            done += 1
    except Exception as caught:
        ends_eager = type(caught).__name__ == "FailOnRecompileLimitHit"
        error = None if ends_eager else first_words(caught)
    finally:
        _set_rates(groups, rates, 1.0)
        eager.kept = kept
        eager.restore()
        compiled.adopt(eager)
    recompiles = telemetry.dynamo_facts().graphs - before
    result.detail.update(lr_changes=done, lr_recompiles=recompiles, lr_ends_eager=ends_eager)
    advice = _advice(compiled.optimizers[0])
    if problem:
        what = f"the step does not follow the learning rate: {problem}, after change {done}"
        raise Failed(Outcome.WRONG_OUTPUT, what + advice)
    if error:
        result.notes.append(f"after a change of the learning rate this step fails: {error}")
    elif recompiles:
        result.notes.append(_recompiles(done, recompiles, ends_eager) + advice)
    elif done == 0:
        result.notes.append(
            "whether a learning-rate schedule recompiles this step was not tried: it takes "
            f"{compile_s:.0f} s to compile"
        )


def _recompiles(done: int, recompiles: int, ends_eager: bool) -> str:
    count = "once" if recompiles == 1 else f"{recompiles} times"
    said = f"a learning-rate schedule recompiles this step {count}"
    if ends_eager:
        return f"{said}, then it runs in eager"
    if done < _CHANGES:
        return f"{said} in {done} change{'s' * (done > 1)} (more were not tried, for time)"
    return said


def _advice(optimizer: Any) -> str:
    rate = optimizer.param_groups[0]["lr"]
    if isinstance(rate, torch.Tensor):
        return ""
    name = type(optimizer).__name__
    return f"; pass it as a tensor, e.g. {name}(params, lr=torch.tensor({rate:g}))"


def _groups(side: Side) -> list[dict[str, Any]]:
    return [group for o in side.optimizers for group in getattr(o, "param_groups", [])]


def _is_rate(rate: Any) -> bool:
    if isinstance(rate, torch.Tensor):
        return rate.numel() == 1 and rate.is_floating_point()
    return isinstance(rate, (int, float)) and not isinstance(rate, bool)


def _set_rates(groups: list[dict[str, Any]], rates: list[float], factor: float) -> None:
    """Like torch's schedulers: fill a tensor, replace a number."""
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * factor)
        else:
            group["lr"] = rate * factor


def _wrong_step(verifier: Verifier, compiled: Side, change: int) -> str | None:
    """Make one step of the compiled side from eager's state; returns an error of its length."""
    verifier.eager.keep()
    compiled.adopt(verifier.eager)
    verifier.seeded_call(compiled, change)
    return verifier.steps.later(verifier.eager, compiled)
