"""Assigns an outcome to a trial that has ended, from what the parent observed."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autocompile.execute.child import Child
from autocompile.execute.executor import Ending
from autocompile.execute.memory import oom_kills
from autocompile.store.record import Outcome, Step

__all__ = ["Sighting", "conclude", "ending_of"]

_ENVELOPE = frozenset({"outcome", "step", "message"})
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>\S+)')


@dataclass(frozen=True)
class Sighting:
    """What the parent observed of a trial that has ended.

    Attributes:
        step: the last step that the trial announced.
        result: its result message, if one arrived.
        returncode: as in ``subprocess``: negative for a signal; None if unknown.
        killed_for: why the parent killed it: ``timeout``, ``total``, ``memory``, ``interrupted``.
        limit: the limit that it exceeded, in words.
        garbage: invalid data that came through the result channel.
        oom_killed: the OOM killer ended one of its processes.
        place: where it was stuck, in words.
        last_words: the last line that it printed.
    """

    step: Step
    result: Mapping[str, Any] | None
    returncode: int | None
    killed_for: str | None = None
    limit: str = ""
    garbage: str | None = None
    oom_killed: bool = False
    place: str = ""
    last_words: str = ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def conclude(seen: Sighting) -> tuple[Outcome, Step, str]:
    """Outcome, step and one-line message.

    A result that has arrived is final, whatever the process does later. The exception is a
    failure while the OOM killer ended a process of the trial: that is out of memory.
    """
    said: tuple[Outcome, Step, str] | None = None
    if seen.result is not None:
        try:
            outcome, step = Outcome(seen.result["outcome"]), Step(seen.result["step"])
            said = outcome, step, str(seen.result.get("message", ""))
        except (KeyError, ValueError):
            return Outcome.CRASHED, seen.step, "sent a malformed result"
    if said and (said[0] is Outcome.OK or not seen.oom_killed):
        return said
    if seen.killed_for == "interrupted":
        return Outcome.INTERRUPTED, seen.step, "stopped before it finished"
    if seen.killed_for == "timeout":
        what = f"still in {seen.step.value} after {seen.limit}{seen.place}"
        return Outcome.TIMEOUT, seen.step, what
    if seen.killed_for == "total":
        what = f"all steps together took more than {seen.limit}{seen.place}"
        return Outcome.TIMEOUT, seen.step, what
    if seen.killed_for == "memory":
        return Outcome.OUT_OF_MEMORY, seen.step, f"its processes held more than {seen.limit}"
    if seen.oom_killed:
        words = f" ({said[2]})" if said and said[2] else ""
        what = f"the kernel's OOM killer ended one of its processes{seen.limit}{words}"
        return Outcome.OUT_OF_MEMORY, said[1] if said else seen.step, what
    if seen.garbage is not None:
        return Outcome.CRASHED, seen.step, f"wrote to the result channel: {seen.garbage}"
    code = seen.returncode
    if code is None:
        return Outcome.INFRASTRUCTURE, seen.step, "its processes were killed from outside"
    if code < 0:
        return Outcome.CRASHED, seen.step, f"{_signal_name(-code)} in {seen.step.value}"
    words = f": {seen.last_words}" if seen.last_words else ""
    return (
        Outcome.CRASHED,
        seen.step,
        f"exited with code {code} in {seen.step.value} without a result{words}",
    )


def ending_of(child: Child | None, step: Step) -> Ending:
    """How a trial ended; ``child`` is None if it was interrupted before it started."""
    if child is None:
        return Ending(Outcome.INTERRUPTED, step, "stopped before it started")
    cgroup_kills = child.cgroup.kills() if child.cgroup else 0
    # Without a cgroup, a count that rose while it ran may be another process: it counts only if
    # the worker died of a SIGKILL that was not ours.
    ours = child.killed_for is not None or child.garbage is not None
    anywhere = child.cgroup is None and child.code == -signal.SIGKILL and not ours
    oom_killed = cgroup_kills > 0 or (anywhere and oom_kills() > child.oom_before)
    gib = f"{(child.job.memory_limit_bytes or 0) / 2**30:.1f} GiB"
    limit = {
        "timeout": f"{child.job.allowed_s(step):.0f} s",
        "total": f"{child.job.total_timeout_s or 0:.0f} s",
        "memory": gib,
    }.get(child.killed_for or "", f": its memory limit is {gib}" if cgroup_kills else "")
    stack = child.dump.decode("utf-8", "replace").strip()
    words = child.last_words.decode("utf-8", "replace").strip().splitlines()
    outcome, step, message = conclude(
        Sighting(
            step=step,
            result=child.result,
            returncode=child.code,
            killed_for=child.killed_for,
            limit=limit,
            garbage=child.garbage,
            oom_killed=oom_killed,
            place=_place(stack),
            last_words=words[-1][:200] if words else "",
        )
    )
    payload = {k: v for k, v in (child.result or {}).items() if k not in _ENVELOPE}
    # Forking or another trial can cause these; a setting that raises would raise again.
    doubtful = outcome in (Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY, Outcome.INFRASTRUCTURE) or (
        outcome is Outcome.CRASHED and child.code is not None and child.code < 0 and not ours
    )
    circumstances = {
        "forked": child.forked,
        "beside other trials": child.company,
    }
    return Ending(
        outcome,
        step,
        message,
        payload,
        wall_s=child.clock.total_s,
        step_s=child.clock.step_s,
        pauses=tuple(child.clock.pauses),
        stack=stack,
        doubts=tuple(n for n, is_so in circumstances.items() if is_so and doubtful),
    )


def _place(stack: str) -> str:
    """The innermost frame of the thread that was running, as ``in f (model.py:7)``."""
    _, found, rest = stack.rpartition("(most recent call first):")
    match = _FRAME.search(rest) if found else None
    if match is None:
        return ""
    name = match["file"].replace("\\", "/").rsplit("/", 1)[-1]
    return f", in {match['name']} ({name}:{match['line']})"
