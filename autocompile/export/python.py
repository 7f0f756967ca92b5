"""Plain torch: lines to paste, with one comment of evidence for each phase.

They use the names ``model``, ``optimizer``, and ``train_step`` or ``step``, and import autocompile
only for what torch alone cannot do. The lines are those of :mod:`autocompile.export.lines`; here
those of several phases become one program, as a block or as one line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autocompile.errors import ExportError
from autocompile.export.choices import (
    choices,
    command,
    environment_of,
    facts_of,
    file_note,
)
from autocompile.export.lines import (
    IMPORTS,
    MODEL,
    Choice,
    Facts,
    Lines,
    Statement,
    can_have_a_name,
    exclude_each_other,
    lines_of,
    of_checkpoints,
    plain_statements,
    uses_apply,
    without_words,
)
from autocompile.export.source import comment, one_line, program, quoted
from autocompile.settings.config import EAGER
from autocompile.settings.phases import PHASES, phase_of
from autocompile.store.report import KEEP_MEMORY, Report

_LONGEST = 200  # characters of a line to paste


# --- the phases of one program ------------------------------------------------------------------


@dataclass(frozen=True)
class Together:
    """Phases whose lines go into one program, in the order of the lines."""

    phases: tuple[Lines, ...]

    @property
    def statements(self) -> list[Statement]:
        """All of them, each once."""
        return list(dict.fromkeys(s for one in self.phases for s in one.statements))

    @property
    def has_names(self) -> bool:
        """Whether phases compile the model differently, so that each has its own name for it."""
        return any(one.called != MODEL for one in self.phases)

    def of(self, phase: str) -> list[Statement]:
        """The statements that a phase runs with: its own, and what changes the same objects."""
        (mine,) = (one for one in self.phases if one.phase == phase)
        objects = {*mine.wanted, IMPORTS}
        if mine.called != MODEL:
            objects -= {MODEL}
        return [
            s
            for s in self.statements
            if s in mine.statements or objects.issuperset(s.changes)
        ]


def programs(found: Sequence[Choice], facts: Facts) -> list[Together]:
    """The choices as few programs as there can be: one, unless phases exclude each other.

    What two phases compile differently of one model gets two names in one program, which share the
    weights. Other objects, such as the number of threads, are there once: phases that want them in
    different states are alternatives. A program that changes something comes first.
    """
    groups: list[list[Choice]] = []
    in_torch = [choice for choice in found if not phase_of(choice.phase).is_update]
    for choice in sorted(in_torch, key=lambda choice: choice.config is None):
        for group in groups:
            if all(_can_share(choice, other, facts) for other in group):
                group.append(choice)
                break
        else:
            groups.append([choice])
    return [_together(sorted(group, key=found.index), facts) for group in groups]


def _can_share(one: Choice, other: Choice, facts: Facts) -> bool:
    differ = lines_of(one, facts).differs_in(lines_of(other, facts))
    if differ == {MODEL}:
        return all(can_have_a_name(choice, facts) for choice in (one, other))
    return not differ


def _together(group: Sequence[Choice], facts: Facts) -> Together:
    every = [lines_of(choice, facts) for choice in group]
    states = {one.wanted[MODEL] for one in every if MODEL in one.wanted}
    if len(states) > 1:
        every = [
            lines_of(choice, facts, f"{choice.phase}_model")
            if lines.wanted.get(MODEL)
            else lines
            for choice, lines in zip(group, every, strict=True)
        ]
    return Together(tuple(every))


# --- a block to paste ---------------------------------------------------------------------------


def export(report: Report) -> str:
    """The lines of all phases, to paste after the model and the optimizer are built."""
    found = having_form(report)
    faster = [choice for choice in found if choice.config is not None]
    first, *others = programs_of(report) or [Together(())]
    blocks = [_imports(report, first)]
    if others:
        blocks.append(comment(_which(first, others)))
    blocks += _blocks(first, found)
    for other in others:
        text = "\n\n".join((_imports(report, other), *_blocks(other, found))).strip()
        lines = ("# In place of what is above:", *text.splitlines())
        blocks.append("\n".join(f"# {line}".rstrip() for line in lines))
    for choice in choices(report).values():
        if phase_of(choice.phase).is_update:
            blocks.append(
                f"{_evidence(choice)}# {one_line(_to_library(report, choice))}"
            )
    if not any("autocompile.apply(" in block for block in blocks):  # which keeps it
        blocks.insert(0, _kept_memory(report))
    return program(_refusal(report, faster), *blocks)


def _kept_memory(report: Report) -> str:
    """The environment of the measurement, where a program without it is much slower."""
    bests = [phase.answer.best for phase in report.phases.values()]
    times = [best.given_back.times for best in bests if best and best.given_back]
    if not times:
        return ""
    return comment(
        f"Memory was kept, as by {KEEP_MEMORY} in the environment: where glibc gives it back, "
        f"eager mode takes {max(times):.1f} times as long"
    )


def programs_of(report: Report) -> list[Together]:
    """The programs of a report; a phase that failed asks for nothing."""
    worked = [c for c in choices(report).values() if c.works]
    return programs(worked, facts_of(report))


def _imports(report: Report, together: Together) -> str:
    every = together.statements
    codes = [statement.code for statement in every if IMPORTS in statement.changes]
    if "import autocompile" in codes:
        codes.append(file_note(report))
    return "\n".join(codes)


def _blocks(together: Together, found: Iterable[Choice]) -> list[str]:
    """For each phase its evidence and the lines that no phase before it has."""
    lines = {one.phase: one for one in together.phases}
    blocks, said = [], set[Statement]()
    if together.has_names:
        blocks.append(comment(_by_names(together)))
    for choice in found:
        if not choice.works:
            blocks.append(_evidence(choice) if together.phases else "")
        if choice.phase not in lines:
            continue
        new = [s for s in lines[choice.phase].statements if s not in said]
        said.update(new)
        codes = [s.code for s in new if IMPORTS not in s.changes]
        blocks.append(_evidence(choice) + "\n".join(codes))
    return [*blocks, of_checkpoints(together.phases)]


def _by_names(together: Together) -> str:
    named = [one for one in together.phases if one.called != MODEL]
    calls = ", ".join(f"{one.called} for {one.phase}" for one in named)
    text = f"The phases compile the model differently: call {calls}"
    plain = [
        one.phase for one in together.phases if one not in named and MODEL in one.wanted
    ]
    if plain:
        text += f", and model itself for {' and '.join(plain)}"
    return f"{text}. All share the weights of model."


def _which(first: Together, others: Sequence[Together]) -> str:
    """Which programs exclude each other, and in what they differ."""
    objects = {
        name
        for one, other in itertools.combinations((first, *others), 2)
        for mine, theirs in itertools.product(one.phases, other.phases)
        for name in mine.differs_in(theirs)
    }
    names = [
        " and ".join(one.phase for one in each.phases) for each in (first, *others)
    ]
    return exclude_each_other(names, sorted(objects))


def _evidence(choice: Choice) -> str:
    text = f"{choice.phase}: {choice.verdict.replace('_', ' ')}: {choice.evidence}"
    if choice.config is not None:
        text = f"{choice.phase}: {choice.gain}"
        if choice.processes:
            text += f", confirmed in {choice.processes} fresh processes"
    return f"# {one_line(text)}\n"


def having_form(report: Report) -> list[Choice]:
    """The choices of a report; an ExportError if plain torch code cannot express them."""
    every = choices(report)
    updates = [one for name, one in every.items() if phase_of(name).is_update]
    for one in updates:
        del every[one.phase]
        if not every:
            raise ExportError(
                f"{one.phase} is an update by {phase_of(one.phase).library} itself, which has no "
                "form in plain torch",
                hint=_to_library(report, one),
            )
    library = facts_of(report).library
    for name, choice in every.items():
        lost = "" if name in PHASES or library else "a phase that is not known"
        if choice.config and not environment_of(report, choice.config):
            place = choice.config.environment
            lost = f"environment={place!r}, which the report does not describe"
        if lost:
            raise ExportError(
                f"the best setting of {name} has no form in plain torch",
                f"it has {lost}",
                hint=command(report, "--to json"),
            )
    return list(every.values())


def _to_library(report: Report, choice: Choice) -> str:
    return command(report, f"--to {phase_of(choice.phase).library}")


def _refusal(report: Report, faster: Iterable[Choice]) -> str:
    """An assertion of the torch version if the settings need another interpreter, else empty."""
    configs = {c.phase: c.config for c in faster if c.config}
    if len(names := {config.environment for config in configs.values()}) > 1:
        raise ExportError(
            "the best settings of the phases need different interpreters, and a program has one",
            *(f"{phase}: {config.environment}" for phase, config in configs.items()),
            hint=command(report, "--to json"),
        )
    if names <= {"default"}:
        return ""
    there = environment_of(report, next(iter(configs.values())))
    run_with = (
        f"measured with torch {there['torch']}: run it with {there['python_path']}"
    )
    test = f"torch.__version__ == {quoted(str(there['torch']))}"
    return f"assert {test}, {quoted(one_line(run_with))}"


# --- one line -----------------------------------------------------------------------------------


def joined(statements: Iterable[Statement]) -> str:
    """Statements as one line; empty if they do not fit into one."""
    codes = [statement.code for statement in statements]
    one = "; ".join(codes)
    is_one = not any("\n" in code or "#" in code for code in codes)
    return one if is_one and len(one) <= _LONGEST else ""


def use_line(report: Report, run: str = "last") -> str:
    """The lines of ``--to python`` as one line, or the export command if they do not fit.

    For a result without changes, a sentence that says so. ``run``: its name for commands.
    """
    try:
        found = choices(report)
    except ExportError:
        return _nothing_to_use(report)
    faster = [choice for choice in found.values() if choice.config is not None]
    writes = f"     after    autocompile export {run} -o tuned.json"
    library = facts_of(report).library
    if library and any(phase_of(c.phase).library == library.name for c in faster):
        return "; ".join(library.use) + writes
    try:
        having_form(report)
        refused = _refusal(report, faster)
    except ExportError as error:
        return f"autocompile export {run} --to json   ({error.what})"
    if not faster:
        return _leave_uncompiled(found)
    first, *others = programs_of(report)
    line = joined(first.statements)
    if refused or others or not line or of_checkpoints(first.phases):
        return f"autocompile export {run} --to python"
    facts = facts_of(report)
    reads_file = any(c.config and uses_apply(facts, c.config) for c in faster)
    return line + writes * reads_file


# --- a cell of a table --------------------------------------------------------------------------


def _nothing_to_use(report: Report) -> str:
    """Why there is nothing to paste, and what brings something."""
    answers = [phase.answer for phase in report.phases.values()]
    unknown = next((a for a in answers if a.verdict == "unknown"), None)
    if unknown is None:
        works = any(t.ok for phase in report.phases.values() for t in phase.trials)
        what = "that works keeps the limits" if works else "worked"
        return f"nothing to use: no setting {what}"
    if not unknown.command:
        return f"nothing to use: {unknown.reason}"
    return f"nothing to use yet: nothing compiled has passed all checks   → {unknown.command}"


def _leave_uncompiled(found: Mapping[str, Choice]) -> str:
    """To keep eager mode, as surely as that is known."""
    kept = [choice for choice in found.values() if choice.works]
    it = "it" if len(kept) == len(found) else " and ".join(c.phase for c in kept)
    doubts = dict.fromkeys(choice.doubt for choice in kept if choice.doubt)
    if doubts:
        return f"leave {it} uncompiled so far: {'; '.join(doubts)}"
    return f"leave {it} uncompiled: nothing is faster than eager by more than the noise"


def to_paste(report: Report) -> dict[str, str]:
    """The setting of each phase as code for a table, where it changes something."""
    try:
        found = choices(report)
    except ExportError:  # there is no result
        return {}
    facts = facts_of(report)
    cells = {
        name: cell(choice, facts) for name, choice in found.items() if choice.config
    }
    return {name: text for name, text in cells.items() if text}


def cell(choice: Choice, facts: Facts) -> str:
    """A choice in plain torch, with what that has no words for in a comment; or empty."""
    config = choice.config or EAGER
    shown = [s.shown for s in plain_statements(choice.phase, config, facts) if s.shown]
    lost = without_words(config)
    return "; ".join(shown) + (f"  # {', '.join(lost)}" if lost and shown else "")
