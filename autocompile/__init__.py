"""Finds the fastest ``torch.compile`` settings that keep a model right, on this machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autocompile.api import load, tune
    from autocompile.errors import (
        AutocompileError,
        ExitCode,
        ExportError,
        NothingWorked,
        RunError,
        TargetError,
        UsageError,
    )
    from autocompile.estimate.intervals import Interval
    from autocompile.estimate.limits import Limits
    from autocompile.progress import Progress
    from autocompile.result import Result
    from autocompile.runtime.apply import apply
    from autocompile.runtime.recording import record
    from autocompile.settings.config import CompileConfig
    from autocompile.settings.searchspace import SearchSpace
    from autocompile.store.record import Outcome, Record

__version__ = "0.1.0"

__all__ = [
    "AutocompileError",
    "CompileConfig",
    "ExitCode",
    "ExportError",
    "Interval",
    "Limits",
    "NothingWorked",
    "Outcome",
    "Progress",
    "Record",
    "Result",
    "RunError",
    "SearchSpace",
    "TargetError",
    "UsageError",
    "apply",
    "load",
    "record",
    "tune",
]

_HOME = {
    "CompileConfig": "settings.config",
    "Interval": "estimate.intervals",
    "Limits": "estimate.limits",
    "Outcome": "store.record",
    "Progress": "progress",
    "Record": "store.record",
    "Result": "result",
    "SearchSpace": "settings.searchspace",
    "apply": "runtime.apply",
    "load": "api",
    "record": "runtime.recording",
    "tune": "api",
}


def __getattr__(name: str) -> Any:
    """Import on first use: a trial's interpreter needs no Optuna, and ``--help`` no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
