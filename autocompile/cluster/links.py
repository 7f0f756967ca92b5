"""The only file that uses Ray: connects to a cluster and makes an actor for each station.

An actor is placed on the node that its place names, so that a lost node is known by name, and a
station never waits for a machine that the cluster would have to start. Nothing is restarted or
retried by Ray: what is lost is the executor's business.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import autocompile
from autocompile.cluster.pipe import Pipe, TokenKeeper
from autocompile.cluster.places import Place
from autocompile.cluster.stations import Link, Message
from autocompile.cluster.wire import Do, Say, decode, encode
from autocompile.errors import UsageError

__all__ = ["Cluster", "connected", "demand_head"]

_NAMESPACE, _KEEPER = "autocompile", "autocompile-tokens"
_LISTENING = "listening"  # concurrency group of calls that wait, beside those that do not
_THREADS = {_LISTENING: 64}
_POLL_S = 30.0
_ANSWER_S = 5.0
_MOST_CHARACTERS = 200  # of Ray's words on why an actor has died


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """A connection to a running cluster; ``auto`` for the one of this machine.

    Raises:
        UsageError: Ray is not installed, there is no cluster, or it runs other versions.
    """
    try:
        import ray
    except ImportError:
        raise UsageError(
            "--ray needs Ray, which is not installed",
            hint='pip install "torch-autocompile[ray]"',
        ) from None
    package = str(Path(autocompile.__file__).parent)
    if ray.is_initialized():  # a notebook's, or a job's: it stays
        here = str(ray.get_runtime_context().gcs_address)
        if address not in ("auto", here):
            raise UsageError(
                f"this process is connected to the Ray cluster at {here}, not to {address}",
                hint="ray.shutdown() before it, or the address auto",
            )
        yield Cluster(ray, _with_sent(package, ray.get_runtime_context().runtime_env))
        return
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    demand_head(address)
    try:
        ray.init(
            address=address,
            namespace=_NAMESPACE,
            runtime_env={"py_modules": [package]},
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"cannot connect to a Ray cluster at {address}: {' '.join(first)[:400]}",
            hint="ray status   (on a node of the cluster, of the same version of Ray)",
        ) from None
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():  # Ray's own leaves with an exit code of its own
            signal.signal(number, handler)
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


def demand_head(address: str) -> None:
    """Raise a UsageError if nothing answers there: Ray itself would try for minutes."""
    if address == "auto":
        record = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        noted = record.read_text("utf-8").strip() if record.is_file() else ""
        if not (found := os.environ.get("RAY_ADDRESS", noted)):
            raise UsageError(
                "no Ray cluster runs on this machine",
                hint="ray start --head, or --ray HOST:PORT of the head of another",
            )
        where = f"{found}, which Ray has noted as this machine's cluster: it may have ended"
    else:
        found = where = address
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UsageError(f"{found!r} is no address of a Ray cluster", hint="--ray HOST:6379")
    try:
        socket.create_connection((host, int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"no Ray cluster answers at {where}",
            str(error),
            hint="ray start --head, or --ray HOST:PORT of the head of another",
        ) from None


def _with_sent(package: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """An actor's environment with a package that the session's own does not have.

    Ray sends a folder with ``ray.init`` only: for an actor it has to be there already.

    Raises:
        UsageError: it cannot be sent.
    """
    from ray.exceptions import RayError

    modules = [*environment.get("py_modules", ()), package]
    try:
        from ray._private.runtime_env.py_modules import upload_py_modules_if_needed as upload

        with tempfile.TemporaryDirectory() as scratch:
            where = {"include_gitignore": True, "scratch_dir": scratch}
            return dict(upload({"py_modules": modules}, **where))
    except (ImportError, TypeError):  # another version of Ray: it has to be installed there
        return {}
    except (RayError, RuntimeError, ValueError, OSError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(
            f"cannot send autocompile to the Ray cluster: {why[:400]}",
            hint="leave the session (ray.shutdown()): autocompile then connects by itself",
        ) from None


class Cluster:
    """A cluster that this process is connected to.

    Args:
        environment: of actors, where it is not the session's.
    """

    def __init__(self, ray: Any, environment: Mapping[str, Any] | None = None) -> None:
        self._ray, self._environment = ray, environment
        self._keeper: Any = None
        self._lock = threading.Lock()
        self._pipe = self._actor(Pipe, max_task_retries=0)
        self._watched: Any = None

    def _actor(self, kind: type, **more: Any) -> Any:
        own = {"runtime_env": self._environment} if self._environment else {}
        grouped = {"max_restarts": 0, "concurrency_groups": _THREADS}
        return self._ray.remote(**grouped, **own, **more)(kind)

    def nodes(self) -> list[dict[str, Any]]:
        """As ``ray.nodes()`` lists them."""
        return list(self._ray.nodes())

    def open(self, places: Sequence[Place], message: Mapping[str, Any]) -> list[Link]:
        """A station at each place, which is told to open."""
        counts: dict[str, int] = {}
        message = {"run": uuid.uuid4().hex[:8], **message}
        links: list[Link] = []
        for place in places:
            counts[place.node] = counts.get(place.node, -1) + 1
            name = f"{place.host}-{place.node[:4]}"
            name += f"/{counts[place.node]}" if place.gpus else ""
            links.append(_RayLink(self, place, message, name))
        return links

    def receive(self, links: Sequence[Link], timeout_s: float) -> list[tuple[Link, Message]]:
        """Wait for messages of any of the links."""
        if not links:
            return []
        keeper = self.keeper()
        pending = {link.pending(keeper): link for link in links if isinstance(link, _RayLink)}
        ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=timeout_s)
        if ready:  # what else is there already
            ready, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=0)
        return [(pending[ref], m) for ref in ready for m in pending[ref].taken()]

    def allow(self, links: Sequence[Link], in_step: bool) -> None:
        """As :meth:`Hosts.allow`, for these stations of a host."""
        keys = [link.key for link in links if isinstance(link, _RayLink)]
        self.keeper().allow.remote(keys, in_step)

    def keeper(self) -> Any:
        """The actor that hands out the tokens on this cluster, shared with other drivers.

        It dies with the driver that made it; the next that needs it makes another.
        """
        with self._lock:
            if self._keeper is None or self._is_gone():
                self._keeper = (
                    self._actor(TokenKeeper, num_cpus=0)
                    .options(name=_KEEPER, namespace=_NAMESPACE, get_if_exists=True)
                    .remote(_LISTENING)
                )
                self._watched = self._keeper.last.options(concurrency_group=_LISTENING).remote()
            return self._keeper

    def _is_gone(self) -> bool:
        return bool(self._ray.wait([self._watched], timeout=0)[0])


class _RayLink:
    """A station's actor, and the call that waits for its next messages."""

    def __init__(
        self, cluster: Cluster, place: Place, message: Mapping[str, Any], name: str
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.name, self.key = name, uuid.uuid4().hex  # drivers may use the same names
        self._cluster, self._place, self._message = cluster, place, message
        self._host: str | None = None
        self._keeper: Any = None
        self._actor = cluster._pipe.options(
            num_cpus=place.cpus,
            num_gpus=place.gpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=False),
        ).remote(self.key)
        self._pending: Any = None
        own = {"most_jobs": place.jobs, "share": place.share}
        self.send(Do.OPEN, **own, **message)

    def send(self, kind: Do, **fields: Any) -> None:
        self._actor.send.remote(encode(kind, **fields))

    def hello(self, facts: Mapping[str, Any]) -> None:
        """Take part in the tokens of its host."""
        self._host = str(facts["boot"])
        self._join(self._cluster.keeper())

    def _join(self, keeper: Any) -> None:
        import ray

        self._keeper = keeper
        with contextlib.suppress(ray.exceptions.RayError):  # it may be dead
            ray.get(self._actor.attach.remote(keeper), timeout=_POLL_S)  # before it is hushed
        self._keeper.join.remote(self.key, self._host, self._actor)

    def pending(self, keeper: Any) -> Any:
        """The call that is ready when it has said something, or is dead."""
        if self._host is not None and keeper is not self._keeper:
            self._join(keeper)
        if self._pending is None:
            listening = self._actor.receive.options(concurrency_group=_LISTENING)
            self._pending = listening.remote(_POLL_S)
        return self._pending

    def taken(self) -> list[Message]:
        """What it has said; None at the end."""
        import ray

        pending, self._pending = self._pending, None
        try:
            return [None if line is None else decode(line) for line in ray.get(pending)]
        except (ray.exceptions.RayError, ValueError) as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[-1]  # Ray's cause
            return [decode(encode(Say.FAILED, text=why[:_MOST_CHARACTERS])), None]

    def close(self) -> None:
        """Kill the actor: its process ends itself then."""
        import ray

        if self._keeper is not None:
            self._keeper.leave.remote(self.key)
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self._actor, no_restart=True)

    def again(self) -> Link | None:
        """Another at the same place, if its node is alive."""
        alive = {n["NodeID"] for n in self._cluster.nodes() if n["Alive"]}
        if self._place.node not in alive:
            return None
        return _RayLink(self._cluster, self._place, self._message, f"{self.name}+")
