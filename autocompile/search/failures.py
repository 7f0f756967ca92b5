"""Estimates from failed trials how likely untried settings are to fail."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from optuna.trial import FrozenTrial, TrialState

from autocompile.space.space import Setting

__all__ = ["doubt", "failures_of", "fingerprint"]


def fingerprint(outcome: str, message: str) -> str:
    """The outcome and message without numbers, addresses and paths, equal for similar failures."""
    words = re.sub(r"0x[0-9a-f]+|\d+|\S*[/\\]\S+", "#", message)
    return f"{outcome} {words[:120]}"


def failures_of(begun: Mapping[Setting, FrozenTrial]) -> list[tuple[frozenset[str], int]]:
    """(common features, count) of each group of similar failures.

    The common features are the best guess at the cause. Settings that did not run in a process are
    ignored.
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
    """1 if no failure resembles the setting; grows with the number of similar failures."""
    own = setting.config.features | {setting.phase}
    return math.prod(1.0 + count for common, count in failures if common <= own)
