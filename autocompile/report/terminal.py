"""The report on a terminal or in a pipe.

Lines break between facts and never inside a figure; in a pipe a fact or a message is never broken,
so that ``grep`` finds it whole. Text of a trial is never read as markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from autocompile.report import facts as said
from autocompile.report import text as show
from autocompile.report.markdown import (
    batch_note,
    batch_rows,
    by_throughput,
    failure_reason,
    incomplete,
    or_dash,
    why_not_lines,
)

__all__ = ["render", "render_trials"]

_INDENT = 10
_PIPE = 120
"""Columns of a pipe: facts go to the next line from here on."""
_MESSAGE = 160
_FIGURE = re.compile(r"\[[\d., ]+\]|±? ?[\d.]+ %|\d [a-zA-Zµ]+")
_GLUE = "\ue000"  # stands for a space that must not end a line; private, one cell wide
_KINDS_OF_FAILURE, _KINDS_LEFT_OUT = 8, 3
_REASONS = 5  # why other settings lose; more with -v


class _Page:
    """Lines with a label on the left, broken only where a terminal asks for it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.breaks = console.is_terminal
        self.width = console.width if self.breaks else _PIPE

    def line(self, text: str | Text = "", style: str = "") -> None:
        """One line as it is, whatever its length."""
        line = Text(text, style) if isinstance(text, str) else text
        line.plain = show.encodable(line.plain, self.console.encoding)
        self.console.print(line, soft_wrap=True, highlight=False)

    def hanging(self, head: Text, body: str | Text, style: str = "") -> None:
        """``body`` behind ``head``, further lines under its first word."""
        text = Text(body, style) if isinstance(body, str) else body
        text.plain = _FIGURE.sub(lambda m: m[0].replace(" ", _GLUE), text.plain)
        room = max(self.width - head.cell_len, 20)
        for number, part in enumerate(text.wrap(self.console, room) if self.breaks else [text]):
            part.plain = part.plain.replace(_GLUE, " ").rstrip()
            self.line(Text.assemble(head if number == 0 else " " * head.cell_len, part))

    def facts(self, name: str, facts: Iterable[str | Text], style: str = "bold") -> None:
        """Facts with dots between them; a line ends between two facts."""
        line = Text()
        for fact in facts:
            piece = Text(fact) if isinstance(fact, str) else fact
            if line and _INDENT + line.cell_len + 3 + piece.cell_len > self.width:
                self.hanging(_head(name, style), line)
                line, name = Text(), ""
            line = Text.assemble(line, " · ", piece) if line else piece
        if line:
            self.hanging(_head(name, style), line)


def _head(name: str, style: str = "bold") -> Text:
    return Text.assemble("  ", (f"{name:<{_INDENT - 2}}", style))


def render(
    report: Mapping[str, Any],
    console: Console,
    *,
    use: str = "",
    next_line: str = "",
    verbose: bool = False,
) -> None:
    """Print the final report.

    Args:
        report: the dictionary that ``report.json`` holds.
        console: where to; not a terminal means no colour and no broken lines.
        use: one line of code to paste.
        next_line: what to type next.
        verbose: also the machine, the choices that were made, logs and whole messages.
    """
    page = _Page(console)
    if headline := said.unfinished(report):
        page.line(headline, "bold red")
        for sentence in incomplete(report):
            page.hanging(Text("  "), sentence)
        page.line()
    if verbose:
        _circumstances(page, report)
    for number, (name, phase) in enumerate(report["phases"].items()):
        if number:
            page.line()
        role = f"   ({show.plain(phase['role'])})" if phase.get("role") else ""
        page.line(Text.assemble((show.plain(name), "bold"), (role, "dim")))
        _verdict(page, phase, verbose)
        _explanation(page, phase, verbose)
        best = phase.get("best") if phase["verdict"] != "failed" else None
        for note in (best or {}).get("notes", ()):
            page.hanging(_head("Note"), show.plain(note))
        _batch_sizes(page, phase)
        _failures(page, phase, verbose)
        _left_out(page, phase, verbose)
        for note in phase.get("notes", ()):
            page.hanging(_head("Note"), show.plain(note))
    if not_here := said.not_here(report):
        page.line()
        _not_here(page, not_here, verbose)
    if not report["phases"]:
        page.line("Nothing was tuned: no phase was begun.")
    if use or next_line:
        page.line()
    for word, line in (("Use", use), ("Next", next_line)):
        if line:  # never broken by us: it is there to be pasted
            page.line(Text.assemble((f"{word:<8}", "bold cyan"), show.plain(line)))


def _not_here(page: _Page, backends: Mapping[str, str], verbose: bool) -> None:
    """Once for all phases: it is a fact about the machine, and no failure of a setting."""
    names = ", ".join(f"{n} ({why})" if verbose and why else n for n, why in backends.items())
    page.hanging(Text("Not on this machine: ", "bold"), f"{names}   → autocompile doctor")


def _circumstances(page: _Page, report: Mapping[str, Any]) -> None:
    target = report["target"]
    choices = {show.plain(k): show.plain(v) for k, v in (target.get("choices") or {}).items()}
    rows = {"target": show.target_name(target), **choices, "run": show.plain(report["run_dir"])}
    page.line(show.machine(report["environment"]))
    width = max(map(cell_len, rows)) + 2
    for name, value in rows.items():
        page.hanging(Text(f"{name:<{width}}", "dim"), value)
    page.line()


def _verdict(page: _Page, phase: Mapping[str, Any], verbose: bool) -> None:
    best, reason = phase.get("best"), show.plain(phase.get("reason", "")).rstrip(".")
    if phase["verdict"] == "failed" or not best:
        word, style = ("Pending", "bold") if phase.get("state") else ("Failed", "bold red")
        page.hanging(Text(f"  {word}: ", style), f"{reason or 'no trial finished'}.")
        return
    if phase["verdict"] == "keep_eager":
        page.hanging(Text("  Keep eager: ", "bold"), f"{reason}.")
        eager = f"eager runs at {show.rate(best.get('throughput'))}"
        page.facts("", [eager, *said.memory_facts(best)])
    else:
        _best_line(page, best)
        page.facts("", _speed(best))
        page.facts("", said.best_facts(best))
        for number, tie in enumerate(said.ties(phase)):
            page.hanging(_head("" if number else "Ties"), tie)
    if doubt := said.confidence(phase):
        page.hanging(_head("Open", "bold yellow"), doubt)
    page.facts("Sure", said.sure(phase))


def _explanation(page: _Page, phase: Mapping[str, Any], verbose: bool) -> None:
    """Why the best setting is it, and what holds the others back."""
    for number, sentence in enumerate(phase.get("explanation") or ()):
        page.hanging(_head("" if number else "Why"), show.plain(sentence))
    lines = why_not_lines(phase, None if verbose else _REASONS)
    for number, (settings, reason) in enumerate(lines):
        page.hanging(_head("" if number else "Others"), f"{settings}: {reason}")
    if len(lines) < (count := len(phase.get("why_not") or ())):
        page.hanging(_head(""), f"and {count - len(lines)} more (show -v has all)")


def _best_line(page: _Page, best: Mapping[str, Any]) -> None:
    name = Text(show.label(best["config"]), "bold green")
    origin = Text(f"trial {best['number']}, {said.proof(best)}", "dim")
    room = min(page.width, _PIPE) - _INDENT - name.cell_len - origin.cell_len
    if room < 3:
        page.hanging(_head("Best"), name)
        page.hanging(_head(""), origin)
    else:
        page.line(Text.assemble(_head("Best"), name, " " * room, origin))


def _speed(best: Mapping[str, Any]) -> list[Text]:
    gain = best["speedup"]
    facts = [_ratio(gain, " faster than eager" if gain["value"] >= 1 else " against eager")]
    if default := said.against_default(best):
        word = "than" if default["value"] >= 1 and gain["value"] >= 1 else "against"
        facts.append(_ratio(default, f" {word} plain torch.compile()"))
    return facts


def _ratio(value: Mapping[str, Any], rest: str) -> Text:
    bold = "bold green" if value["low"] > 1 else "bold red" if value["high"] < 1 else "bold"
    return Text.assemble((show.speedup(value), bold), f" {show.interval(value)}{rest}")


def _batch_sizes(page: _Page, phase: Mapping[str, Any]) -> None:
    rows = batch_rows(phase)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, cells in enumerate(rows):
        line = "   ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True))
        page.line("  " + line, "" if number else "dim")
    if note := batch_note(phase):
        page.line(f"  {note}", "dim")


def _failures(page: _Page, phase: Mapping[str, Any], verbose: bool) -> None:
    """What failed, and what was not even tried, since others had shown how it would end."""
    for name, style, answered in (("Failed", "red", False), ("Untried", "dim", True)):
        groups = [g for g in phase.get("failures", ()) if bool(g.get("answered")) == answered]
        shown = groups if verbose else groups[:_KINDS_OF_FAILURE]
        _causes(page, name, style, shown, verbose)
        if len(groups) > len(shown):
            page.hanging(_head(""), f"and {len(groups) - len(shown)} more kinds (show -v has all)")


def _left_out(page: _Page, phase: Mapping[str, Any], verbose: bool) -> None:
    """Why settings were not listed, and how many; what only a flag would bring comes last."""
    every = (phase.get("dropped") or {}).items()
    dropped = sorted(every, key=lambda item: (item[0].startswith("--"), -item[1]))
    shown = dropped if verbose else dropped[:_KINDS_LEFT_OUT]
    facts = [f"{show.plain(reason)} ({count})" for reason, count in shown]
    if more := len(dropped) - len(shown):
        facts.append(f"and {more} more reasons (show -v has all)")
    page.facts("Skipped", facts, "bold dim")


def _causes(
    page: _Page, name: str, style: str, shown: Sequence[Mapping[str, Any]], verbose: bool
) -> None:
    rows = [(str(g["count"]), show.plain(g["backend"]), show.plain(g["outcome"])) for g in shown]
    widths = [max((cell_len(row[i]) for row in rows), default=0) for i in range(3)]
    for group, (count, backend, outcome) in zip(shown, rows, strict=True):
        message = show.plain(group.get("message", ""))
        message = message if verbose else show.shorten(message, _MESSAGE)
        if outcome == "unsupported" and not group.get("answered"):
            message += f" → autocompile doctor {backend}"
        head = Text.assemble(
            _head(name, f"bold {style}"),
            f"{count:>{widths[0]}} {backend:<{widths[1]}}   ",
            (f"{outcome:<{widths[2]}}   ", style),
        )
        page.hanging(head, message)
        if verbose and group.get("log"):
            page.line(Text(" " * head.cell_len + show.plain(group["log"]), "dim"))
        name = ""


def render_trials(report: Mapping[str, Any], console: Console) -> None:
    """Print every trial of each phase: the ones with figures best first, then the failures.

    Repeats in fresh processes are told behind the trial that they repeat.
    """
    page = _Page(console)
    for name, phase in report["phases"].items():
        trials = phase["trials"]
        page.line(f"{show.plain(name)}: all trials", "bold")
        ranked = by_throughput(trials)
        unit = ranked[0]["throughput"].get("unit", "") if ranked else "throughput"
        memory = page.width >= 100
        titles = f"{'#':>4}  {'batch':>5}  {unit:>14}  {'against eager':>13}  {'compile':>7}  "
        if ranked:
            page.line(f"{titles}{'memory':>8}  setting" if memory else f"{titles}setting", "dim")
        for trial in ranked:
            value, ratio = (show.read_interval(trial.get(k)) for k in ("throughput", "speedup"))
            figures = (
                f"{trial['number']:>4}  {or_dash(trial['batch_size']):>5}  "
                f"{show.measured(value):>14}  {show.ratio(ratio):>13}  "
                f"{show.seconds(trial.get('compile_s')):>7}  "
            )
            figures += f"{show.size(trial.get('peak_memory_bytes')):>8}  " if memory else ""
            remarks = ", ".join(said.trial_remarks(trial, trials))
            setting = Text(show.label(trial["config"]))
            setting.append(f"  ({remarks})" if remarks else "", "dim")
            page.hanging(Text(figures), setting)
        for trial in trials:
            if trial.get("role") == "search" and trial not in ranked:
                _failed_trial(page, trial)


def _failed_trial(page: _Page, trial: Mapping[str, Any]) -> None:
    head = Text(f"{trial['number']:>4}  {or_dash(trial['batch_size']):>5}  ")
    outcome = "not tried" if trial.get("answered") else show.plain(trial["outcome"])
    head.append(f"{outcome:<14}  ", "dim" if trial.get("answered") else "red")
    page.hanging(head, f"{show.label(trial['config'])}: {failure_reason(trial)}")
