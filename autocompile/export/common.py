"""Common parts of the exporters: the choice of each phase, its evidence, and safe Python text.

A report is untrusted, so none of its text becomes code: values are written as literals, and text
only appears in comments, in printable ASCII.
"""

from __future__ import annotations

import ast
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autocompile.errors import ExportError
from autocompile.estimate.decision import SETS
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.store import runs

__all__ = [
    "Choice",
    "Report",
    "build_lines",
    "choices",
    "command",
    "comment",
    "environment_of",
    "evidence_of",
    "header",
    "is_rl",
    "literal",
    "not_carried",
    "of_row",
    "one_line",
    "program",
    "quoted",
    "speedup_text",
    "states_differ",
    "wrapped",
]

Report = Mapping[str, Any]

_RL_KINDS = ("AlgorithmConfig", "RLModule", "RLModuleSpec")
_WIDTH = 88
_ASCII = {0xB1: "+-", 0xB7: "-", 0xD7: "x", 0x2013: "-", 0x2014: "-", 0x2192: "->"}


@dataclass(frozen=True)
class Choice:
    """The result of one phase.

    Attributes:
        phase: the phase's name.
        verdict: ``faster``, ``keep_eager`` or ``failed``.
        config: the setting to use, which may also be eager with changes; None: no change.
        evidence: a sentence for a comment.
        batch_size: that it is for; None without a setting or batch size.
        processes: number of fresh processes that confirmed it.
        speedup: over eager, with its 95 % interval; None without a setting.
    """

    phase: str
    verdict: str
    config: CompileConfig | None
    evidence: str
    batch_size: int | None = None
    processes: int = 0
    speedup: Mapping[str, float] | None = None

    @property
    def is_confirmed(self) -> bool:
        """Whether enough fresh processes confirmed it; True without a setting."""
        return self.config is None or self.processes >= SETS[0]


def states_differ(found: Iterable[Choice]) -> bool:
    """Whether the phases with a result differ in threads or precision."""
    configs = [choice.config or EAGER for choice in found if choice.verdict != "failed"]
    return len({str(config.process) for config in configs}) > 1


def choices(report: Report) -> dict[str, Choice]:
    """The choice of each phase, in the order of the report.

    Raises:
        ExportError: no phase has a result.
    """
    found = {name: _choice(report, name, phase) for name, phase in report["phases"].items()}
    if all(choice.verdict == "failed" for choice in found.values()):
        raise ExportError(
            "there is nothing to export: no phase has a result",
            *(one_line(f"{choice.phase}: {choice.evidence}") for choice in found.values()),
            hint=f"autocompile show {runs.shown(str(report.get('run_dir', 'last')))}",
        )
    return found


def _choice(report: Report, name: str, phase: Mapping[str, Any]) -> Choice:
    verdict, best, reason = phase["verdict"], phase.get("best"), phase.get("reason")
    if verdict == "failed" or best is None:
        return Choice(name, "failed", None, reason or "no setting worked")
    config = CompileConfig.from_dict(best["config"])
    if verdict == "keep_eager" or config.is_baseline:
        return Choice(name, "keep_eager", None, reason or "nothing is faster than eager")
    return of_row(name, report, best, config, evidence_of(report, best, config))


def of_row(
    name: str,
    report: Report,
    best: Mapping[str, Any],
    config: CompileConfig,
    evidence: str,
) -> Choice:
    """The choice of a setting that is faster than eager, from its entry in the report."""
    return Choice(
        name,
        "faster",
        config,
        evidence,
        best.get("batch_size"),
        int(best.get("confirmed_processes") or 0),
        best.get("speedup"),
    )


def evidence_of(report: Report, best: Mapping[str, Any], config: CompileConfig) -> str:
    """``1.41x [1.39, 1.42] as fast as eager at batch size 16 (trial 5, ...), torch 2.13, ...``.

    Args:
        report: has the machine and torch.
        best: the setting's entry in the report, with speed-up, batch size and number.
        config: the setting, which may belong to another interpreter.
    """
    text = f"{speedup_text(best.get('speedup'))} as fast as eager"
    if best.get("batch_size") is not None:
        text += f" at batch size {best['batch_size']}"
    text += f" (trial {best['number']}"
    if processes := best.get("confirmed_processes"):
        text += f", confirmed in {processes} fresh processes"
    there = environment_of(report, config)
    text += f"); torch {there.get('torch', '(not known)')} on {_machine(report)}"
    if config.environment != "default":
        text += f", in the Python environment {config.environment}"
    return text


def environment_of(report: Report, config: CompileConfig) -> Mapping[str, Any]:
    """The report's description of a setting's interpreter; empty if unknown."""
    if config.environment == "default":
        return report["environment"]  # type: ignore[no-any-return]
    return (report.get("environments") or {}).get(config.environment) or {}


def speedup_text(speedup: Mapping[str, float] | None) -> str:
    """The estimate and its 95 % interval, as ``1.41x [1.39, 1.42]``."""
    if not speedup:
        return "(no interval)"
    return f"{speedup['value']:.2f}x [{speedup['low']:.2f}, {speedup['high']:.2f}]"


def _machine(report: Report) -> str:
    environment = report["environment"]
    return f"{environment.get('device_name') or 'this machine'} ({environment.get('device')})"


def is_rl(report: Report) -> bool:
    """Whether the target is or builds an RLModule."""
    target = report["target"]
    return bool(
        target.get("is_rl")
        or target.get("algorithm")
        or target.get("kind") in _RL_KINDS
        or any(phase_of(name).is_rl for name in report["phases"])
    )


def not_carried(config: CompileConfig) -> list[str]:
    """``name=value`` for each field of a setting that no lines of plain torch apply."""
    lost = (d for d, _ in config.changed() if d.needs_apply or d.applied == "interpreter")
    return [f"{d.name}={getattr(config, d.name)!r}" for d in lost]


def build_lines(report: Report) -> list[str]:
    """Code lines that define ``model``; empty if the target was a Python object.

    Raises:
        ExportError: the report's lines are not Python.
    """
    lines = [str(line) for line in report["target"].get("build") or ()]
    try:
        ast.parse("\n".join(lines))
    except (SyntaxError, ValueError) as error:
        raise ExportError(
            f"the report's lines that build the model are not Python: {error}",
            hint="tune the target again: its report.json was edited",
        ) from error
    spaced: list[str] = []
    for line in lines:
        if spaced and spaced[-1].startswith(("import ", "from ")):
            spaced += [""] if not line.startswith(("import ", "from ")) else []
        spaced.append(line)
    return spaced


def header(report: Report, title: str) -> str:
    """The comment at the top of a script: title, target, run and machine."""
    spec = report["target"].get("spec") or "an object given in Python"
    found = f"{title}, found by autocompile {report['environment'].get('autocompile')} for {spec}."
    whence = f"From {report.get('run_dir')}, measured on {_machine(report)}."
    return comment(found) + comment(whence)


def command(report: Report, form: str) -> str:
    """The command that exports the same run with other options, such as ``--to python``."""
    return f"autocompile export {runs.shown(str(report.get('run_dir', 'last')))} {form}"


def one_line(text: object) -> str:
    """Text as one line of printable ASCII."""
    plain = " ".join(str(text).translate(_ASCII).split())
    return "".join(c if " " <= c <= "~" else "?" for c in plain)


def wrapped(text: object, width: int = _WIDTH) -> list[str]:
    """Text as lines of printable ASCII, at most ``width`` wide."""
    return textwrap.wrap(one_line(text), width, break_long_words=False, break_on_hyphens=False)


def comment(text: object, indent: str = "") -> str:
    """Text as comment lines with line ends."""
    return "".join(f"{indent}# {line}\n" for line in wrapped(text, _WIDTH - 2 - len(indent)))


def quoted(text: str) -> str:
    """An ASCII string literal, in double quotes if that needs no escape."""
    plain = ascii(text)
    return plain if '"' in plain or "\\'" in plain else f'"{plain[1:-1]}"'


def literal(value: Any, indent: str | None = None) -> str:
    """A JSON value as a Python expression.

    Args:
        value: a string, number, boolean, None, list or dict.
        indent: of its first line, to write one entry per line; None for a single line.
    """
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({quoted(repr(value))})"
    if isinstance(value, Mapping):
        deeper = None if indent is None else indent + "    "
        items = [f"{quoted(str(k))}: {literal(v, deeper)}" for k, v in value.items()]
        return _bracketed("{", items, "}", indent)
    if isinstance(value, Sequence):
        deeper = None if indent is None else indent + "    "
        return _bracketed("[", [literal(v, deeper) for v in value], "]", indent)
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    raise ExportError(f"a setting cannot hold a {type(value).__name__}")


def _bracketed(opening: str, items: list[str], closing: str, indent: str | None) -> str:
    if indent is None or not items:
        return opening + ", ".join(items) + closing
    return opening + "\n" + "".join(f"{indent}    {i},\n" for i in items) + indent + closing


def program(*blocks: str) -> str:
    """Blocks of code as one file, with a formatter's blank lines."""
    text = ""
    last = ""
    for block in filter(None, (block.strip("\n") for block in blocks)):
        wide = any(re.search(r"^def ", part, re.MULTILINE) for part in (last, block))
        text += ("\n\n\n" if wide else "\n\n") * bool(text) + block
        last = block
    return text + "\n"
