"""RLlib: an AlgorithmConfig whose ``torch_compile_*`` fields hold the tuned values.

Read in ray 2.60, ``rllib/algorithms/algorithm_config.py`` and
``rllib/core/learner/torch/torch_learner.py``: what the fields do not do is said in the script.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autocompile.errors import ExportError
from autocompile.export.common import (
    Choice,
    Report,
    comment,
    header,
    is_rl,
    literal,
    not_carried,
    program,
    wrapped,
)
from autocompile.export.own_size import own_choices

__all__ = ["export", "framework_kwargs", "shortfall"]

_WORKER_PHASES = ("forward_exploration", "forward_inference")
_LEARNER_PHASES = ("train_step", "forward_train", "optimizer_step")
_CARRIED = ("backend", "mode")
_BASE = "ray.rllib.algorithms.algorithm_config:AlgorithmConfig"


@dataclass(frozen=True)
class _Side:
    """The fields of the worker or of the learner, and where they come from."""

    name: str
    choice: Choice

    @property
    def arguments(self) -> dict[str, Any]:
        prefix = f"torch_compile_{self.name}"
        config = self.choice.config
        if config is None or config.is_eager:
            return {prefix: False}
        fields: dict[str, Any] = {prefix: True}
        if self.name == "learner":  # forward_train, ray's default, compiles nothing
            fields[f"{prefix}_what_to_compile"] = "complete_update"
        fields[f"{prefix}_dynamo_backend"] = config.backend
        # ray hands the mode on to torch.compile, where None and "default" are the same.
        fields[f"{prefix}_dynamo_mode"] = None if config.mode == "default" else config.mode
        return fields


def framework_kwargs(report: Report) -> tuple[dict[str, Any], list[str]]:
    """Keyword arguments for ``AlgorithmConfig.framework("torch", ...)``.

    Returns:
        the arguments, and a sentence for each thing that ray 2.60 ignores or cannot carry.

    Raises:
        ExportError: the target is no RLModule, or no phase has a result.
    """
    sides = _sides(report)
    return {k: v for side in sides for k, v in side.arguments.items()}, _ignored(sides)


def shortfall(report: Report) -> str:
    """Why the fields do not bring what was measured, in few words; empty where they do.

    Raises:
        ExportError: the target is no RLModule, or no phase has a result.
    """
    words: dict[str, None] = {}
    for side in _sides(report):
        if (config := side.choice.config) is None:
            continue
        if side.name == "worker" and not config.is_eager:
            words["ray's env runners never compile"] = None
        words |= dict.fromkeys(f"ray has no field for {x}" for x in not_carried(config, _CARRIED))
    return ", ".join(words)


def export(report: Report) -> str:
    """A script that defines ``apply(config)`` and prints the fields when it is run.

    Raises:
        ExportError: the target is no RLModule, or no phase has a result.
    """
    sides = _sides(report)
    algorithm, note = _algorithm(report)
    module, name = algorithm.split(":")
    ignored = _ignored(sides)
    texts = [_WARNING_HEAD, *(f"- {text}" for text in ignored), _WARNING_FOOT] if ignored else []
    warning = [line for text in texts for line in wrapped(text, 76)]
    body = ""
    for side in sides:
        body += comment(f"{side.choice.phase}: {side.choice.evidence}", " " * 8)
        body += "".join(f"        {k}={literal(v)},\n" for k, v in side.arguments.items())
    return program(
        header(report, "RLlib settings") + _warning_comment(warning),
        "import json" + ("\nimport sys" if warning else ""),
        f"{note}from {module} import {name}",
        f"WARNING = {literal(warning, '')}" if warning else "",
        _APPLY.format(arguments=body),
        f"config = apply({name}())",
        _MAIN.format(warn=_WARN if warning else ""),
    )


_WARNING_HEAD = "WARNING: ray 2.60 does not do all that these fields say."
_WARNING_FOOT = "`autocompile export last --to python` shows how to compile the module itself."

_APPLY = '''
def apply(config):
    """Put the tuned fields into an AlgorithmConfig and return it."""
    return config.framework(
        "torch",
{arguments}    )
'''

_WARN = '    print("\\n".join(WARNING), file=sys.stderr)\n'
_MAIN = """
if __name__ == "__main__":
{warn}    fields = {{k: v for k, v in vars(config).items() if k.startswith("torch_compile")}}
    print(json.dumps(fields))
"""


def _warning_comment(lines: list[str]) -> str:
    return "#\n" + "".join(f"# {line}\n" for line in lines) if lines else ""


def _sides(report: Report) -> list[_Side]:
    found = own_choices(report)
    if not is_rl(report):
        raise ExportError(
            "RLlib has no form for this result: the target is no RLModule",
            f"its phases: {', '.join(found)}",
            hint="autocompile export last --to python",
        )
    worker = _first(_WORKER_PHASES, found)
    learner = _first(_LEARNER_PHASES, found)
    sides = [("worker", worker), ("learner", learner)]
    chosen = [_Side(name, choice) for name, choice in sides if choice]
    if not chosen:
        raise ExportError(
            f"RLlib has no form for the phases {', '.join(found)}",
            hint="autocompile export last --to python",
        )
    return chosen


def _first(names: tuple[str, ...], found: Mapping[str, Choice]) -> Choice | None:
    """The first phase that has a result; a failed one only when there is no other."""
    present = [found[name] for name in names if name in found]
    return next((c for c in present if c.verdict != "failed"), present[0] if present else None)


def _algorithm(report: Report) -> tuple[str, str]:
    """``module:Class`` to import, and a comment when it is not the target's own."""
    name = str(report["target"].get("algorithm") or "")
    parts = name.replace(":", ".").split(".")
    if name.count(":") == 1 and "." not in name.split(":")[1]:
        importable = all(p.isidentifier() and not keyword.iskeyword(p) for p in parts)
        if importable and parts[0] != "__main__":
            return name, ""
    return _BASE, "# The target names no algorithm's config: call apply() on your own.\n"


def _ignored(sides: list[_Side]) -> list[str]:
    """What ray 2.60 does not do with these fields, for this result only."""
    texts = []
    for side in sides:
        config, phase = side.choice.config, side.choice.phase
        if config is None:
            continue
        if config.is_eager:
            pass
        elif side.name == "worker":
            texts.append(
                "worker: ray 2.60 never compiles env runners. Nothing calls "
                "AlgorithmConfig.get_torch_compile_worker_config(), so the torch_compile_worker "
                "fields are kept but have no effect."
            )
        else:
            texts.append(
                "learner: what_to_compile is complete_update, since forward_train compiles no "
                "module that is there when the learner is built."
            )
            if phase != "train_step":
                texts.append(
                    f"learner: the setting was measured on {phase}; ray compiles the complete "
                    "update with it."
                )
        if lost := not_carried(config, _CARRIED):
            texts.append(f"{side.name}: ray has no field for {', '.join(lost)}: dropped.")
    return texts
