"""Plain torch: a script that runs as it is.

It imports autocompile only where torch alone cannot do it: weights that are frozen anew when they
change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autocompile.backends import BACKENDS
from autocompile.config import EAGER, GUARD_FILTERS, CompileConfig
from autocompile.errors import ExportError
from autocompile.export import functions
from autocompile.export.common import (
    Choice,
    Report,
    build_function,
    comment,
    environment_of,
    header,
    literal,
    not_carried,
    one_line,
    optimizer_lines,
    program,
    quoted,
    states_differ,
)
from autocompile.export.own_size import own_choices

__all__ = ["demand_one_way", "export"]

_FUNCTIONS = {
    "forward": functions.FORWARD,
    "forward_exploration": functions.RL_FORWARD,
    "forward_inference": functions.RL_FORWARD,
    "forward_train": functions.RL_FORWARD,
    "optimizer_step": functions.OPTIMIZER_STEP,
    "train_step": functions.TRAIN_STEP,
}

_NO_BUILD = comment(
    "The model was handed over as an object in Python: give it to the functions above."
)

_NAMES = {
    "forward": "tuned_model",
    "optimizer_step": "optimizer_step",
    "train_step": "train_step",
}
_CALLS = {
    "forward": "tuned_model = compile_forward(model.eval())",
    "optimizer_step": "optimizer_step = compile_optimizer_step(optimizer)",
    "train_step": """forward = functools.partial(call_model, model.train())
train_step = compile_train_step(model, forward, sum_of_outputs, optimizer)""",
}


def export(report: Report) -> str:
    """A script with one function per phase; run as a program, it builds the model and compiles.

    Raises:
        ExportError: no phase has a result, or a setting is more than plain torch can do.
    """
    found = own_choices(report)
    updates = found.pop("learner_update", None)
    if updates and not found:
        raise ExportError(
            "learner_update is an update by RLlib's Learner, which has no form in plain torch",
            hint="autocompile export last --to rllib",
        )
    faster = [choice for choice in found.values() if choice.config is not None]
    blocks = report["target"].get("blocks") or {}
    for choice in found.values():
        _demand_form(report, choice, blocks.get(choice.phase, ()))
    demand_one_way(found.values())
    device = str(report["environment"].get("device") or "cpu")
    build = build_function(report, "model" if device == "cpu" else f"model.to({quoted(device)})")
    phases = [block for choice in found.values() for block in _phase(choice)]
    if any(choice.config and choice.config.guards != "all" for choice in faster):
        phases.insert(0, functions.FILTERED)
    for choice in faster:
        if choice.config and choice.config.scope == "regional":
            names = literal(list(blocks[choice.phase]), "")
            phases.insert(0, f"{_constant(choice)}_BLOCKS = {names}")
    if any(choice.config and choice.config.scope == "regional" for choice in faster):
        phases.insert(0, functions.COMPILE_BLOCK)
    if both := {"forward", "train_step"} <= {choice.phase for choice in faster}:
        phases.append(functions.IN_MODE)
    if apart := states_differ(found.values()):
        phases.insert(0, functions.OWN_STATE)
    main = _main(report, list(found.values()), both, apart) if build else _NO_BUILD
    top = header(report, "torch.compile settings")
    if updates:
        top += comment(f"learner_update: {updates.evidence}. autocompile export last --to rllib")
    refusal = _refusal(report, faster)
    return program(top, _imports(faster), refusal, _packages(faster), *phases, build, main)


def _refusal(report: Report, faster: list[Choice]) -> str:
    """Source that refuses to run where the settings of another interpreter are not its own.

    Raises:
        ExportError: no one interpreter has them all.
    """
    configs = {c.phase: c.config for c in faster if c.config}
    if len(names := {config.environment for config in configs.values()}) > 1:
        raise ExportError(
            "the best settings of the phases are of different interpreters, and a script has one",
            *(f"{phase}: {config.environment}" for phase, config in configs.items()),
            hint="autocompile export last --to json",
        )
    if names <= {"default"}:
        return ""
    there = environment_of(report, next(iter(configs.values())))
    text = f"TORCH = {quoted(str(there['torch']))}\n"
    return text + f"PYTHON = {quoted(str(there['python_path']))}\n" + _REFUSE


_REFUSE = """if str(torch.__version__) != TORCH:
    raise RuntimeError(
        f"measured with torch {TORCH}, and this is {torch.__version__}: run it with {PYTHON}"
    )
"""


def _demand_form(report: Report, choice: Choice, blocks: Sequence[str]) -> None:
    if choice.phase not in _FUNCTIONS:
        raise ExportError(f"the phase {choice.phase!r} has no form in plain torch")
    config = choice.config
    lost = not_carried(config, _CARRIED) if config else []
    if config and config.scope == "regional" and not blocks:
        lost.append("scope='regional', of a model whose blocks the report does not name")
    if config and config.environment != "default" and not environment_of(report, config):
        lost.append(f"environment={config.environment!r}, which the report does not describe")
    if lost:
        raise ExportError(
            f"the best setting of {choice.phase} has no form in plain torch",
            f"it has {', '.join(lost)}",
            hint="autocompile export last --to json",
        )


def demand_one_way(found: Iterable[Choice]) -> None:
    """Blocks are compiled in place: every phase that calls the model runs them as they are then.

    Raises:
        ExportError: one phase compiles blocks, and another compiles the model in another way.
    """
    works = [c for c in found if c.verdict != "failed" and c.phase != "optimizer_step"]
    calling = {c.phase: c.config or EAGER for c in works}
    ways = {
        "" if config.is_eager else repr((config.scope, config.guards, config.compile_kwargs()))
        for config in calling.values()
    }
    if len(ways) > 1 and any(config.scope == "regional" for config in calling.values()):
        raise ExportError(
            "one model cannot have its blocks compiled for one phase and run otherwise in another",
            *(f"{phase}: {config.label()}" for phase, config in calling.items()),
            hint="autocompile export last --to json",
        )


_CARRIED = (
    "backend",
    "mode",
    "options",
    "fullgraph",
    "dynamic",
    "scope",
    "memory_format",
    "optimizer",
    "freezing",
    "threads",
    "precision",
    "autocast",
    "guards",
    "environment",
)


def _imports(faster: list[Choice]) -> str:
    lines = ["import torch\n"]
    if any(choice.phase == "train_step" for choice in faster):
        lines = ["import functools\n\n", *lines, "from torch.utils._pytree import tree_leaves\n"]
    return "".join(lines)


def _packages(faster: list[Choice]) -> str:
    """Imports that only the right interpreter can do."""
    used = {c.config.backend for c in faster if c.config} & BACKENDS.keys()
    packages = sorted({BACKENDS[name].registered_by for name in used} - {""})
    lines = [f"import {name}  # noqa: F401  (registers a backend)\n" for name in packages]
    if any(choice.config and choice.config.freezing for choice in faster):
        lines += ["from autocompile.runtime.freezing import Frozen\n"]
    return "".join(lines)


def _constant(choice: Choice) -> str:
    return choice.phase.upper()


def _phase(choice: Choice) -> list[str]:
    if choice.config is None:
        state = "keep eager" if choice.verdict == "keep_eager" else "failed"
        return [comment(f"{choice.phase}: {state}, left uncompiled: {choice.evidence}")]
    evidence = comment(f"{choice.phase}: {choice.evidence}")
    source = _FUNCTIONS[choice.phase].format(
        phase=choice.phase,
        prepare="".join(f"    {line}\n" for line in _prepare(choice.config, _constant(choice))),
        compiled=_compiled(choice.config, choice.phase, _constant(choice)),
    )
    if choice.config.is_eager:
        return [evidence + source]
    arguments = literal(choice.config.compile_kwargs(), "")
    return [f"{evidence}{_constant(choice)} = {arguments}", source]


def _prepare(config: CompileConfig, constant: str) -> list[str]:
    """What is done before anything is compiled; the function's argument is ``model``."""
    lines = []
    if config.threads is not None:
        lines += [f"torch.set_num_threads({config.threads})"]
    if config.precision != "default":
        lines += [f"torch.set_float32_matmul_precision({quoted(config.precision)})"]
    lines += optimizer_lines(config)
    if config.memory_format == "channels_last":
        lines += ["model.to(memory_format=torch.channels_last)"]
    if config.scope == "regional":
        given = _given(config, constant)
        compiled = f"compile_block(model.get_submodule(name), **{given})"
        lines += [f"for name in {constant}_BLOCKS:", f"    {compiled}"]
    return lines


def _compiled(config: CompileConfig, phase: str, constant: str) -> str:
    compiled = _without_autocast(config, phase, constant)
    if config.autocast == "none":
        return compiled
    kind = "next(model.parameters()).device.type"
    return f"torch.autocast({kind}, dtype=torch.{config.autocast})({compiled})"


def _without_autocast(config: CompileConfig, phase: str, constant: str) -> str:
    what = {"forward": "model", "optimizer_step": "step", "train_step": "step"}
    function = what.get(phase, "function")
    if config.is_eager or config.scope == "regional":
        return function
    if config.freezing:
        compiled = f"Frozen({function}, model, {_given(config, constant)})"
    else:
        compiled = f"torch.compile({function}, **{_given(config, constant)})"
    # RLlib enters no_grad further in: there a backend would still be asked for gradients.
    acts = phase in ("forward_exploration", "forward_inference")
    return f"torch.no_grad()({compiled})" if acts else compiled


def _given(config: CompileConfig, constant: str) -> str:
    """The arguments of torch.compile in the script."""
    if config.guards == "all":
        return constant
    return f"filtered({constant}, torch.compiler.{GUARD_FILTERS[config.guards]})"


def _main(report: Report, found: list[Choice], both: bool, apart: bool) -> str:
    """Build the model and apply every choice.

    ``both``: it is trained and used in turns. ``apart``: what torch has one of for the whole
    process is not the same for all phases.
    """
    lines = ['if __name__ == "__main__":', "    model = build_model()"]
    phases = {choice.phase for choice in found if choice.config is not None}
    if phases & {"optimizer_step", "train_step"}:
        measured = report["target"].get("choices", {}).get("optimizer", "Adam with its defaults")
        lines += comment(f"Put your own optimizer here; measured: {measured}.", "    ").splitlines()
        lines += ["    optimizer = torch.optim.Adam(model.parameters())"]
    for choice in found:
        lines += _applied(choice)
    for choice in found if apart else ():
        lines += _in_own_state(choice)
    if both:
        lines += ["    tuned_model = in_mode(model, False, tuned_model)"]
        lines += ["    train_step = in_mode(model, True, train_step)"]
    return "\n".join(lines)


def _in_own_state(choice: Choice) -> list[str]:
    config = choice.config or EAGER
    threads = config.threads
    precision = None if config.precision == "default" else config.precision
    if name := _NAMES.get(choice.phase) if choice.config else None:
        return [f"    {name} = in_own_state({name}, {threads}, {literal(precision, '')})"]
    given = f"in_own_state(function, {threads}, {literal(precision, '')})"
    return comment(f"{choice.phase}: call it through {given}", "    ").splitlines()


def _applied(choice: Choice) -> list[str]:
    if choice.config is None:
        why = "nothing is faster" if choice.verdict == "keep_eager" else choice.evidence
        return [f"    print({quoted(one_line(f'{choice.phase}: left uncompiled, {why}'))})"]
    call = _CALLS.get(choice.phase, f"model = compile_{choice.phase}(model)")
    return [
        *(f"    {line}" for line in call.splitlines()),
        f'    print("{choice.phase}: torch.compile with", {_constant(choice)})'
        if not choice.config.is_eager
        else f"    print({quoted(one_line(f'{choice.phase}: {choice.config.label()}'))})",
    ]
