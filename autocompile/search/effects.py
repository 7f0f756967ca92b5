"""Predicts the log speed-up of settings by a Gaussian model of main effects.

Each field that differs from the default adds an effect, and each setting adds one as a whole. Every
effect has a part shared by all batch sizes of a phase and a part of its own at each, so a result at
one batch size informs the others. The prior means come from recorded tables (``prior.json``, made
by studies/search/learn.py).

Failed trials say nothing of speed, but of how likely settings like them are to fail.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState
from threadpoolctl import ThreadpoolController

from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.settings.setting import Setting

__all__ = ["Effects", "Prior", "doubt", "expected_gain", "failures_of", "prior_of"]

# Prior standard deviations of effects on the log speed-up.
_FIELDS = {"optimizer": 0.3, "threads": 0.05, "dynamic": 0.05, "scope": 0.1}
_FIELDS |= {"inductor triton.cudagraphs": 0.15, "inductor max_autotune": 0.1, "inductor mode": 0.1}
_FIELD, _OPTION = 0.15, 0.08  # other fields, other options
_HERE = 0.5  # of the part at one batch size, relative to the shared part
_PLAIN_LOG = 0.02  # penalty for each further field, so that combinations come later
_WHOLE, _WHOLE_HERE = 0.05, 0.04  # of a setting as a whole: shared part, part at a batch size
_WORST = -0.7  # log speed-up below which a result counts as noisier
_NOISE, _WIDTH = 0.03, 3.92  # of one process; width of a 95 % interval in standard deviations


@dataclass(frozen=True)
class Prior:
    """Prior from recorded tables for a kind of phase and device.

    Attributes:
        effects: mean log speed-up by field.
        seconds: by field, seconds that it adds to a search trial.
        base_s: seconds of a trial that compiles nothing.
    """

    effects: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    base_s: float = 2.0

    def mean(self, config: CompileConfig) -> float:
        """The expected log speed-up; each further field costs a little."""
        known = sum(self.effects.get(name, 0.0) for name in config.features)
        return known - _PLAIN_LOG * max(0, len(config.features) - 1)

    def cost_s(self, config: CompileConfig) -> float:
        return self.base_s + sum(self.seconds.get(n, _seconds(n)) for n in config.features)


def _seconds(feature: str) -> float:
    """Seconds that a field adds to a trial if it is in no table."""
    if feature.endswith(" eager") or feature.startswith("optimizer"):
        return 0.0
    if feature == "freezing=True":
        return 8.0
    if "=" not in feature or "autotune" in feature or "cpp_wrapper" in feature:
        return 5.0  # a backend, or a slow option
    return 1.0


def prior_of(device: str, phase: str, has_convolutions: bool) -> Prior:
    """The prior of the nearest recorded kind of device, phase and layers."""
    table = json.loads(Path(__file__).with_name("prior.json").read_text("utf-8"))["priors"]
    phase = phase_of(phase).prior or phase
    layers = "conv" if has_convolutions else "other"
    for key in (f"{device}/{phase}/{layers}", f"{device}/{phase}"):
        if key in table:
            return Prior(**table[key])
    return Prior()


class Effects:
    """The model of all settings of a study, with a prior for each phase."""

    def __init__(self, settings: Sequence[Setting], priors: Mapping[str, Prior]) -> None:
        # BLAS runs in one thread: busy-waiting threads would slow the trials.
        self._blas = ThreadpoolController()
        self._index = {s: i for i, s in enumerate(settings)}
        self._mean = np.array([priors[s.phase].mean(s.config) for s in settings])
        self._phase = _codes([s.phase for s in settings])
        self._cell = _codes([s.cell for s in settings])
        self._config = _codes([s.config for s in settings])
        names = [s.config.features for s in settings]
        known = {name: i for i, name in enumerate(sorted(set().union(*names)))}
        self._has = np.zeros((len(settings), len(known)))
        for row, own in enumerate(names):
            for name in own:
                kind = name.split("=")[0]
                deviation = _FIELDS.get(kind, _OPTION if " " in kind else _FIELD)
                self._has[row, known[name]] = deviation
        # The speed-up of plain eager is known to be 1.
        self._unknown = (self._has > 0).any(axis=1).astype(float)

    def expected(
        self,
        seen: Mapping[Setting, float],
        left: Sequence[Setting],
        spreads: Mapping[Setting, float],
    ) -> tuple[Any, Any]:
        """Mean and standard deviation of the log speed-up of each setting in ``left``.

        Args:
            seen: measured log speed-ups; ``spreads``: widths of their 95 % intervals.
        """
        with self._blas.limit(limits=1, user_api="blas"):
            rows = np.array([self._index[s] for s in left], dtype=int)
            mean = self._mean[rows].copy()
            variance = np.square(self._has[rows]).sum(axis=1) * (1 + _HERE**2)
            variance = self._unknown[rows] * (variance + (_WHOLE**2 + _WHOLE_HERE**2))
            if seen:
                known = np.array([self._index[s] for s in seen], dtype=int)
                residual = np.maximum(list(seen.values()), _WORST) - self._mean[known]
                noise = [
                    _NOISE + spreads.get(s, 0.0) / _WIDTH + max(0.0, _WORST - value)
                    for s, value in seen.items()
                ]
                own = self._between(known, known) + np.diag(np.square(noise))
                cross = self._between(rows, known)
                solved = np.linalg.solve(own, cross.T)
                mean += residual @ solved
                variance = variance - np.einsum("ij,ji->i", cross, solved)
            return mean, np.sqrt(np.maximum(variance, 1e-8))

    def _between(self, rows: Any, columns: Any) -> Any:
        """Prior covariances of the settings' log speed-ups."""
        alike = self._phase[rows][:, None] == self._phase[columns]
        here = self._cell[rows][:, None] == self._cell[columns]
        same = (self._config[rows][:, None] == self._config[columns]) & alike
        unknown = self._unknown[rows][:, None] * self._unknown[columns]
        fields = (self._has[rows] @ self._has[columns].T) * alike * (1 + _HERE**2 * here)
        return unknown * (fields + same * (_WHOLE**2 + _WHOLE_HERE**2 * here))


def _codes(values: Sequence[Any]) -> Any:
    known: dict[Any, int] = {}
    return np.array([known.setdefault(v, len(known)) for v in values])


def expected_gain(mean: Any, deviation: Any, best: Any) -> Any:
    """Expected improvement of a normal variable over ``best``."""
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    return deviation * (z * below + density)


def _fingerprint(trial: FrozenTrial) -> str:
    """The outcome and message without numbers, addresses and paths, equal for similar failures."""
    message = trial.user_attrs.get("message", "")
    words = re.sub(r"0x[0-9a-f]+|\d+|\S*[/\\]\S+", "#", message)
    return f"{trial.user_attrs.get('outcome', '')} {words[:120]}"


def failures_of(begun: Mapping[Setting, FrozenTrial]) -> list[tuple[frozenset[str], int]]:
    """(common features, count) of each group of similar failures in processes.

    The common features are the best guess at the cause.
    """
    groups: dict[str, list[frozenset[str]]] = defaultdict(list)
    for setting, trial in begun.items():
        if trial.state is TrialState.PRUNED and trial.user_attrs.get("seconds"):
            groups[_fingerprint(trial)].append(setting.config.features | {setting.phase})
    return [(frozenset.intersection(*group), len(group)) for group in groups.values()]


def doubt(setting: Setting, failures: Sequence[tuple[frozenset[str], int]]) -> float:
    """1 if no failure resembles the setting; grows with the number of similar failures."""
    own = setting.config.features | {setting.phase}
    return math.prod(1.0 + count for common, count in failures if common <= own)
