"""One function that turns an exception in a trial into an outcome."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import torch
from torch._dynamo import exc

from autocompile.errors import AutocompileError, UsageError, first_words
from autocompile.runtime.ranks import ApartError, here
from autocompile.store.record import Outcome, Step, TaskResult
from autocompile.trial.measure.telemetry import breaks_of, recompile_reasons

_NO_MEMORY = (MemoryError, torch.OutOfMemoryError)
_MISSING = (ImportError, FileNotFoundError)
_REFUSED = re.compile(
    r"unexpected keyword argument|Unrecognized mode|Unexpected optimization option"
    r"|Invalid backend|is only supported|not supported on this|Cannot find a working triton"
)


class Failed(Exception):
    """Ends the trial with an outcome that no other exception stands for."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        self.outcome = outcome
        super().__init__(message)


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what it was raised from.

    Excludes an error that was only being handled at the time, such as a missing cache entry, except
    where torch wraps a backend's error.
    """
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        following = getattr(current, "inner_exception", None) or current.__cause__
        wraps = (
            isinstance(current, exc.BackendCompilerFailed)
            and not current.__suppress_context__
        )
        if following is None and wraps:
            following = current.__context__
        current = following
    return chain


def outcome_of(error: BaseException, step: Step) -> Outcome:
    """What an exception at a step means for the trial."""
    causes = _causes(error)
    if any(
        isinstance(e, _NO_MEMORY) or "DefaultCPUAllocator" in str(e) for e in causes
    ):
        return Outcome.OUT_OF_MEMORY
    if step is Step.IMPORT:
        return Outcome.IMPORT_ERROR
    if isinstance(error, ApartError) and step is not Step.EAGER:
        return Outcome.WRONG_OUTPUT
    if step in (Step.BUILD, Step.EAGER):
        return Outcome.RUNTIME_ERROR
    if any(isinstance(e, exc.FailOnRecompileLimitHit) for e in causes):
        return Outcome.RECOMPILE_LIMIT
    if isinstance(error, exc.InvalidBackend):
        return Outcome.UNSUPPORTED
    if isinstance(error, exc.Unsupported):
        return Outcome.GRAPH_BREAK
    if step is not Step.COMPILE:
        return Outcome.RUNTIME_ERROR
    is_refused = any(isinstance(e, _MISSING) or _REFUSED.search(str(e)) for e in causes)
    if is_refused or isinstance(error, UsageError):
        return Outcome.UNSUPPORTED
    return Outcome.COMPILE_ERROR


def note_failure(
    result: TaskResult, error: BaseException, step: Step, home: Path
) -> None:
    """Put the outcome, the words and the place of an exception at a step into a result.

    ``home``: the folder of the user's own code.
    """
    _note_failure(result, error, step, home)
    # All ranks compare the same numbers, so what is wrong with them is of no one rank.
    if result.outcome is not Outcome.WRONG_OUTPUT and (name := here().name):
        result.message = f"{name}: {result.message}"


def _note_failure(
    result: TaskResult, error: BaseException, step: Step, home: Path
) -> None:
    if isinstance(error, Failed):
        result.outcome, result.message = error.outcome, str(error)
        return
    result.outcome, result.message = outcome_of(error, step), first_words(error)
    result.where = where_in(error, home)
    if result.outcome is Outcome.GRAPH_BREAK:
        result.breaks = breaks_of(error, home)
    if any(isinstance(e, exc.FailOnRecompileLimitHit) for e in _causes(error)):
        # The last reason is what went on until the limit.
        why = ("no reason is known", *recompile_reasons())[-1]
        result.message = (
            f"compiled anew until torch's limit, and eager from there: {why}"
        )
    if isinstance(error, AutocompileError):
        result.message = what = error.what
        result.explained = {
            "what": what,
            "details": list(error.details),
            "hint": error.hint,
        }


def where_in(error: BaseException, folder: Path) -> str | None:
    """The last line of the user's own code that an exception passed through."""
    if isinstance(error, SyntaxError) and error.filename:
        text = (error.text or "").strip()
        return f"{Path(error.filename).name}:{error.lineno}   {text}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(folder) and "site-packages" not in path.parts:
            return f"{path.name}:{frame.lineno}   {frame.line}"
    return None
