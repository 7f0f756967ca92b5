"""Settings that were measured under another interpreter cannot be used here."""

from __future__ import annotations

from autocompile.errors import UsageError
from autocompile.interpreters.named import DEFAULT
from autocompile.settings.tuned import Choice, Tuned


def demand_this_interpreter(tuned: Tuned, phase: str, choice: Choice) -> None:
    """Raise a UsageError if a choice was measured under another interpreter."""
    if (name := choice.config.environment) != DEFAULT:
        path = tuned.interpreters.get(name)
        raise UsageError(
            f"the best setting of {phase} needs the interpreter {name}",
            hint=f"run your program with {path}" if path else None,
        )
