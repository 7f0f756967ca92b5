"""Plain torch: a whole program, which builds the model and applies the settings of every phase."""

from __future__ import annotations

import ast
import re

from autocompile.errors import ExportError
from autocompile.export.choices import (
    Choice,
    Report,
    command,
    device_of,
    header,
    is_rl,
    states_differ,
)
from autocompile.export.lines import imports, made_optimizer, names, phase_lines, uses_apply
from autocompile.export.python import having_form, refusal
from autocompile.export.text import comment, literal, program, quoted
from autocompile.settings.config import EAGER
from autocompile.settings.phases import TRAIN_STEP, phase_of
from autocompile.settings.tuned import Tuned

__all__ = ["export"]

_TRAIN_STEP = """def train_step(inputs):
    optimizer.zero_grad(set_to_none=True)
    if hasattr(model, "forward_train"):  # an RLModule of RLlib
        output = model.forward_train(inputs)
    elif isinstance(inputs, dict):
        output = model(**inputs)
    else:
        output = model(*inputs) if isinstance(inputs, (list, tuple)) else model(inputs)
    loss = get_loss(output, inputs)
    loss.backward()
    optimizer.step()
    return loss.detach()
"""

_SUM = '''def get_loss(output, inputs):
    """What was measured: the sum of all floating outputs. Put your own loss here."""
    leaves = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor)]
    return sum(x.float().sum() for x in leaves if x.requires_grad)
'''

_OWN_STATE = '''DEFAULTS = torch.get_num_threads(), torch.get_float32_matmul_precision()


def in_own_state(function, threads, precision):
    """The function with the threads and the precision that it was measured with. Both are global
    in torch, and the phases differ. Other code runs with those of the last call.
    """

    def call(*args, **kwargs):
        torch.set_num_threads(threads or DEFAULTS[0])
        torch.set_float32_matmul_precision(precision or DEFAULTS[1])
        return function(*args, **kwargs)

    return call
'''
_UNKNOWN_OPTIMIZER = """\
# Put your own optimizer here: the run does not record how to build it.
optimizer = torch.optim.Adam(model.parameters())"""


def export(report: Report) -> str:
    """A program that defines ``model`` and, if a step is tuned, ``optimizer``."""
    found = having_form(report)
    build = [str(line) for line in report["target"].get("build") or ()]
    if not build:
        raise ExportError(
            "cannot write a program: the model was passed as a Python object",
            hint=command(report, "--to python"),
        )
    if error := _why_not_python("\n".join(build)):
        raise ExportError(
            f"the report's lines that build the model are not Python: {error}",
            hint="tune the target again: its report.json was edited",
        )
    faster = [choice for choice in found if choice.config is not None]
    configs = [choice.config for choice in faster if choice.config]
    evidence = [comment(choice.said) for choice in found]
    apart = bool(faster) and states_differ(found)
    steps = any(phase_of(choice.phase).steps for choice in faster)
    trains = any(choice.phase == TRAIN_STEP for choice in faster)
    lines = [line for choice in found for line in _lines(report, choice, apart)]
    is_made = any(line.startswith("optimizer = ") for line in lines)
    settings = ""
    if any(uses_apply(report, config) for config in configs):
        settings = f"SETTINGS = {literal(Tuned.from_report(report).to_dict(), '')}"
    return program(
        header(report, "torch.compile settings") + "".join(evidence),
        _imports(build, trains),
        refusal(report, faster),
        "\n".join(sorted({line for config in configs for line in imports(report, config)})),
        settings,
        _model(report, build, trains),
        _optimizer(report) if steps and not is_made else "",
        _OWN_STATE if apart else "",
        _loss(report) if trains else "",
        _TRAIN_STEP if trains else "",
        "\n".join(lines),
    )


def _loss(report: Report) -> str:
    """The target's own loss, from the module that defines its model, or the measured sum."""
    build = [str(line) for line in report["target"].get("build") or ()]
    own = re.match(r"model = (.+)\['get_model'\]\(\)$", build[-1]) if build else None
    is_own = "loss" in (report["target"].get("choices") or {})
    return f"get_loss = {own[1]}['get_loss']" if own and is_own else _SUM


def _why_not_python(text: str) -> str:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        return str(error)
    return ""


def _imports(build: list[str], trains: bool) -> str:
    standard = "".join(f"{line}\n" for line in build if line.startswith("import "))
    tree = "\nfrom torch.utils._pytree import tree_leaves" * trains
    own = "" if "import torch\n" in standard else "\nimport torch"
    return f"{standard}{own}{tree}"


def _model(report: Report, build: list[str], trains: bool) -> str:
    lines = ["# Paths are relative to the directory that the model was tuned from."]
    lines += [line for line in build if line and not line.startswith("import ")]
    if (device := device_of(report)) != "cpu":
        lines += [f"model.to({quoted(device)})"]
    if not (trains or is_rl(report)):
        lines += ["model.eval()"]
    return "\n".join(lines)


def _optimizer(report: Report) -> str:
    """Code that builds the run's optimizer, if needed by the target's own function."""
    if made := made_optimizer(report, EAGER):
        return f"optimizer = {made}"
    line = str((report["target"].get("optimizer") or {}).get("build") or "")
    return _UNKNOWN_OPTIMIZER if not line or _why_not_python(line) else line


def _lines(report: Report, choice: Choice, apart: bool) -> list[str]:
    lines = phase_lines(report, choice, "SETTINGS", own_state=not apart)
    if not apart or is_rl(report):
        return lines
    if choice.config is None:
        given = "in_own_state(function, None, None)"
        return [f"# {choice.phase}: call it through {given}"] * (choice.verdict != "failed")
    config, phase = choice.config, phase_of(choice.phase)
    compiled, name = (phase.whole, phase.whole) if phase.whole else names(choice)
    made = any(line.startswith(f"{name} = ") for line in lines) or name == compiled
    precision = literal(None if config.precision == "default" else config.precision)
    called = name if made else compiled
    new = choice.phase if name == "model" else name
    return [*lines, f"{new} = in_own_state({called}, {config.threads}, {precision})"]
