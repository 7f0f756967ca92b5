"""What the trials of an Optuna study say of a finite list of settings, as vectors over the list.

Failed trials say nothing of speed, but of how likely settings like them are to fail.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

__all__ = ["FAILED", "LEFT", "RUNNING", "WORKED", "Seen", "doubts"]

LEFT = 0
RUNNING = 1
FAILED = 2
WORKED = 3
# Failures of one kind mostly have one cause: frozen weights of a model with a cache failed 8 times.
_LESS_LIKELY, _MANY = 3.0, 20
_STATES = {TrialState.COMPLETE: WORKED, TrialState.PRUNED: FAILED}


class Seen:
    """What the trials of a study say of listed settings, as vectors over the list.

    Optuna's storages never change a trial but replace it, so only new objects are read.

    Attributes:
        version: another one after each change.
        state: of the setting's last trial; as if it had none if that was interrupted.
        values: log speed-ups, NaN where there is none; ``spreads``: widths of 95 % intervals.
        seconds: that its process took; 0 if it had none.
        failures: positions of the settings of each group of similar failures in processes, of all
            trials; a setting is in a group once.
    """

    def __init__(self, count: int, position: Callable[[FrozenTrial], int | None]) -> None:
        self._count, self._position = count, position
        self.version = 0
        self._forget()

    def _forget(self) -> None:
        self._trials: Sequence[FrozenTrial] = ()
        self._last = np.full(self._count, -1)  # number of the setting's last trial
        self.state = np.full(self._count, LEFT)
        self.values = np.full(self._count, np.nan)
        self.spreads, self.seconds = np.zeros(self._count), np.zeros(self._count)
        self.failures: dict[str, list[int]] = defaultdict(list)
        self.version += 1

    def update(self, trials: Sequence[FrozenTrial]) -> None:
        # Without a loop in Python, since there may be thousands of trials and few are new.
        is_new = list(map(operator.is_not, self._trials, trials))
        pairs = itertools.compress(zip(self._trials, trials, strict=False), is_new)
        if len(trials) < len(self._trials) or not all(_goes_on(old, new) for old, new in pairs):
            self._forget()
            is_new = []
        changed = [*itertools.compress(trials, is_new), *trials[len(is_new) :]]
        self._trials = tuple(trials)
        for trial in changed:
            position = self._position(trial)
            if position is not None and trial.state is not TrialState.FAIL:
                self._read(position, trial)

    def _read(self, i: int, trial: FrozenTrial) -> None:
        state = _STATES.get(trial.state, RUNNING)
        seconds = trial.user_attrs.get("seconds") or 0.0
        if state == FAILED and seconds:
            group = self.failures[_fingerprint(trial)]
            if i not in group:
                group.append(i)
                self.version += 1
        if trial.number < self._last[i]:  # of two of a setting, the older may end last
            return
        self._last[i] = trial.number
        if state == self.state[i] == RUNNING:
            return
        self.state[i] = state
        self.version += 1
        self.seconds[i] = seconds
        self.values[i] = math.log(trial.value) if trial.value and trial.value > 0 else np.nan
        self.spreads[i] = trial.user_attrs.get("spread", 0.0)


def _goes_on(old: FrozenTrial, new: FrozenTrial) -> bool:
    """Whether one is the other at a later time, and not of another study or interrupted."""
    if old.state.is_finished() or new.state is TrialState.FAIL:
        return False
    return old.params.items() <= new.params.items()


def _fingerprint(trial: FrozenTrial) -> str:
    """The outcome and message without numbers, addresses and paths, equal for similar failures."""
    message = trial.user_attrs.get("message", "")
    words = re.sub(r"0x[0-9a-f]+|\d+|\S*[/\\]\S+", "#", message)
    return f"{trial.user_attrs.get('outcome', '')} {words[:120]}"


def doubts(failures: Collection[Sequence[int]], has: Any, phase: Any, worked: Any) -> Any:
    """1 for settings that no failure resembles; grows with the number of similar failures.

    Args:
        failures: positions of the settings of each group of similar failures. Their common features
            are the best guess at the cause.
        has: which setting (row) has which feature (column); ``phase``: which has which phase.
        worked: which settings have worked; what shares the features too speaks against the guess.
    """
    found = np.ones(len(has))
    for group in failures:
        common = has[list(group)].all(axis=0)
        alike = has[:, common].all(axis=1)
        if len({*phase[list(group)]}) == 1:
            alike &= phase == phase[group[0]]
        count = min(len(group) - int((alike & worked).sum()), _MANY)
        if common.any() and count > 0:
            found *= np.where(alike, _LESS_LIKELY**count, 1.0)
    return found
