"""A fake executor for tests of the search, report and CLI: scripted trials without torch.

executor = FakeExecutor(lambda request: measured(speedup=1.3, compile_s=2.0))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autocompile.execute.executor import Ended, Ending, Event, Job, Stepped, Told
from autocompile.protocol.requests import Kind, ProbeRequest, RaceRequest, read_request
from autocompile.settings.phases import FORWARD
from autocompile.store.record import Outcome, Step

__all__ = ["FakeExecutor", "failed", "measured", "probed"]

Script = Callable[[Mapping[str, Any]], Ending]


def measured(
    speedup: float,
    *,
    eager_s: float = 1e-3,
    noise: float = 0.002,
    rounds: int = 8,
    compile_s: float = 1.0,
    flags: Sequence[str] = (),
    **more: Any,
) -> Ending:
    """A successful trial: ``rounds`` pairs of blocks around a speed-up.

    Args:
        noise: relative half-range of the compiled blocks, spread evenly.
        flags: of the measurement, such as ``eager_slowed``.
        more: further keys of the payload, such as ``graph_breaks``.
    """
    spread = [noise * (2 * i / max(1, rounds - 1) - 1) for i in range(rounds)]
    payload = {
        "measurement": {
            "eager_s": [eager_s] * rounds,
            "compiled_s": [eager_s / speedup * (1 + s) for s in spread],
            "calls": [1, 1],
            "flags": list(flags),
        },
        "compile_s": compile_s,
        "graphs": 1,
        "graph_breaks": 0,
        "recompiles": 0,
    }
    return Ending(Outcome.OK, Step.EXIT, payload={**payload, **more}, wall_s=compile_s + 1)


def failed(outcome: str, step: str = "compile", message: str = "") -> Ending:
    """A failed trial."""
    return Ending(Outcome(outcome), Step(step), message or outcome, wall_s=1.0)


def probed(**more: Any) -> Ending:
    """A probe of a machine with inductor, two modes that differ, and a plain module."""
    payload = {
        "environment": {
            "torch": "2.13.0",
            "python": "3.11.7",
            "platform": "Linux",
            "device": "cpu",
            "device_name": "a CPU",
            "cores": 2,
            "threads": 1,
            "cuda": None,
        },
        "backends": {"inductor": "", "cudagraphs": "no CUDA device"},
        "all_backends": ["aot_eager", "cudagraphs", "inductor"],
        "modes": {
            "default": "default",
            "reduce-overhead": "default",
            "max-autotune": "max-autotune",
        },
        "target": {
            "kind": "functions",
            "description": "Linear",
            "parameters": 10,
            "phases": [FORWARD],
            "algorithm": None,
            "build": ["model = None"],
            "own_batch_size": {},
            "is_rl": False,
            "choices": {},
        },
    }
    return Ending(Outcome.OK, Step.EXIT, payload={**payload, **more}, wall_s=0.1)


class FakeExecutor:
    """An :class:`autocompile.execute.executor.Executor` with scripted trials.

    Args:
        script: returns the ending of a trial for its request.
        probe: the ending of the probe.
        slots: how many jobs may run at once; they end in the order of their start.

    Attributes:
        requests: all started requests in order, without the probe.
    """

    def __init__(self, script: Script, probe: Ending | None = None, slots: int = 1) -> None:
        self._script, self._probe, self.slots = script, probe or probed(), slots
        self.lanes = 1
        self._events: deque[Event] = deque()
        self.requests: list[dict[str, Any]] = []

    def start(self, job: Job) -> None:
        """Decide at once how it ends; :meth:`wait` tells."""
        asked = read_request(job.folder)
        request = asked.to_dict()
        if isinstance(asked, ProbeRequest):
            ending = self._probe
        elif isinstance(asked, RaceRequest):
            ending = self._race(request)
        else:
            self.requests.append(request)
            ending = self._script(request)
        self._events.append(Stepped(job.number, Step.COMPILE))
        self._events.append(Ended(job.number, ending))

    def _race(self, request: Mapping[str, Any]) -> Ending:
        """Run the script for each side, in a request whose ``repeats`` is the trial's number."""
        sides, wall_s = [], 0.0
        for side in request["sides"]:
            own = {**request, "config": side["config"], "repeats": side["number"]}
            if request["kind"] == Kind.RACE.value:
                self.requests.append(own)
            ending = self._script(own)
            wall_s += ending.wall_s
            said = {"number": side["number"], "outcome": ending.outcome.value}
            said |= {"step": ending.step.value, "message": ending.message}
            sides.append({**ending.payload, **said})
        payload = {"sides": sides, "reference_s": sides[0].get("reference_s")}
        return Ending(Outcome.OK, Step.EXIT, payload=payload, wall_s=wall_s)

    def wait(self, timeout_s: float) -> list[Event]:
        """Return the next event."""
        return [self._events.popleft()] if self._events else []

    def cancel(self, number: int) -> None:
        """End a job as interrupted."""
        kept = [e for e in self._events if isinstance(e, Told) or e.number != number]
        self._events = deque(kept)
        self._events.append(Ended(number, Ending(Outcome.INTERRUPTED, Step.COMPILE, "stopped")))

    def close(self) -> None:
        """Do nothing."""
