"""The recorded series: what some settings bring by long truths, and the tunes beside them.

``series_cpu.json`` and ``series_cuda.json`` hold them by host and network. A truth is the ratios of
eager to compiled time, a list for each process of each setting. A tune has its pick and its figure
as they were reported and, on a CPU, the raw rounds of its search and of its race.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from autocompile.settings.config import CompileConfig

HERE = Path(__file__).parent
EAGER = "eager"
SAME = 0.01  # settings within 1 % of the best are as good as it

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "lite": {"mode": "lite"},
    "dynamic=False": {"dynamic": False},
    "dynamic=True": {"dynamic": True},
    "aot_eager": {"backend": "aot_eager"},
    "cudagraphs": {"backend": "cudagraphs"},
}
CONFIGS = {EAGER: CompileConfig(EAGER)} | {
    name: CompileConfig(**given) for name, given in SETTINGS.items()
}
NAMES = {config: name for name, config in CONFIGS.items()}
ON_A_GPU = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "cudagraphs")


class Network(NamedTuple):
    """What of a network was timed."""

    phase: str
    batch_size: int | None


NETWORKS = {
    "mlp": Network("forward", 64),
    "cnn": Network("forward", 4),
    "ppo": Network("forward_exploration", 4),
    "adam": Network("optimizer_step", None),
}


class Series(NamedTuple):
    """A network on a host: the true speed-up of each setting, and the tunes."""

    host: str
    network: str
    truth: dict[str, float]
    tunes: list[dict[str, Any]]


def recorded(device: str) -> Iterator[Series]:
    hosts = json.loads((HERE / f"series_{device}.json").read_text())
    for host, networks in hosts.items():
        for network, found in networks.items():
            yield Series(host, network, truth(found["truth"]), found["tunes"])


def truth(processes: dict[str, Sequence[Sequence[float]]]) -> dict[str, float]:
    """The median of the rounds of all processes; eager mode is 1."""
    rounds = {name: chain(*each) for name, each in processes.items()}
    return {EAGER: 1.0} | {name: median(ratios) for name, ratios in rounds.items()}


def behind(pick: str, true: dict[str, float]) -> float:
    """The share of the best setting's speed that a pick lacks; 0 if it is as good."""
    best = max(true.values())
    return 0.0 if true[pick] * (1 + SAME) >= best else 1 - true[pick] / best
