"""Tries two changes of the learning rate, as a scheduler makes them.

Dynamo treats a learning rate that is a Python number as a constant: each new value may recompile
the step, up to the recompile limit, after which torch silently runs eager. By the second change it
is known whether the number has become dynamic.
"""

from __future__ import annotations

from typing import Any

import torch

from autocompile.protocol.results import TrialResult
from autocompile.store.record import Outcome
from autocompile.trial.inspect import telemetry
from autocompile.trial.phases.side import Side
from autocompile.trial.process.failures import Failed, first_words
from autocompile.trial.verify.verifier import Verifier

__all__ = ["try_schedule"]

_FACTORS = (0.7, 0.49)  # a side that uses an older rate is off by 40 % or more


def try_schedule(verifier: Verifier, compiled: Side, result: TrialResult, budget_s: float) -> None:
    """Change the learning rate on both sides, step, and compare; then put everything back.

    A note with advice joins the notes if a change recompiles the step, fails, or may take longer
    than ``budget_s``. Nothing is timed after it: what it compiles stays in Dynamo's cache.

    Raises:
        Failed: ``wrong_output``, if a step does not follow the learning rate.
    """
    eager = verifier.eager
    groups = [g for s in (eager, compiled) for o in s.optimizers for g in o.param_groups]
    rates = [float(g["lr"]) for g in groups if isinstance(g.get("lr"), (float, torch.Tensor))]
    if not groups or len(rates) < len(groups):
        return
    rate, kind = compiled.optimizers[0].param_groups[0]["lr"], type(compiled.optimizers[0]).__name__
    is_number = not isinstance(rate, torch.Tensor)
    advice = f"; pass it as a tensor, e.g. {kind}(params, lr=torch.tensor({rate:g}))" * is_number
    compile_s = result.compile_s or 0.0
    if is_number and len(_FACTORS) * compile_s > budget_s:
        result.notes.append(
            "whether a learning-rate schedule recompiles this step was not tried: it takes "
            f"{compile_s:.0f} s to compile"
        )
        return
    eager.restore()
    kept, before, problem = eager.kept, telemetry.dynamo_facts().graphs, None
    try:
        for change, factor in enumerate(_FACTORS, 1):
            _set_rates(groups, rates, factor)
            eager.keep()
            compiled.adopt(eager)
            verifier.seeded_call(compiled, change)
            problem = problem or verifier.steps.later(eager, compiled)
    except Exception as error:
        words = first_words(error)
        result.notes.append(f"after a change of the learning rate this step fails: {words}")
        return
    finally:
        _set_rates(groups, rates, 1.0)
        eager.kept = kept
        eager.restore()
        compiled.adopt(eager)
    if problem:
        what = f"the step does not follow the learning rate: {problem}"
        raise Failed(Outcome.WRONG_OUTPUT, what + advice)
    if recompiles := telemetry.dynamo_facts().graphs - before:
        what = "a learning-rate schedule recompiles this step once"
        if recompiles > 1:
            what = "each change of the learning rate recompiles this step, up to torch's limit"
        result.notes.append(what + advice)


def _set_rates(groups: list[dict[str, Any]], rates: list[float], factor: float) -> None:
    """Like torch's schedulers: fill a tensor, replace a number."""
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * factor)
        else:
            group["lr"] = rate * factor
