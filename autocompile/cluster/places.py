"""Where stations may be: the nodes of a cluster by accelerator type, from what Ray lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autocompile.errors import UsageError

__all__ = ["CPU", "Place", "places_of", "side_by_side"]

CPU = "cpu"
_LABEL = "ray.io/accelerator-type"
_RESOURCE = "accelerator_type:"  # of older clusters


@dataclass(frozen=True)
class Place:
    """Room for one station: a GPU with its share of the node's CPUs, or all CPUs of a node."""

    kind: str  # an accelerator type, or ``cpu``
    node: str  # id
    host: str
    gpus: int
    cpus: float
    share: float  # of the node that it may use

    @property
    def jobs(self) -> int:
        """Most trials that may compile side by side, if the user does not say how many."""
        return max(1, int(self.cpus))


def places_of(
    nodes: Iterable[Mapping[str, Any]], kinds: Sequence[str] | None
) -> dict[str, list[Place]]:
    """Places for stations of each accelerator type, in the order asked; None: all that are there.

    A ``cpu`` station is on a node without GPUs, if there is one.
    """
    alive = sorted((n for n in nodes if n["Alive"]), key=lambda n: str(n["NodeID"]))
    found: dict[str, list[Place]] = {}
    for node in alive:
        resources = node["Resources"]
        gpus, cpus = int(resources.get("GPU", 0)), float(resources.get("CPU", 0))
        for kind in _types(node) if gpus else ():
            place = Place(kind, *_where(node), 1, _share(cpus, gpus), 1 / gpus)
            found.setdefault(kind, []).extend([place] * gpus)
    with_cpus = [n for n in alive if n["Resources"].get("CPU", 0) >= 1]
    plain = [n for n in with_cpus if not n["Resources"].get("GPU")] or with_cpus
    found[CPU] = [Place(CPU, *_where(n), 0, float(int(n["Resources"]["CPU"])), 1.0) for n in plain]
    found = {kind: places for kind, places in found.items() if places}
    by_name = {kind.lower(): kind for kind in found}
    wanted = [*found] if kinds is None else [by_name.get(k.lower(), k) for k in kinds]
    if missing := [kind for kind in wanted if kind not in found]:
        raise UsageError(
            f"no node of the cluster has {missing[0]}",
            f"there are: {', '.join(f'{k} ({len(p)})' for k, p in found.items()) or 'none'}",
            "a node's type is its label ray.io/accelerator-type or its resource accelerator_type:X",
            hint=f"--accelerators {','.join(found)}" if found else "ray status",
        )
    if not wanted:
        raise UsageError(
            "no node of the cluster has GPUs or a whole CPU",
            f"{len(alive)} of its nodes are alive",
            hint="ray status   (a node that ray start has given --num-cpus=0 runs no trials)",
        )
    return {kind: found[kind] for kind in dict.fromkeys(wanted)}


def _share(cpus: float, gpus: int) -> float:
    """Of the CPUs for each GPU; whole ones where there are enough."""
    return float(cpus // gpus) if cpus >= gpus else cpus / gpus


def _types(node: Mapping[str, Any]) -> list[str]:
    if label := (node.get("Labels") or {}).get(_LABEL):
        return [str(label)]
    names = [n.removeprefix(_RESOURCE) for n in node["Resources"] if n.startswith(_RESOURCE)]
    return names[:1] or ["GPU"]


def _where(node: Mapping[str, Any]) -> tuple[str, str]:
    return str(node["NodeID"]), str(node.get("NodeManagerHostname") or node["NodeID"])


def side_by_side(places: Mapping[str, Sequence[Place]]) -> list[list[str]]:
    """The types in rounds: those of one round are on different nodes, and run at once."""
    rounds: list[tuple[set[str], list[str]]] = []
    for kind, its in places.items():
        nodes = {place.node for place in its}
        for taken, kinds in rounds:
            if not taken & nodes:
                taken |= nodes
                kinds.append(kind)
                break
        else:
            rounds.append((nodes, [kind]))
    return [kinds for _, kinds in rounds]
