"""What both scripts share: targets, parts in processes of their own, and NVIDIA AITune 0.6.

AITune imports TensorRT and its kin, whatever is tuned: modules of that kind that are not here are
replaced by empty ones, which nothing below uses.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
TARGETS, FOUND = HERE / "targets", HERE / "two_cores.json"
MODES = (None, "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_FOR_GPUS = (
    "modelopt",
    "polygraphy",
    "pynvml",
    "tensorrt",
    "torch_tensorrt",
    "torchao",
)


def target(name: str) -> Any:
    """The module of a target."""
    sys.path.insert(0, str(TARGETS))
    return importlib.import_module(name)


def part(script: str, *words: str, seconds: float | None = None) -> dict[str, Any]:
    """The last line, in JSON, of a part of a script in a process of its own."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, script, *words],
            stdout=subprocess.PIPE,
            text=True,
            timeout=seconds,
        )
        lines = done.stdout.strip().splitlines()
        ended = f"exit {done.returncode}" if done.returncode else ""
        found = json.loads(lines[-1]) if lines and not ended else {"ended": ended}
    except subprocess.TimeoutExpired:
        found = {"ended": f"not within {seconds:.0f} s"}
    return {**found, "wall_s": round(time.monotonic() - began, 1)}


def keep(name: str, found: Any) -> None:
    """Write what was found into the recorded results."""
    every = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    FOUND.write_text(json.dumps({**every, name: found}, indent=1) + "\n")


def aitune(name: str) -> dict[str, Any]:
    """Its pick of eager mode and Inductor's modes, and the speed-up that it reports."""
    missing = tuple(n for n in _FOR_GPUS if not importlib.util.find_spec(n))
    sys.meta_path.insert(0, Empty(missing))
    import aitune.torch as ait
    import torch
    from aitune.torch.backend import (
        TorchEagerBackend,
        TorchInductorJitBackend,
        TorchInductorJitBackendConfig,
    )

    module = target(name)
    torch.manual_seed(0)
    sample = module.get_inputs()
    backends = {"eager": TorchEagerBackend()}
    for mode in MODES:
        config = TorchInductorJitBackendConfig(mode=mode)
        backends[mode or "default"] = TorchInductorJitBackend(config)
    strategy = ait.MaxThroughputStrategy([*backends.values()])
    wrapped = ait.Module(module.get_model().eval(), name, strategy=strategy)
    ait.tune(
        wrapped,
        sample[0],
        batch_sizes=[len(sample)],
        device="cpu",
        ignore_failing_modules=False,
    )
    names = {backend.describe(): mode for mode, backend in backends.items()}
    found = {
        names.get(r.backend_description, r.backend_description): float(r.speedup)
        for r in strategy.perf_validation_results
    }
    (chosen,) = wrapped.module.backends.values()
    pick = names.get(chosen.describe(), chosen.describe())
    return {"pick": pick, "speedup": found.get(pick)}


class _Stand(type):
    """Of classes that have every attribute, and take every argument."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return mock.MagicMock()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock()


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers the import of some packages with modules in which every name is a mock."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Of any module of these packages."""
        if name.split(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        vars(module)["__version__"] = "1.0"

        def give(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            # It may be a base, a field's type or an error.
            return _Stand(name, (Exception,), {})

        vars(module)["__getattr__"] = give
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass
