"""The lines of code that a setting is in a program: one list for every export.

A program has ``model``, and where a phase needs them ``optimizer`` and a function ``train_step`` or
``step``. Lines are of plain torch; what that cannot do is one call of ``autocompile.apply``, which
reads the settings from ``tuned.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autocompile.export.source import literal, quoted
from autocompile.rllib.described import RLLIB
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.dimensions import OPTIMIZERS
from autocompile.settings.libraries import Library
from autocompile.settings.phases import (
    FORWARD_TRAIN,
    OPTIMIZER_STEP,
    phase_of,
)

IMPORTS = "imports"
PROCESS = "threads or precision"
WEIGHTS = "the layout of the weights"
MODEL = "model"
OPTIMIZER = "optimizer"
INTERPRETER = "the interpreter"

# Those whose settings are used by loops of their own.
_LIBRARIES = (RLLIB,)
_RATE = 'float(group["lr"])'
# Values of a setting for which torch has no single call.
_BY_US = ("regional", "compiled")


@dataclass(frozen=True)
class Facts:
    """What lines depend on besides the setting: the target, and where it was tuned."""

    device: str = "cpu"  # as torch names it: ``cuda:0``
    # The version of torch in each interpreter, by the interpreter's name.
    torch: Mapping[str, str] = field(default_factory=dict)
    library: Library | None = None  # that calls the target's methods in its own loops
    # Class, arguments and learning rate of the target's own optimizer; None where it has none.
    optimizer: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        target: Mapping[str, Any],
        environment: Mapping[str, Any],
        environments: Mapping[str, Mapping[str, Any]],
        phases: Iterable[str],
    ) -> Facts:
        """Read what ``run.json`` and a report hold of the target and of each interpreter."""
        interpreters = {"default": environment, **environments}
        # Without one of its own the target was measured with a default; a user's may differ.
        has_own = "optimizer" in (target.get("choices") or {})
        return cls(
            device=str(environment.get("device") or "cpu"),
            torch={n: str(each.get("torch")) for n, each in interpreters.items()},
            library=next((one for one in _LIBRARIES if one.has(target, phases)), None),
            optimizer=(target.get("optimizer") or {}) if has_own else None,
        )


@dataclass(frozen=True)
class Choice:
    """The result of one phase."""

    phase: str
    verdict: str  # as of its answer
    config: CompileConfig | None  # may also be eager with changes; None: no change
    evidence: str  # a sentence for a comment
    gain: str = ""  # the speed-up over eager in words, with its 95 % interval
    batch_size: int | None = None  # that it is for
    processes: int = 0  # fresh ones that confirmed it
    doubt: str = ""  # where eager is kept, what keeps that from being sure

    @property
    def works(self) -> bool:
        """Whether the phase has a result."""
        return self.verdict not in ("unknown", "failed")


@dataclass(frozen=True)
class Statement:
    """One statement of a program."""

    code: str  # a loop has two lines
    changes: tuple[str, ...]  # the objects that are another afterwards
    shown: str = ""  # the same in a table, which needs no assignment


@dataclass(frozen=True)
class Lines:
    """What the setting of a phase adds to a program, in order.

    Attributes:
        wanted: the state of each object that the phase runs on, empty for one that is left as it
            is. Phases that want one object in two states cannot share a program.
        called: the name of what the phase calls in place of ``model``.
    """

    phase: str
    wanted: Mapping[str, str]
    statements: tuple[Statement, ...] = ()
    called: str = MODEL

    @property
    def is_empty(self) -> bool:
        return not self.statements

    def differs_in(self, other: Lines) -> set[str]:
        """The objects that two phases want in different states."""
        both = self.wanted.keys() & other.wanted.keys()
        return {name for name in both if self.wanted[name] != other.wanted[name]}


def lines_of(choice: Choice, facts: Facts, called: str = MODEL) -> Lines:
    """The lines of a choice; ``called`` is the name that the compiled model gets."""
    phase, config = choice.phase, choice.config
    wanted = _wanted(phase, config, facts)
    # Plain torch has no lines for these.
    if config is None or phase_of(phase).is_update:
        return Lines(phase, wanted)
    if uses_apply(facts, config):
        ours = Statement("import autocompile", (IMPORTS,))
        apply = _apply(phase, config, facts, choice.batch_size)
        return Lines(phase, wanted, (ours, apply))
    statements = plain_statements(phase, config, facts, called)
    return Lines(phase, wanted, (*_imports(config), *statements), called=called)


def can_have_a_name(choice: Choice, facts: Facts) -> bool:
    """Whether the setting leaves ``model`` itself alone, so that its result may have a name.

    ``torch.compile`` gives another module with the same weights. Autocast without a compiler, and
    ``autocompile.apply``, change the module that they get.
    """
    config = choice.config
    if config is None or not _wanted(choice.phase, config, facts).get(MODEL):
        return True
    return not (config.is_eager or uses_apply(facts, config))


def exclude_each_other(programs: Sequence[str], objects: Iterable[str]) -> str:
    """A sentence on programs of which one can be used, and what they differ in."""
    return (
        f"Use one of {len(programs)}: {', or '.join(programs)}. They differ in "
        f"{' and in '.join(objects)}, which a program has once."
    )


def _wanted(phase: str, config: CompileConfig | None, facts: Facts) -> dict[str, str]:
    """The state of each object that a phase runs on, as it was measured."""
    known = phase_of(phase)
    found = {} if config is None else {INTERPRETER: config.environment}
    config = config or EAGER
    by_us = uses_apply(facts, config)
    if not (by_us and config.process):  # apply sets them while its phase runs
        found[PROCESS] = literal(config.process) if config.process else ""
    is_whole = config.scope == "step"
    if phase != OPTIMIZER_STEP:
        layout = {d.name: value for d, value in config.changed("model")}
        found[WEIGHTS] = literal(layout) if layout else ""
        found[_module_of(phase, facts)] = "" if is_whole else _state(config, by_us)
    if known.whole:
        found[known.whole] = _state(config, by_us) if is_whole else ""
    # A step that leaves the optimizer as it is says nothing of it, unless it was compiled with it.
    if phase == OPTIMIZER_STEP or config.optimizer != "default" or is_whole:
        found[OPTIMIZER] = config.optimizer.replace("default", "")
    if phase == OPTIMIZER_STEP:
        found[OPTIMIZER_STEP] = _state(config, by_us)
    return found


def _module_of(phase: str, facts: Facts) -> str:
    """What of the model a phase calls: for a library one method of several."""
    if facts.library is None:
        return MODEL
    return phase if phase_of(phase).is_forward else FORWARD_TRAIN


def _state(config: CompileConfig, by_us: bool) -> str:
    """What is done to a function, in a text that is equal for equal code; empty for nothing."""
    # These are about other objects.
    config = replace(config, memory_format="default", optimizer="default")
    if not by_us:
        config = replace(config, threads=None, precision="default")
    if config.is_plain_eager:
        return ""
    return f"{'apply' if by_us else 'plain'} {config}"


# --- statements --------------------------------------------------------------------------------


def plain_statements(
    phase: str, config: CompileConfig, facts: Facts, called: str = MODEL
) -> tuple[Statement, ...]:
    """A setting in plain torch, without what that has no words for."""
    return (
        *of_process(config),
        *of_weights(config),
        *of_optimizer(phase, config, facts),
        *_of_function(phase, config, facts, called),
    )


def of_process(config: CompileConfig) -> tuple[Statement, ...]:
    """Threads and precision, which torch has once for a process."""
    return tuple(_rows(config, "process", PROCESS))


def of_weights(config: CompileConfig) -> tuple[Statement, ...]:
    """What is done to the model before it is compiled."""
    return tuple(_rows(config, "model", WEIGHTS))


def _rows(config: CompileConfig, applied: str, changes: str) -> Iterator[Statement]:
    for dimension, value in config.changed(applied):
        if dimension.line:
            code = dimension.line(value)
            yield Statement(code, (changes,), code)


def of_optimizer(
    phase: str, config: CompileConfig, facts: Facts
) -> tuple[Statement, ...]:
    """The user's optimizer made with another implementation, or changed where it stands.

    A change requires that the optimizer has not stepped.
    """
    name = config.optimizer
    if name in ("default", "compiled"):  # torch.optim makes no compiled one
        return ()
    # A whole step of the user's own may hold the optimizer already, so that is not made anew.
    is_held = phase_of(phase).is_own and config.scope == "step"
    made = _made_optimizer(config, facts)
    shown = made or f"optimizer(..., {_shown(_flags(name)) or _rate(facts)})"
    if made and not is_held:
        return (Statement(f"optimizer = {made}", (OPTIMIZER,), shown),)
    change = f'group["lr"] = {_tensor(facts, _RATE)}'
    if flags := OPTIMIZERS[name]:
        change = f"group.update({_shown(dict(sorted(flags.items())))})"
    loop = f"for group in optimizer.param_groups:\n    {change}"
    return (Statement(loop, (OPTIMIZER,), shown),)


CHECKPOINTS = """\
# A fused step takes moments as plain memory, those of a checkpoint too: as the weights lie.
from autocompile.runtime.optimizers import follow_state_dicts

follow_state_dicts(optimizer)"""
"""For a program in which weights are laid out anew and the optimizer is fused.

Torch fits the state that it loads to neither (2.13), and on a CPU then trains wrong without a word.
"""


def of_checkpoints(phases: Iterable[Lines]) -> str:
    """What lets phases of one program load and save the states of their optimizer."""
    every = list(phases)
    is_laid_out = any(one.wanted.get(WEIGHTS) for one in every)
    is_fused = any(
        one.wanted.get(OPTIMIZER) == "fused" and "apply(" not in statement.code
        for one in every
        for statement in one.statements
        if OPTIMIZER in statement.changes
    )
    return CHECKPOINTS if is_laid_out and is_fused else ""


_DIVIDE_BY_RATE = ("Adam", "AdamW")
_ABOVE_ZERO = """\
# torch's compiled Adam divides by the learning rate: begin a warm-up above 0 (or use apply()).
"""


def _of_function(
    phase: str, config: CompileConfig, facts: Facts, called: str
) -> Iterator[Statement]:
    """What is called from then on: the model, the whole step, or the optimizer's step."""
    known = phase_of(phase)
    compiled, name, changes = MODEL, called, _module_of(phase, facts)
    if config.scope == "step":
        compiled = name = changes = known.whole
    elif phase == OPTIMIZER_STEP:
        compiled, name, changes = "optimizer.step", OPTIMIZER_STEP, OPTIMIZER_STEP
    if not config.is_eager:
        call = _compile_call(config, facts, compiled)
        divides = (facts.optimizer or {}).get("class") in _DIVIDE_BY_RATE
        warning = _ABOVE_ZERO if compiled != MODEL and divides else ""
        yield Statement(f"{warning}{name} = {call}", (changes,), call)
        compiled = name
    if config.autocast != "none":
        kind = quoted(facts.device.split(":")[0])
        lower = f"torch.autocast({kind}, dtype=torch.{config.autocast})"
        code = f"{name} = {lower}({compiled})"
        if changes == MODEL:  # stays a module, with its parameters
            code = f"{name}.forward = {lower}({name}.forward)"
        yield Statement(code, (changes,))


def _compile_call(config: CompileConfig, facts: Facts, function: str) -> str:
    given = {name: literal(value) for name, value in config.compile_kwargs().items()}
    if config.backend == "inductor":
        del given["backend"]
    if _isolates(facts, config):
        given["isolate_recompiles"] = "True"
    arguments = (function, *(f"{name}={value}" for name, value in given.items()))
    return f"torch.compile({', '.join(arguments)})"


def options_as_code(config: CompileConfig) -> str:
    """The dictionary of options as source."""
    entries = [f"{quoted(name)}: {literal(value)}" for name, value in config.options]
    return f"{{{', '.join(entries)}}}"


def _imports(config: CompileConfig) -> Iterator[Statement]:
    """The package that registers the backend, after the variables that it reads."""
    known = config.entry
    codes = ["import os"] if known.variables else []
    for name, value in known.variables:
        codes.append(f"os.environ.setdefault({quoted(name)}, {quoted(value)})")
    if package := known.registered_by:
        codes.append(f"import {package}  # noqa: F401  (registers the backend)")
    for code in codes:
        yield Statement(code, (IMPORTS,))


# --- what plain torch cannot do -----------------------------------------------------------------


def uses_apply(facts: Facts, config: CompileConfig) -> bool:
    """Whether plain torch has no such line, as for frozen weights, blocks and methods."""
    if config.recompile_limit and not _isolates(facts, config):
        return True  # an older torch.compile() may not take the limit
    if facts.library is not None:
        return True  # torch.compile() takes the model, not one method of it
    return any(d.needs_apply or v in _BY_US for d, v in config.changed())


def _isolates(facts: Facts, config: CompileConfig) -> bool:
    """Whether its limit is of its own compile, which ``torch.compile`` of 2.13 knows."""
    version = re.findall(r"\d+", facts.torch.get(config.environment, ""))[:2]
    return config.isolates_recompiles and tuple(map(int, version)) >= (2, 13)


def _apply(
    phase: str, config: CompileConfig, facts: Facts, batch_size: int | None
) -> Statement:
    known = phase_of(phase)
    given = f'"tuned.json", {quoted(phase)}'
    if batch_size is not None:
        given += f", batch_size={literal(batch_size)}"
    if known.steps:
        given += ", optimizer=optimizer"
    if config.scope == "step":
        code = f"{known.whole} = autocompile.apply({known.whole}, {given})"
        changes: tuple[str, ...] = (known.whole,)
    else:
        code = f"autocompile.apply(model, {given})"
        is_step = phase == OPTIMIZER_STEP
        changes = (OPTIMIZER_STEP if is_step else _module_of(phase, facts),)
    return Statement(code, (*changes, *((OPTIMIZER,) if known.steps else ())))


def without_words(config: CompileConfig) -> list[str]:
    """What of a setting :func:`plain_statements` lack, in words."""
    return [
        f"environment {value}" if d.name == "environment" else d.label(value)
        for d, value in config.changed()
        if d.needs_apply or value in _BY_US or d.name in ("autocast", "environment")
    ]


# --- the optimizer ------------------------------------------------------------------------------


def _made_optimizer(config: CompileConfig, facts: Facts) -> str:
    """Code such as ``torch.optim.Adam(model.parameters(), lr=0.01, fused=True)``.

    Empty if the target has no optimizer, or its arguments are unknown, as with several parameter
    groups. Names come from a report, and are code only as plain identifiers.
    """
    made = facts.optimizer or {}
    name, given = str(made.get("class") or ""), dict(made.get("arguments") or {})
    words = (name, *given)
    if not all(re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII) for word in words):
        return ""
    given = {k: v for k, v in given.items() if k not in OPTIMIZERS[config.optimizer]}
    lr = ""
    if config.optimizer == "tensor_lr":
        lr = f"lr={_tensor(facts, literal(given.pop('lr', made.get('lr'))))}"
    flags = _shown({**given, **_flags(config.optimizer)})
    arguments = ", ".join(filter(None, ("model.parameters()", lr, flags)))
    return f"torch.optim.{name}({arguments})"


def _flags(implementation: str) -> dict[str, bool]:
    """Arguments of the constructor, which may not know what is turned off beside them."""
    flags = OPTIMIZERS[implementation]
    return {name: on for name, on in flags.items() if on or name == next(iter(flags))}


def _rate(facts: Facts) -> str:
    return f"lr={_tensor(facts, _RATE)}"


def _tensor(facts: Facts, number: str) -> str:
    """A learning rate as it was measured: on the device of the weights."""
    place = "" if facts.device == "cpu" else f", device={quoted(facts.device)}"
    return f"torch.tensor({number}{place})"


def _shown(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in arguments.items())


def _value(value: Any) -> str:
    """A value as source; JSON turned the tuples of optimizers into lists."""
    if isinstance(value, list):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    return literal(value)
