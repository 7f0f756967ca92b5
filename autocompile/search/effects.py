"""Predicts the log speed-up of settings by a Gaussian model of main effects.

Each field that differs from the default adds an effect, and each setting adds one as a whole. Every
effect has a part shared by all batch sizes of a phase and a part of its own at each, so a result at
one batch size informs the others. The prior means come from recorded tables (``prior.json``, made
by studies/search/learn.py).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from autocompile.settings.config import DEFAULT_INDUCTOR, CompileConfig, Setting
from autocompile.settings.phases import phase_of

# Prior standard deviations of effects on the log speed-up.
_FIELDS = {
    "threads": 0.05,
    "dynamic": 0.05,
    "scope": 0.1,
    "inductor triton.cudagraphs": 0.15,
}
_FIELDS |= {"inductor max_autotune": 0.1, "inductor mode": 0.1}
_FIELDS |= {"optimizer": 0.3, "autocast": 0.5, "precision": 0.5}
_FIELD, _OPTION = 0.15, 0.08  # other fields, other options
_HERE = 0.5  # of the part at one batch size, relative to the shared part
_PLAIN_LOG = 0.02  # penalty for each further field, so that combinations come later
_WHOLE, _WHOLE_HERE = (
    0.05,
    0.04,
)  # of a setting as a whole: shared part, part at a batch size
_WORST = -0.7  # log speed-up below which a result counts as noisier
# Of compiling, over the root of the operators of a call: equal code is compiled once. Of ten
# models with 5 to 447 operators, it is within a factor of 2.4 of what they took
# (studies/search/operators.py).
_PER_ROOT_S = 1.3
_SECONDS = 3.0  # that a field adds to a trial if it is in no table


@dataclass(frozen=True)
class Prior:
    """Prior from recorded tables for a kind of phase and device."""

    effects: Mapping[str, float] = field(
        default_factory=dict
    )  # mean log speed-up by field
    seconds: Mapping[str, float] = field(
        default_factory=dict
    )  # that a field adds to a trial
    base_s: float = 2.0  # of a trial that compiles nothing

    def mean(self, config: CompileConfig) -> float:
        """The expected log speed-up; each further field costs a little."""
        known = sum(self.effects.get(name, 0.0) for name in config.features)
        return known - _PLAIN_LOG * max(0, len(config.features) - 1)

    def compiling(self, operators: int) -> Prior:
        """The same for a call of so many operators, where compiling takes longer."""
        plain_s = self.cost_s(DEFAULT_INDUCTOR) - self.base_s
        expected_s = _PER_ROOT_S * math.sqrt(operators)
        if expected_s <= plain_s:
            return self
        longer = expected_s / plain_s
        seconds = {name: longer * each for name, each in self.seconds.items()}
        return dataclasses.replace(self, seconds=seconds)

    def cost_s(self, config: CompileConfig) -> float:
        return self.base_s + sum(
            self.seconds.get(n, _SECONDS) for n in costs_of(config)
        )


def costs_of(config: CompileConfig) -> list[str]:
    """The fields that take seconds: a whole step also compiles an optimizer that is not fused."""
    of_optimizer = "optimizer=compiled compiled"
    is_within = (
        config.scope == "step" and config.optimizer != "fused" and not config.is_eager
    )
    return list(
        dict.fromkeys([*config.features, *([of_optimizer] if is_within else [])])
    )


def prior_of(
    device: str, phase: str, has_convolutions: bool, operators: int | None = None
) -> Prior:
    """The prior of the nearest recorded kind of device, phase and layers.

    Args:
        operators: that a call in eager mode runs: of many, compiling takes longer than of the
            small models of the tables; None: not known.
    """
    table = json.loads(Path(__file__).with_name("prior.json").read_text("utf-8"))[
        "priors"
    ]
    phase = phase_of(phase).prior or phase
    layers = "conv" if has_convolutions else "other"
    for key in (f"{device}/{phase}/{layers}", f"{device}/{phase}"):
        if key in table:
            return Prior(**table[key]).compiling(operators or 0)
    return Prior().compiling(operators or 0)


class Effects:
    """The model of all settings of a study, with a prior for each phase."""

    def __init__(
        self, settings: Sequence[Setting], priors: Mapping[str, Prior]
    ) -> None:
        # BLAS runs in one thread: busy-waiting threads would slow the trials.
        self._blas = ThreadpoolController()
        self._prior = np.array([priors[s.phase].mean(s.config) for s in settings])
        self._phase = _codes([s.phase for s in settings])
        self.cell = _codes([s.cell for s in settings])  # of phase and batch size
        self._config = _codes([s.config for s in settings])
        names = sorted(set().union(*(s.config.features for s in settings)))
        rows = [[name in s.config.features for name in names] for s in settings]
        has = np.array(rows, dtype=bool).reshape(len(settings), len(names))
        kinds = [name.split("=")[0] for name in names]
        deviations = [
            _FIELDS.get(kind, _OPTION if " " in kind else _FIELD) for kind in kinds
        ]
        self._deviations = has * np.array(deviations)
        # The speed-up of plain eager is known to be 1.
        self._unknown = has.any(axis=1).astype(float)
        own = np.square(self._deviations).sum(axis=1) * (1 + _HERE**2)
        self._variance = self._unknown * (own + _WHOLE**2 + _WHOLE_HERE**2)

    def posterior(self, values: Any, noise: Any) -> tuple[Any, Any]:
        """Mean and standard deviation of the log speed-up of each setting, given the results.

        ``values``: measured log speed-ups of all settings, NaN where there is none; ``noise``:
        their standard deviations.
        """
        known = np.flatnonzero(~np.isnan(values))
        noise = noise[known] + np.maximum(0.0, _WORST - values[known])
        surprise = np.maximum(values[known], _WORST) - self._prior[known]
        with self._blas.limit(limits=1, user_api="blas"):
            covariance = self._covariance(known)
            weights = np.linalg.solve(
                covariance[:, known] + np.diag(noise**2), covariance
            )
            mean = self._prior + surprise @ weights
        variance = self._variance - (covariance * weights).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 1e-8))

    def _covariance(self, known: Any) -> Any:
        """Prior covariances of the log speed-ups of some settings (rows) with those of all."""
        alike, here, same = (
            each[known, None] == each for each in (self._phase, self.cell, self._config)
        )
        fields = (self._deviations[known] @ self._deviations.T) * (1 + _HERE**2 * here)
        whole = same * (_WHOLE**2 + _WHOLE_HERE**2 * here)
        return self._unknown[known, None] * self._unknown * alike * (fields + whole)


def _codes(values: Sequence[Any]) -> Any:
    """The position of each value among the different ones."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(v, len(known)) for v in values])


def expected_gain(mean: Any, deviation: Any, best: Any) -> Any:
    """Expected improvement of a normal variable over ``best``."""
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.array([*map(math.erf, (z / math.sqrt(2)).tolist())]))
    return deviation * (z * below + density)
