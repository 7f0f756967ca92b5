"""The best setting of each phase as JSON, for programs."""

from __future__ import annotations

import json
from typing import Any

from autocompile.export.common import Choice, Report, choices

__all__ = ["export"]

_ABOUT = {
    "torch_compile": "keyword arguments for torch.compile; null: leave the phase uncompiled",
    "config": "all of the setting: what is no argument of torch.compile has to be done beside it",
    "speedup": "eager time over compiled time of paired blocks, with its 95 % interval",
    "throughput": "of the compiled side, in its unit; eager_throughput is eager's",
    "compile_s": "seconds of the first call beyond a steady one, empty cache; warm_: filled cache",
    "break_even_calls": "calls after which the compile time is repaid",
}
_EVIDENCE = (
    "batch_size",
    "speedup",
    "speedup_against_default",
    "throughput",
    "eager_throughput",
    "compile_s",
    "warm_compile_s",
    "peak_memory_bytes",
    "break_even_calls",
    "confirmed_processes",
    "weights_live",
)


def _arguments(choice: Choice) -> dict[str, Any] | None:
    is_compiled = choice.config is not None and not choice.config.is_eager
    return choice.config.compile_kwargs() if choice.config and is_compiled else None


def export(report: Report) -> str:
    """The result as a JSON document; its key ``about`` says what the numbers are.

    Raises:
        ExportError: no phase has a result.
    """
    phases: dict[str, Any] = {}
    for name, choice in choices(report).items():
        phase = report["phases"][name]
        best = phase.get("best") or {}
        phases[name] = {
            "verdict": choice.verdict,
            "reason": phase.get("reason"),
            "torch_compile": _arguments(choice),
            "config": best.get("config"),
            "trial": best.get("number"),
            **{key: best.get(key) for key in _EVIDENCE},
        }
    document = {
        "schema": report["schema"],
        "target": report["target"].get("spec"),
        "run_dir": report.get("run_dir"),
        "environment": report["environment"],
        "environments": report.get("environments") or {},
        "about": _ABOUT,
        "phases": phases,
    }
    return json.dumps(document, indent=2) + "\n"
