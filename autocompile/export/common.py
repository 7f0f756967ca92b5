"""What every exporter needs: the choice of each phase, its evidence, and safe Python text.

A report may have been edited by hand or come from someone else, so nothing of it is pasted into
a program: values are written as literals, and text goes into comments in printable ASCII.
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
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.store import runs

__all__ = [
    "RL_FORWARD_PHASES",
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

RL_FORWARD_PHASES = ("forward_exploration", "forward_inference", "forward_train")

_RL_KINDS = ("AlgorithmConfig", "RLModule", "RLModuleSpec")
_WIDTH = 88
_ASCII = {0xB1: "+-", 0xB7: "-", 0xD7: "x", 0x2013: "-", 0x2014: "-", 0x2192: "->"}


@dataclass(frozen=True)
class Choice:
    """What a report says about one phase.

    Attributes:
        phase: the phase's name.
        verdict: ``faster``, ``keep_eager`` or ``failed``.
        config: the setting to use, which may compile nothing and lay weights out otherwise, say;
            None when all stays as it is.
        evidence: one sentence for a comment.
        batch_size: that it is for; None where the phase has none, or nothing is to be used.
        processes: in how many fresh processes it was confirmed.
        speedup: over eager mode, with its 95 % interval; None where nothing is to be used.
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
        """Whether it was in as many fresh processes as a decision takes, if it is one at all."""
        return self.config is None or self.processes >= SETS[0]


def states_differ(found: Iterable[Choice]) -> bool:
    """Whether phases that work were measured with other threads or precision than one another."""
    configs = [choice.config or EAGER for choice in found if choice.verdict != "failed"]
    return len({(config.threads, config.precision) for config in configs}) > 1


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
    """The choice of a setting that is faster than eager, by its entry of the report."""
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
        report: names machine and torch.
        best: a setting's entry of the report: its speed-up, batch size and number.
        config: the setting; it may be one of another interpreter, with its own torch.
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
    """What the report says of the interpreter that a setting runs under; empty if nothing."""
    if config.environment == "default":
        return report["environment"]  # type: ignore[no-any-return]
    return (report.get("environments") or {}).get(config.environment) or {}


def speedup_text(speedup: Mapping[str, float] | None) -> str:
    """``1.41x [1.39, 1.42]``: the estimate and its 95 % interval."""
    if not speedup:
        return "(no interval)"
    return f"{speedup['value']:.2f}x [{speedup['low']:.2f}, {speedup['high']:.2f}]"


def _machine(report: Report) -> str:
    environment = report["environment"]
    return f"{environment.get('device_name') or 'this machine'} ({environment.get('device')})"


def is_rl(report: Report) -> bool:
    """Whether the target is an RLModule or what builds one."""
    target = report["target"]
    return bool(
        target.get("is_rl")
        or target.get("algorithm")
        or target.get("kind") in _RL_KINDS
        or any(phase in report["phases"] for phase in RL_FORWARD_PHASES)
    )


def not_carried(config: CompileConfig, carried: Iterable[str]) -> list[str]:
    """``name=value`` for each field of a setting that differs from torch's default and is lost."""
    kept, mine, plain = set(carried), config.to_dict(), DEFAULT_INDUCTOR.to_dict()
    return [f"{n}={mine[n]!r}" for n in plain if mine[n] != plain[n] and n not in kept]


def build_lines(report: Report) -> list[str]:
    """The source lines that define ``model``; empty when the target was an object in Python.

    Raises:
        ExportError: they are not Python.
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
    """The comment at the top of every script: what it is, from where, measured on what."""
    spec = report["target"].get("spec") or "an object given in Python"
    found = f"{title}, found by autocompile {report['environment'].get('autocompile')} for {spec}."
    whence = f"From {report.get('run_dir')}, measured on {_machine(report)}."
    return comment(found) + comment(whence)


def command(report: Report, form: str) -> str:
    """The command that writes another form of the same run: ``form`` is ``--to python``, say."""
    return f"autocompile export {runs.shown(str(report.get('run_dir', 'last')))} {form}"


def one_line(text: object) -> str:
    """Text as one line of printable ASCII."""
    plain = " ".join(str(text).translate(_ASCII).split())
    return "".join(c if " " <= c <= "~" else "?" for c in plain)


def wrapped(text: object, width: int = _WIDTH) -> list[str]:
    """Text as lines of printable ASCII that fit."""
    return textwrap.wrap(one_line(text), width, break_long_words=False, break_on_hyphens=False)


def comment(text: object, indent: str = "") -> str:
    """Text as comment lines, each with its line end."""
    return "".join(f"{indent}# {line}\n" for line in wrapped(text, _WIDTH - 2 - len(indent)))


def quoted(text: str) -> str:
    """A string literal in ASCII, in double quotes where that needs no escape."""
    plain = ascii(text)
    return plain if '"' in plain or "\\'" in plain else f'"{plain[1:-1]}"'


def literal(value: Any, indent: str | None = None) -> str:
    """A value of JSON as a Python expression.

    Args:
        value: a string, number, boolean, None, list or dict.
        indent: of the line it begins on, to write one entry per line; None for one line.
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
    """Blocks of source as one file, with the blank lines that a formatter would leave."""
    text = ""
    last = ""
    for block in filter(None, (block.strip("\n") for block in blocks)):
        wide = any(re.search(r"^def ", part, re.MULTILINE) for part in (last, block))
        text += ("\n\n\n" if wide else "\n\n") * bool(text) + block
        last = block
    return text + "\n"
