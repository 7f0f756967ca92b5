"""Trials by the real worker in the tests' own process: no seconds for a new interpreter.

What is timed is timed for a moment only; tests of measuring have trials of their own.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch._dynamo.backends.registry import _COMPILER_FNS

from autocompile.protocol.requests import _CLASSES, Header
from autocompile.search.records import of_only_side
from autocompile.store.record import Measurement
from autocompile.trial import worker
from autocompile.trial.measure.timing import block
from autocompile.trial.tasks import later, session

__all__ = ["Try", "timed_for_a_moment", "trials"]

Try = Callable[..., dict[str, Any]]
LIMITS = {"half_width": 0.5, "max_s": 0.1, "front_s": 0.1, "block_s": 0.005}
_CALLS = 6


@contextlib.contextmanager
def trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Try]:
    """A function that runs a trial of a target (or its probe, by ``kind``) and gives its result."""
    threads, torch_state = torch.get_num_threads(), torch.get_rng_state()
    states = random.getstate(), np.random.get_state()
    torch._dynamo.list_backends(None)  # registers torch's own
    before = {
        *_COMPILER_FNS,
        "onnxrt",
    }  # which its entry point brings once in a process

    def run(
        target: str | Path,
        phase: str = "forward",
        backend: str = "aot_eager",
        **more: Any,
    ):
        _forget(before)
        request = {
            "kind": "trial",
            "number": 0,
            "target": str(target),
            "phase": phase,
            "phases": [phase],
            "sides": [{"config": more.pop("config", {"backend": backend})}],
            "backends": [],
            "batch_size": 4,
            "device": "cpu",
            "seed": 0,
            "limits": LIMITS,
            **more,
        }
        own = _CLASSES[request["kind"]].__dataclass_fields__
        known = {"kind", *Header.__dataclass_fields__, *own}
        request = {name: value for name, value in request.items() if name in known}
        (tmp_path / "request.json").write_text(json.dumps(request))
        path, modules = list(sys.path), set(sys.modules)
        capsys.readouterr()
        worker.run(str(tmp_path), None, "")
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        return sent(json.loads(capsys.readouterr().out.splitlines()[-1]))

    with contextlib.ExitStack() as stack:
        # What targets and the worker set for good.
        flags = {"fail_on_recompile_limit_hit": False, "suppress_errors": False}
        flags |= {"recompile_limit": torch._dynamo.config.recompile_limit}
        stack.enter_context(torch._dynamo.config.patch(**flags, allow_rnn=False))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(session, "screen", timed_for_a_moment)
        # test_optimizers has it
        patch.setattr(later, "schedule", lambda *_: None)
        yield run
    _forget(before)
    torch._dynamo.reset()
    torch.set_num_threads(threads)
    torch.set_rng_state(torch_state)
    random.setstate(states[0])
    np.random.set_state(states[1])


def sent(result: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """A result; of a setting's first trial what was sent of the setting, and how it ended."""
    sides = result.get("sides")
    if not sides or sides[0]["number"] != number:
        return result
    ended = {name: result[name] for name in ("outcome", "step", "message")}
    return {**of_only_side(result), **ended}


def timed_for_a_moment(eager: Any, compiled: Any, timer: Any, *_: Any) -> Any:
    """Three rounds: more calls than a backend that is right at first is given."""
    order = [eager, compiled, compiled, eager, eager, compiled]
    times: dict[int, list[float]] = {id(eager): [], id(compiled): []}
    for side in order:
        times[id(side)].append(block(side, _CALLS, timer))
    eager_s, compiled_s = (tuple(times[id(side)]) for side in (eager, compiled))
    return Measurement(eager_s, compiled_s, calls=(_CALLS, _CALLS)), []


def _forget(names: set[str]) -> None:
    for name in set(_COMPILER_FNS) - names:
        del _COMPILER_FNS[name]
