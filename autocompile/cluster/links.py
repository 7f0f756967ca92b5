"""The only file that uses Ray: connects to a cluster and makes an actor for each station.

An actor is placed on the node that its place names, so that a lost node is known by name, and a
station never waits for a machine that the cluster would have to start. Nothing is restarted or
retried by Ray: what is lost is the executor's business. The user's code never runs in an actor.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import autocompile
from autocompile.cluster.dispatch import Link, Message
from autocompile.cluster.wire import Do, Say, decode, encode
from autocompile.errors import UsageError

CPU = "cpu"
_LABEL = "ray.io/accelerator-type"
_RESOURCE = "accelerator_type:"  # of older clusters
# concurrency group of the call that waits, beside those that do not
_LISTENING = "listening"
_POLL_S = 30.0
_ANSWER_S = 5.0
_MOST_CHARACTERS = 200  # of Ray's words on why an actor has died


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """A connection to a running cluster, ``auto`` for this machine's; else a UsageError."""
    try:
        import ray
    except ImportError:
        raise UsageError(
            "--ray needs Ray, which is not installed",
            hint="pip install 'ray>=2.50'",
        ) from None
    if ray.is_initialized():  # a notebook's, or a job's: it stays
        here = str(ray.get_runtime_context().gcs_address)
        if address not in ("auto", here):
            raise UsageError(
                f"this process is connected to the Ray cluster at {here}, not to {address}",
                hint="ray.shutdown() before it, or the address auto",
            )
        yield Cluster(ray)
        return
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    demand_head(address)
    try:
        ray.init(
            address=address,
            runtime_env={"py_modules": [str(Path(autocompile.__file__).parent)]},
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"cannot connect to a Ray cluster at {address}: {' '.join(first)[:400]}",
            hint="ray status   (of the same Ray; with RAY_AUTH_MODE=token if it needs one)",
        ) from None
    if threading.current_thread() is threading.main_thread():
        for (
            number,
            handler,
        ) in handlers.items():  # Ray's own leaves with an exit code of its own
            signal.signal(number, handler)
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


def demand_head(address: str) -> None:
    """Raise a UsageError if nothing answers there: Ray itself would try for minutes."""
    found = where = address
    hint = "ray start --head, or --ray HOST:PORT of the head of another"
    if address == "auto":
        record = Path(
            os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster"
        )
        noted = record.read_text("utf-8").strip() if record.is_file() else ""
        if not (found := os.environ.get("RAY_ADDRESS", noted)):
            raise UsageError("no Ray cluster runs on this machine", hint=hint)
        where = (
            f"{found}, which Ray has noted as this machine's cluster: it may have ended"
        )
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UsageError(
            f"{found!r} is no address of a Ray cluster", hint="--ray HOST:6379"
        )
    try:
        socket.create_connection((host, int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"no Ray cluster answers at {where}", str(error), hint=hint
        ) from None


# Places -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A node, for one station: with all its CPUs, and for an accelerator type all its GPUs."""

    kind: str  # an accelerator type, or ``cpu``
    node: str  # id
    host: str
    gpus: int
    cpus: float


def places_of(
    nodes: Iterable[Mapping[str, Any]], kinds: Sequence[str] | None
) -> dict[str, list[Place]]:
    """Places for stations of each accelerator type, in the order asked; None: all that are there.

    A ``cpu`` station is on a node without GPUs, if there is one.
    """
    alive = sorted((n for n in nodes if n["Alive"]), key=lambda n: str(n["NodeID"]))
    found: dict[str, list[Place]] = {}
    for node in alive:
        if kind := _type_of(node):
            found.setdefault(kind, []).append(_place(kind, node))
    with_cpus = [n for n in alive if n["Resources"].get("CPU", 0) >= 1]
    if plain := [n for n in with_cpus if not _type_of(n)] or with_cpus:
        found[CPU] = [_place(CPU, node) for node in plain]
    by_name = {kind.lower(): kind for kind in found}
    wanted = [*found] if kinds is None else [by_name.get(k.lower(), k) for k in kinds]
    if missing := [
        kind for kind in wanted or ["GPUs or a whole CPU"] if kind not in found
    ]:
        there = ", ".join(f"{kind} ({len(its)})" for kind, its in found.items())
        raise UsageError(
            f"no node of the cluster has {missing[0]}",
            f"{len(alive)} of its nodes are alive; there are: {there or 'none'}",
            "a node's type is its label ray.io/accelerator-type or its resource accelerator_type:X",
            hint=f"--accelerators {','.join(found)}" if found else "ray status",
        )
    return {kind: found[kind] for kind in dict.fromkeys(wanted)}


def _type_of(node: Mapping[str, Any]) -> str:
    """A node's accelerator type; empty without GPUs."""
    if not node["Resources"].get("GPU"):
        return ""
    if label := (node.get("Labels") or {}).get(_LABEL):
        return str(label)
    names = (
        n.removeprefix(_RESOURCE) for n in node["Resources"] if n.startswith(_RESOURCE)
    )
    return next(names, "GPU")


def _place(kind: str, node: Mapping[str, Any]) -> Place:
    name, has = str(node["NodeID"]), node["Resources"]
    gpus = 0 if kind == CPU else int(has["GPU"])
    host = str(node.get("NodeManagerHostname") or name)
    return Place(kind, name, host, gpus, float(has.get("CPU", 0)))


def side_by_side(places: Mapping[str, Sequence[Place]]) -> list[list[str]]:
    """The types in rounds: those of one round are on different nodes, and run at once."""
    nodes = {kind: {place.node for place in its} for kind, its in places.items()}
    rounds: list[list[str]] = []
    for kind in places:
        beside = [
            kinds for kinds in rounds if all(not nodes[kind] & nodes[k] for k in kinds)
        ]
        if beside:
            beside[0].append(kind)
        else:
            rounds.append([kind])
    return rounds


# Stations -----------------------------------------------------------------------------------------


class Cluster:
    """A cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def nodes(self) -> list[dict[str, Any]]:
        """As ``ray.nodes()`` lists them."""
        return list(self._ray.nodes())

    def open(self, places: Sequence[Place], message: Mapping[str, Any]) -> list[Link]:
        """A station at each place, which is told to open."""
        return [_RayLink(self._ray, place, message) for place in places]

    def receive(
        self, links: Sequence[Link], timeout_s: float
    ) -> list[tuple[Link, Message]]:
        """Wait for messages of any of the links."""
        pending = {link.pending(): link for link in links if isinstance(link, _RayLink)}
        ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=timeout_s)
        if ready:  # what else is there already
            ready, _ = self._ray.wait(
                list(pending), num_returns=len(pending), timeout=0
            )
        return [(pending[ref], m) for ref in ready for m in pending[ref].taken()]


class _RayLink:
    """A station's actor, and the call that waits for its next messages."""

    def __init__(self, ray: Any, place: Place, message: Mapping[str, Any]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.name = f"{place.host}-{place.node[:4]}"
        self._ray, self._place, self._message = ray, place, message
        actor = ray.remote(
            max_restarts=0, max_task_retries=0, concurrency_groups={_LISTENING: 1}
        )
        self._actor = (
            actor(Pipe)
            .options(
                num_cpus=place.cpus,
                num_gpus=place.gpus,
                scheduling_strategy=NodeAffinitySchedulingStrategy(
                    place.node, soft=False
                ),
            )
            .remote()
        )
        self._pending: Any = None
        self.send(Do.OPEN, **message)

    def send(self, kind: Do, **fields: Any) -> None:
        self._actor.send.remote(encode(kind, **fields))

    def pending(self) -> Any:
        """The call that is ready when it has said something, or is dead."""
        if self._pending is None:
            listening = self._actor.receive.options(concurrency_group=_LISTENING)
            self._pending = listening.remote(_POLL_S)
        return self._pending

    def taken(self) -> list[Message]:
        """What it has said; None at the end."""
        pending, self._pending = self._pending, None
        try:
            return [
                None if line is None else decode(line)
                for line in self._ray.get(pending)
            ]
        except (self._ray.exceptions.RayError, ValueError) as error:
            # The last line is Ray's cause.
            why = (str(error).strip() or type(error).__name__).splitlines()[-1]
            return [decode(encode(Say.FAILED, text=why[:_MOST_CHARACTERS])), None]

    def close(self) -> None:
        """Kill the actor: its process ends itself then."""
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(self._actor, no_restart=True)

    def again(self) -> Link | None:
        """Another at the same place, if its node is alive."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        if self._place.node not in alive:
            return None
        return _RayLink(self._ray, self._place, self._message)


# In Ray's workers ---------------------------------------------------------------------------------


def restored(now: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker, ``now``, with what Ray has changed as it was ``before``."""
    rays = {
        n for n in {*now, *before} if n == "OMP_NUM_THREADS" or n.startswith("RAY_")
    }
    found = {name: value for name, value in now.items() if name not in rays}
    return found | {name: value for name, value in before.items() if name in rays}


class Pipe:
    """What an actor is of: a station's process, lines in, lines out."""

    def __init__(self) -> None:
        environment = restored(os.environ, psutil.Process(os.getppid()).environ())
        home = Path(autocompile.__file__).parent.parent
        # Ray has brought this package: it is not installed here.
        if home.name != "site-packages":
            paths = [str(home), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autocompile.cluster.station"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
        self._said = queue.SimpleQueue[str | None]()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, line: str) -> None:
        """Pass a line on; one to a dead process is lost, and :meth:`receive` says so."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._said.put(None)

    def receive(self, timeout_s: float) -> list[str | None]:
        """Wait for lines; None at the end: the process is dead."""
        found: list[str | None] = []
        try:
            found.append(self._said.get(timeout=timeout_s))
            while found[-1] is not None:
                found.append(self._said.get_nowait())
        except queue.Empty:
            pass
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._said.put(line.decode())
        finally:
            self._said.put(None)
