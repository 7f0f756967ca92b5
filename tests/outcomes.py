"""A run that has every outcome, made with scripted trials: ``python tests/outcomes.py FOLDER``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fakes import FakeExecutor, failed, measured, probed
from scripts import tune

from autocompile.execute.executor import Ending
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.record import Outcome, RunFolder

# Backend, then outcome, step and message of its trials.
FAILURES = {
    "aot_eager": (
        "wrong_output",
        "verify",
        "output[0]: 3 of 40 values differ, at most by 0.21",
    ),
    "cudagraphs": (
        "out_of_memory",
        "compile",
        "CUDA out of memory. Tried to allocate 20.0 GB",
    ),
    "ipex": ("stale_weights", "verify", "outputs are those of the weights before"),
    "openvino": ("crashed", "compile", "SIGSEGV in compile"),
    "nvfuser": (
        "runtime_error",
        "verify",
        "RuntimeError: shape '[4]' is invalid | `x`",
    ),
    "tensorrt": (
        "import_error",
        "import",
        "ModuleNotFoundError: No module named 'tensorrt'",
    ),
    "torch_tensorrt": ("unsupported", "compile", "needs a CUDA device"),
    "tvm": ("timeout", "compile", "no end of step compile after 300 s"),
    "hidet": ("infrastructure", "eager", "ended by another process"),
    "xla": ("not_compiled", "measure", "nothing was compiled"),
}
_LIMIT = "compiled anew until torch's limit, and eager from there: the number self.calls changes"
MODES = {"default": 1.3, "reduce-overhead": 1.32, "max-autotune": 1.6}


def script(request: Mapping[str, Any]) -> Ending:
    """How a trial ends, by its backend, mode and batch size."""
    config = request["config"]
    if config["backend"] == "xla" and request["phase"] == "train_step":
        return failed("recompile_limit", "measure", _LIMIT)
    if config["backend"] in FAILURES:
        return failed(*FAILURES[config["backend"]])
    if config["fullgraph"]:
        return failed("graph_break", message="Unsupported: print")
    if config["backend"] == "eager":
        return measured(1.0, noise=0.004, peak_memory_bytes=21_000_000)
    if config["mode"] == "reduce-overhead":
        return failed(
            "compile_error",
            message="InductorError: IndexError: list index out of range",
        )
    facts = {"graph_breaks": 1, "peak_memory_bytes": 20_500_000, "weights_live": True}
    speedup = 0.98 if request["phase"] == "train_step" else MODES[config["mode"]]
    return measured(speedup, compile_s=2.5, **facts)


def make(folder: Path) -> None:
    """Write the run."""
    target = {**probed().payload["target"], "phases": ["forward", "train_step"]}
    backends = dict.fromkeys([*FAILURES, "inductor"], "") | {"nnc": "not in this torch"}
    probe = probed(
        backends=backends,
        all_backends=sorted(backends),
        modes={name: name for name in MODES},
        target=target,
    )
    result = tune(
        "net.py",
        executor=FakeExecutor(script, probe),
        space=SearchSpace(batch_sizes=(4,)),
        effort="full",
        run_dir=folder,
    )
    last = result.trials[-1]
    run, changes = (
        RunFolder(folder),
        {"outcome": Outcome.INTERRUPTED, "measurement": None},
    )
    searched = next(r for r in reversed(result.trials) if r.role == "search")
    run.save(dataclasses.replace(searched, number=last.number + 1, **changes))
    missing = set(Outcome) - {r.outcome for r in run.read()[0]}
    assert not missing, missing


if __name__ == "__main__":
    make(Path(sys.argv[1]))
