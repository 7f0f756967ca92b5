"""How a trial's process ended, in the words of the closed list of outcomes: the only place.

What a station of a cluster adds is about machines; what an exception in a trial says is named in
``trial/failures.py``.
"""

from __future__ import annotations

import itertools
import re
import signal
import time

from autocompile.execute.child import Child
from autocompile.execute.executor import Ending
from autocompile.execute.memory import oom_kills
from autocompile.store.record import Outcome, Step

_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>\S+)')
_THREAD = re.compile(
    r"^(?=(?:Current thread|Thread) .*\(most recent call first\):$)", re.MULTILINE
)
# Whoever else runs, or a fork, may cause these.
_DOUBTFUL = (Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY, Outcome.INFRASTRUCTURE)


def never_started(error: OSError) -> Ending:
    """The ending of a trial whose process the system refused."""
    what = f"the trial's process cannot be started: {error.strerror or error}"
    return Ending(Outcome.INFRASTRUCTURE, Step.IMPORT, what)


def stopped_early(step: Step = Step.IMPORT) -> Ending:
    """The ending of a trial that was cancelled before it had a process.

    ``step``: that of a fork server which builds its target.
    """
    return Ending(Outcome.INTERRUPTED, step, "stopped before it started")


def ending_of(child: Child) -> Ending:
    """How a trial ended; all its processes are dead."""
    ours = child.killed_for is not None or child.garbage is not None
    was_killed = child.code == -signal.SIGKILL and not ours
    # The count may have risen by another process: it stands for this one only if the worker died
    # of a SIGKILL that was not ours, or says that something else failed, such as its compiler.
    may_be_oom = was_killed or (child.result is not None and not ours)
    outcome, step, message = conclude(
        child, may_be_oom and oom_kills() > child.oom_before
    )
    payload, cut = child.result or {}, None
    if child.result is None and child.measured is not None and child.garbage is None:
        payload, message = child.measured, f"after its measurement: {message}"
        cut, outcome, step = outcome, Outcome.OK, Step.EXIT
    # Forking or another trial can cause these; a setting that raises would raise again.
    died = (
        outcome is Outcome.CRASHED
        and child.code is not None
        and child.code < 0
        and not ours
    )
    doubts = {"forked": child.forked, "beside other trials": child.company}
    since = time.time() - time.monotonic()
    return Ending(
        outcome,
        step,
        message,
        payload,
        wall_s=sum(child.clock.step_s.values()),
        step_s=child.clock.step_s,
        spans=tuple(
            (step, since + begin, since + end) for step, begin, end in child.clock.spans
        ),
        pauses=tuple(child.clock.pauses),
        stack=child.dump.decode("utf-8", "replace").strip(),
        doubts=tuple(n for n in doubts if doubts[n] and (died or outcome in _DOUBTFUL)),
        not_built=child.not_built,
        cut=cut,
    )


def conclude(child: Child, is_oom: bool = False) -> tuple[Outcome, Step, str]:
    """Outcome, step and one-line message of a trial that has ended.

    A result that has arrived is final, whatever the process does later. The exception is a
    failure while the OOM killer ended a process of the trial: that is out of memory.
    """
    job, step, code = child.job, child.clock.step, child.code
    said_in, words = step, ""
    if child.result is not None:
        said = child.result
        try:
            outcome, said_in = Outcome(said["outcome"]), Step(said["step"])
        except (KeyError, ValueError):
            return Outcome.CRASHED, step, "sent a malformed result"
        words = str(said.get("message", ""))
        if outcome is Outcome.OK or not is_oom:
            return outcome, said_in, words
    match child.killed_for:
        case "interrupted":
            return Outcome.INTERRUPTED, step, "stopped before it finished"
        case "timeout":
            what = f"still in {step.value} after {job.allowed_s(step):.0f} s"
            return Outcome.TIMEOUT, step, what + _place(child)
        case "total":
            what = f"all steps together took more than {job.total_timeout_s or 0:.0f} s"
            return Outcome.TIMEOUT, step, what + _place(child)
        case "memory":
            gib = (job.memory_limit_bytes or 0) / 2**30
            return (
                Outcome.OUT_OF_MEMORY,
                step,
                f"its processes held more than {gib:.1f} GiB",
            )
    if is_oom:
        what = "the kernel's OOM killer ended one of its processes"
        return Outcome.OUT_OF_MEMORY, said_in, what + (f" ({words})" if words else "")
    if child.garbage is not None:
        return Outcome.CRASHED, step, f"wrote to the result channel: {child.garbage}"
    whose = "" if child.rank is None else f"rank {child.rank}: "
    if code is None:
        return Outcome.INFRASTRUCTURE, step, "its processes were killed from outside"
    if code < 0:
        name = (
            signal.Signals(-code).name
            if -code in set(signal.Signals)
            else f"signal {-code}"
        )
        return Outcome.CRASHED, step, f"{whose}{name} in {step.value}"
    what = f"{whose}exited with code {code} in {step.value} without a result"
    lines = child.last_output.decode("utf-8", "replace").strip().splitlines()
    return Outcome.CRASHED, step, f"{what}: {lines[-1][:200]}" if lines else what


def dump_in(log: str) -> tuple[str, list[str]]:
    """What stands before a dump of faulthandler, with the fatal error that it names, and the frames
    of the thread that ran, innermost first.

    No thread is marked where the signal met none of Python's: the last one is then the main thread.
    """
    before, *threads = _THREAD.split(log)
    marked = [thread for thread in threads if thread.startswith("Current")]
    lines = (marked or threads or [""])[-1].splitlines()[1:]
    return before, list(itertools.takewhile(lambda s: s.startswith("  File "), lines))


def _place(child: Child) -> str:
    """The innermost frame of the thread that was running, as ``, in f (model.py:7)``."""
    _, frames = dump_in(child.dump.decode("utf-8", "replace"))
    match = _FRAME.search("\n".join(frames))
    if match is None:
        return ""
    name = match["file"].replace("\\", "/").rsplit("/", 1)[-1]
    return f", in {match['name']} ({name}:{match['line']})"
