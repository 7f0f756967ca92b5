"""What is expected of a setting: main effects of its fields on the logarithm of the speed-up.

A Gaussian model with few numbers. Each field that differs from the default adds its effect; the
effect is partly the same at all batch sizes of a phase and partly of its own at each, and so is
what a setting as a whole adds. Before anything is measured the effects are those of recorded tables
(``prior.json``, made by studies/search/learn.py): they are the portfolio. What one batch size shows
is expected of the others by the shared part.
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
from autocompile.space.space import Setting

__all__ = ["Effects", "Prior", "prior_of"]

# Standard deviations of logarithms of speed-ups.
_FIELDS = {"optimizer": 0.3, "threads": 0.05, "dynamic": 0.05, "scope": 0.1}
_FIELDS |= {"inductor triton.cudagraphs": 0.15, "inductor max_autotune": 0.1, "inductor mode": 0.1}
_FIELD, _OPTION = 0.15, 0.08  # of a field's effect: what is not named above; of an option
_HERE = 0.5  # of its own at one batch size, beside what a phase shares
_PLAIN_LOG = 0.02  # what each field is expected to cost beside others: combinations come later
_WHOLE, _WHOLE_HERE = 0.05, 0.04  # of what a setting adds to the effects of its fields
_WORST = -0.7  # a logarithm: the further below it a result is, the less it says of its relatives
_NOISE, _WIDTH = 0.03, 3.92  # of one process, and of a 95 % interval in standard deviations


@dataclass(frozen=True)
class Prior:
    """What recorded tables say of a kind of phase on a kind of device.

    Attributes:
        effects: mean logarithm of the speed-up that each field brings.
        seconds: of a trial of the search, by field: each adds its own to ``base_s``.
        base_s: of a trial that compiles nothing.
    """

    effects: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    base_s: float = 2.0

    def mean(self, config: CompileConfig) -> float:
        """The expected logarithm of the speed-up."""
        return sum(self.effects.get(name, 0.0) for name in config.features)

    def cost_s(self, config: CompileConfig) -> float:
        """The expected seconds of a trial."""
        own = (self.seconds.get(name, _seconds(name)) for name in config.features)
        return self.base_s + sum(own)


def _seconds(feature: str) -> float:
    """Seconds that a field adds to a trial, where no table knows it."""
    if feature.endswith(" eager") or feature.startswith("optimizer"):
        return 0.0
    if feature == "freezing=True":
        return 8.0
    if "=" not in feature or "autotune" in feature or "cpp_wrapper" in feature:
        return 5.0  # a backend, to begin with
    return 1.0


def prior_of(device: str, phase: str, has_convolutions: bool) -> Prior:
    """The prior of the nearest kind that was recorded: device, phase and kind of layers."""
    table = _table()
    phase = phase_of(phase).prior or phase
    layers = "conv" if has_convolutions else "other"
    for key in (f"{device}/{phase}/{layers}", f"{device}/{phase}"):
        if key in table:
            return Prior(**table[key])
    return Prior()


def _table() -> Mapping[str, Any]:
    path = Path(__file__).with_name("prior.json")
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))["priors"]
    return found


class Effects:
    """The model of all settings of a study.

    Args:
        settings: of all phases and batch sizes.
        priors: by phase.
    """

    def __init__(self, settings: Sequence[Setting], priors: Mapping[str, Prior]) -> None:
        # Trials have the cores: threads of BLAS would wait for them, and hold them up by spinning.
        self._blas = ThreadpoolController()
        self.index = {s: i for i, s in enumerate(settings)}
        self._mean = np.array([_prior_log(priors[s.phase], s.config) for s in settings])
        self._phase = _codes([s.phase for s in settings])
        self._cell = _codes([s.cell for s in settings])
        self._config = _codes([s.config for s in settings])
        names = [s.config.features for s in settings]
        known = {name: i for i, name in enumerate(sorted(set().union(*names)))}
        self._has = np.zeros((len(settings), len(known)))
        for row, own in enumerate(names):
            for name in own:
                self._has[row, known[name]] = _deviation(name)
        # Eager against itself is no unknown.
        self._unknown = (self._has > 0).any(axis=1).astype(float)

    def expected(
        self,
        seen: Mapping[Setting, float],
        left: Sequence[Setting],
        spreads: Mapping[Setting, float] | None = None,
    ) -> tuple[Any, Any]:
        """Mean and standard deviation of the logarithm of the speed-up of each that is left.

        Args:
            seen: logarithms that were measured.
            left: settings of interest.
            spreads: how wide the 95 % interval of each logarithm is, by the rounds of its process.
        """
        with self._blas.limit(limits=1, user_api="blas"):
            return self._expected(seen, left, spreads or {})

    def _expected(
        self,
        seen: Mapping[Setting, float],
        left: Sequence[Setting],
        spreads: Mapping[Setting, float],
    ) -> tuple[Any, Any]:
        rows = np.array([self.index[s] for s in left], dtype=int)
        mean = self._mean[rows].copy()
        variance = self._between(rows, rows, diagonal=True)
        if seen:
            known = np.array([self.index[s] for s in seen], dtype=int)
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

    def _between(self, rows: Any, columns: Any, diagonal: bool = False) -> Any:
        """Covariances of the true effects of settings."""
        if diagonal:
            shared = np.square(self._has[rows]).sum(axis=1)
            here = same = np.ones(rows.size)
            unknown = self._unknown[rows]
        else:
            shared = self._has[rows] @ self._has[columns].T
            shared = shared * (self._phase[rows][:, None] == self._phase[columns])
            here = self._cell[rows][:, None] == self._cell[columns]
            same = (self._config[rows][:, None] == self._config[columns]) & (
                self._phase[rows][:, None] == self._phase[columns]
            )
            unknown = self._unknown[rows][:, None] * self._unknown[columns]
        fields = shared * (1 + _HERE**2 * here)
        return unknown * (fields + same * (_WHOLE**2 + _WHOLE_HERE**2 * here))


def _prior_log(prior: Prior, config: CompileConfig) -> float:
    return prior.mean(config) - _PLAIN_LOG * max(0, len(config.features) - 1)


def _deviation(feature: str) -> float:
    """Of the effect of a field, before anything is measured."""
    name = feature.split("=")[0]
    return _FIELDS.get(name, _OPTION if " " in name else _FIELD)


def _codes(values: Sequence[Any]) -> Any:
    known: dict[Any, int] = {}
    return np.array([known.setdefault(v, len(known)) for v in values])


def expected_gain(mean: Any, deviation: Any, best: Any) -> Any:
    """How much better than ``best`` a normal value is expected to be; worse counts as nothing."""
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    return deviation * (z * below + density)
