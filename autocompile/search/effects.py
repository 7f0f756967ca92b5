"""Predicts the log speed-up of settings by a Gaussian model of main effects.

Each field that differs from the default adds an effect, and each setting adds one as a whole. Every
effect has a part shared by all batch sizes of a phase and a part of its own at each, so a result at
one batch size informs the others. The prior means come from recorded tables (``prior.json``, made
by studies/search/learn.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.settings.setting import Setting

__all__ = ["Effects", "Prior", "codes", "expected_gain", "feature_table", "prior_of"]

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
    """The model of all settings of a study, with a prior for each phase.

    Each result adds one row to the Cholesky factor of the results' covariance, so that it costs
    (results × settings) operations and nothing is solved anew.

    Attributes:
        mean: of the log speed-up of each setting, by position, given the results so far.
    """

    def __init__(self, settings: Sequence[Setting], priors: Mapping[str, Prior]) -> None:
        # BLAS runs in one thread: busy-waiting threads would slow the trials.
        self._blas = ThreadpoolController()
        self._prior = np.array([priors[s.phase].mean(s.config) for s in settings])
        self._phase = codes([s.phase for s in settings])
        self._cell = codes([s.cell for s in settings])
        self._config = codes([s.config for s in settings])
        names, has = feature_table(settings)
        kinds = [name.split("=")[0] for name in names]
        deviations = [_FIELDS.get(kind, _OPTION if " " in kind else _FIELD) for kind in kinds]
        self._has = has * np.array(deviations)
        # The speed-up of plain eager is known to be 1.
        self._unknown = has.any(axis=1).astype(float)
        self._forget()

    def _forget(self) -> None:
        self.mean = self._prior.copy()
        own = np.square(self._has).sum(axis=1) * (1 + _HERE**2)
        self._variance = self._unknown * (own + (_WHOLE**2 + _WHOLE_HERE**2))
        self._values = np.full(len(self.mean), np.nan)
        self._spreads = np.zeros(len(self.mean))
        self._factor = np.empty((64, len(self.mean)))  # of its rows, as many as there are results
        self._count = 0
        self._columns: dict[int, Any] = {}  # of the covariance given the results: what runs

    def learn(self, values: Any, spreads: Any) -> None:
        """Take new results into account; where an earlier one has changed, begin anew.

        Args:
            values: measured log speed-ups of all settings, NaN where there is none; ``spreads``:
                widths of their 95 % intervals.
        """
        known = ~np.isnan(self._values)
        if (known & ((values != self._values) | (spreads != self._spreads))).any():
            self._forget()
        with self._blas.limit(limits=1, user_api="blas"):
            for i in np.flatnonzero(~np.isnan(values) & np.isnan(self._values)).tolist():
                self._condition(i, float(values[i]), float(spreads[i]))

    def _condition(self, i: int, value: float, spread: float) -> None:
        noise = _NOISE + spread / _WIDTH + max(0.0, _WORST - value)
        column = self._columns.pop(i) if i in self._columns else self._column(i)
        scale = math.sqrt(column[i] + noise**2)
        row = column / scale
        self.mean += row * ((max(value, _WORST) - self.mean[i]) / scale)
        self._variance -= np.square(row)
        for j, other in self._columns.items():
            other -= row[j] * row
        if self._count == len(self._factor):
            self._factor = np.vstack([self._factor, np.empty_like(self._factor)])
        self._factor[self._count] = row
        self._count += 1
        self._values[i], self._spreads[i] = value, spread

    def beside(self, running: Sequence[int]) -> tuple[Any, Any]:
        """Mean and standard deviation of all log speed-ups if what runs reaches its mean."""
        with self._blas.limit(limits=1, user_api="blas"):
            kept = self._columns
            self._columns = {i: kept[i] if i in kept else self._column(i) for i in running}
            mean, variance = self.mean, self._variance
            if running:
                cross = np.array([*self._columns.values()])
                below = np.maximum(0.0, _WORST - mean[running])
                own = cross[:, running] + np.diag(np.square(_NOISE + below))
                solved = np.linalg.solve(own, cross)
                mean = mean + below @ solved
                variance = variance - np.einsum("ij,ij->j", cross, solved)
            return mean, np.sqrt(np.maximum(variance, 1e-8))

    def _column(self, i: int) -> Any:
        """The covariances of a setting with all, given the results."""
        rows = self._factor[: self._count]
        return self._between(i) - rows[:, i] @ rows

    def _between(self, i: int) -> Any:
        """Prior covariances of a setting's log speed-up with all."""
        alike, here = self._phase == self._phase[i], self._cell == self._cell[i]
        same = self._config == self._config[i]
        fields = (self._has @ self._has[i]) * (1 + _HERE**2 * here)
        whole = same * (_WHOLE**2 + _WHOLE_HERE**2 * here)
        return self._unknown * self._unknown[i] * alike * (fields + whole)


def codes(values: Sequence[Any]) -> Any:
    """The position of each value among the different ones."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(v, len(known)) for v in values])


def feature_table(settings: Sequence[Setting]) -> tuple[list[str], Any]:
    """The names of all features, and which setting (row) has which (column)."""
    names = sorted(set().union(*(s.config.features for s in settings)))
    has = [[name in s.config.features for name in names] for s in settings]
    return names, np.array(has, dtype=bool).reshape(len(settings), len(names))


def expected_gain(mean: Any, deviation: Any, best: Any) -> Any:
    """Expected improvement of a normal variable over ``best``."""
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.fromiter(map(math.erf, z / math.sqrt(2)), float, len(z)))
    return deviation * (z * below + density)
