"""What the failures of a search say of the settings that have not been tried."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from optuna.trial import FrozenTrial, TrialState

from autocompile.space.space import Setting

__all__ = ["doubt", "failures_of", "fingerprint"]


def fingerprint(outcome: str, message: str) -> str:
    """Equal for failures that look alike: numbers, addresses and paths in the message differ."""
    words = re.sub(r"0x[0-9a-f]+|\d+|\S*[/\\]\S+", "#", message)
    return f"{outcome} {words[:120]}"


def failures_of(begun: Mapping[Setting, FrozenTrial]) -> list[tuple[frozenset[str], int]]:
    """What the settings that failed in one way have in common, and how many they are.

    They fail for one reason, and what they have in common is the best guess at it. A setting that
    no process has tried says nothing of others.
    """
    found: dict[str, tuple[frozenset[str], int]] = {}
    for setting, trial in begun.items():
        if trial.state is TrialState.PRUNED and trial.user_attrs.get("seconds"):
            attributes = trial.user_attrs
            mark = fingerprint(attributes.get("outcome", ""), attributes.get("message", ""))
            own = setting.config.features | {setting.phase}
            common, count = found.get(mark, (own, 0))
            found[mark] = common & own, count + 1
    return list(found.values())


def doubt(setting: Setting, failures: Sequence[tuple[frozenset[str], int]]) -> float:
    """1 where nothing speaks against it, the more failures are like it the larger."""
    own = setting.config.features | {setting.phase}
    return math.prod(1.0 + count for common, count in failures if common <= own)
