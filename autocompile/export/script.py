"""Plain torch: a whole program, which builds the model and applies the settings of every phase."""

from __future__ import annotations

import ast

from autocompile.errors import ExportError
from autocompile.export import functions
from autocompile.export.common import (
    Choice,
    Report,
    build_lines,
    command,
    comment,
    header,
    is_rl,
    literal,
    program,
    quoted,
    states_differ,
)
from autocompile.export.lines import imports, made_optimizer, phase_lines, uses_apply
from autocompile.export.python import having_form, refusal
from autocompile.settings.phases import FORWARD, OPTIMIZER_STEP, TRAIN_STEP, phase_of
from autocompile.settings.tuned import Tuned

__all__ = ["export"]

_CALLED = {FORWARD: "model", OPTIMIZER_STEP: "step", TRAIN_STEP: TRAIN_STEP}


def export(report: Report) -> str:
    """A program that defines ``model`` and, if a step is tuned, ``optimizer``.

    Raises:
        ExportError: as for ``--to python``, or the target was a Python object.
    """
    found = having_form(report)
    build = build_lines(report)
    if not build:
        raise ExportError(
            "cannot write a program: the model was passed as a Python object",
            hint=command(report, "--to python"),
        )
    faster = [choice for choice in found if choice.config is not None]
    evidence = [comment(f"{choice.phase}: {_said(choice)}") for choice in found]
    apart = states_differ(found)
    steps = any(phase_of(choice.phase).is_function for choice in faster)
    lines = [line for choice in found for line in _lines(report, choice, apart and bool(faster))]
    is_made = any(line.startswith("optimizer = ") for line in lines)
    settings = ""
    if any(uses_apply(report, c.config) for c in faster if c.config):
        settings = f"SETTINGS = {literal(Tuned.from_report(report).to_dict(), '')}"
    trains = any(choice.phase == TRAIN_STEP for choice in faster)
    return program(
        header(report, "torch.compile settings") + "".join(evidence),
        _imports(build, trains),
        *refusal(report, faster),
        "\n".join(sorted({line for c in faster if c.config for line in imports(report, c.config)})),
        settings,
        _model(report, build, trains),
        _optimizer(report) if steps and not is_made else "",
        functions.OWN_STATE if apart and faster else "",
        functions.TRAIN_STEP if trains else "",
        "\n".join(lines),
    )


def _said(choice: Choice) -> str:
    if choice.config is not None:
        return choice.evidence
    return f"{choice.verdict.replace('_', ' ')}: {choice.evidence}"


def _imports(build: list[str], trains: bool) -> str:
    standard = "".join(f"{line}\n" for line in build if line.startswith("import "))
    tree = "\nfrom torch.utils._pytree import tree_leaves" * trains
    own = "" if "import torch\n" in standard else "\nimport torch"
    return f"{standard}{own}{tree}"


def _model(report: Report, build: list[str], trains: bool) -> str:
    device = str(report["environment"].get("device") or "cpu")
    lines = [line for line in build if line and not line.startswith("import ")]
    if device != "cpu":
        lines += [f"model.to({quoted(device)})"]
    if not (trains or is_rl(report)):
        lines += ["model.eval()"]
    note = "# Paths are relative to the directory that the model was tuned from.\n"
    return note + "\n".join(lines)


def _optimizer(report: Report) -> str:
    """Code that builds the run's optimizer, if needed by the target's own function."""
    if made := made_optimizer(report, "default"):
        return f"optimizer = {made}"
    line = str((report["target"].get("optimizer") or {}).get("build") or "")
    try:
        ast.parse(line)
    except (SyntaxError, ValueError):
        line = ""
    if not line:
        return "# Put your own optimizer here: the run does not record how to build it.\n" + (
            "optimizer = torch.optim.Adam(model.parameters())"
        )
    return line


def _lines(report: Report, choice: Choice, apart: bool) -> list[str]:
    lines = phase_lines(report, choice, "SETTINGS", own_state=not apart)
    if not apart or is_rl(report):
        return lines
    if choice.config is None:
        given = "in_own_state(function, None, None)"
        return [f"# {choice.phase}: call it through {given}"] * (choice.verdict != "failed")
    config, name = choice.config, _CALLED[choice.phase]
    made = any(line.startswith(f"{name} = ") for line in lines) or name != "step"
    precision = literal(None if config.precision == "default" else config.precision)
    called = name if made else "optimizer.step"
    new = FORWARD if name == "model" else name
    return [*lines, f"{new} = in_own_state({called}, {config.threads}, {precision})"]
