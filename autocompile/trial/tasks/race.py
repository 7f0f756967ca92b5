"""A race: finalists and eager mode side by side in one fresh process, each verified again.

Each has a copy of the model and its own warm compiler cache and is timed in every round, so that
any two are compared directly, in the same seconds. A setting that fails is dropped, and the others
go on. A file names the side that is running, so that the parent knows whose a crash was.
"""

from __future__ import annotations

import contextlib
import copy
import os
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from autocompile.protocol import requests
from autocompile.protocol.requests import RaceRequest
from autocompile.protocol.results import RaceResult, SideResult
from autocompile.store.measurement import Measurement
from autocompile.store.record import AT_WORK, Outcome, Step
from autocompile.trial.inspect import telemetry
from autocompile.trial.measure.clocks import FirstCalls, ReferenceWork
from autocompile.trial.measure.timing import Rounds, Timed, no_garbage_collection, side_by_side
from autocompile.trial.phases.phases import make_side
from autocompile.trial.phases.side import Side
from autocompile.trial.process.channel import Channel, make_autotuning_exclusive
from autocompile.trial.process.failures import note_failure
from autocompile.trial.target.target import Target
from autocompile.trial.tasks.exported import exported_side
from autocompile.trial.tasks.steps import eager_and_verifier, exclusive, inputs_of, load, timed
from autocompile.trial.verify.verifier import Verifier

__all__ = ["race"]

_ENTRIES = 64  # of code compiled for one function: each side adds some


@dataclass(frozen=True)
class _Racer:
    """A side that has compiled and was right at its first calls; ``said`` is its result."""

    asked: requests.Side
    said: SideResult
    side: Side
    verifier: Verifier
    clock: FirstCalls


class _AtWork:
    """Writes down whose turn it is, and makes an outcome of what a side raises."""

    def __init__(self, channel: Channel) -> None:
        self._file = os.open(channel.folder / AT_WORK, os.O_WRONLY | os.O_CREAT, 0o644)
        self._channel = channel

    @contextlib.contextmanager
    def turn(self, said: SideResult) -> Iterator[None]:
        """Context in which a crash or exception is this side's."""
        os.pwrite(self._file, b"%8d" % (said.number or 0), 0)
        try:
            yield
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            said.step = self._channel.current.value
            note_failure(said, error, self._channel.current)
        finally:
            os.pwrite(self._file, b"%8d" % -1, 0)


class _Dropped(Exception):
    """A side failed while it was timed: the rounds start again without it."""


def race(request: RaceRequest, channel: Channel, result: RaceResult) -> None:
    """Compile every side, verify it, time them all in turns, verify again."""
    result.sides = [SideResult() for _ in request.sides]
    at_work = _AtWork(channel)
    target, device = load(request, channel)
    channel.step(Step.EAGER)
    with exclusive(channel, device):
        numbers = request.sides[0].config.numbers
        eager, verifier = eager_and_verifier(target, request, device, numbers, [])
    telemetry.reset_dynamo("inductor")
    torch._dynamo.config.recompile_limit = _ENTRIES
    make_autotuning_exclusive(channel)
    racers = []
    for asked, said in zip(request.sides, result.sides, strict=True):
        said.number = asked.number
        channel.step(Step.COMPILE)
        with at_work.turn(said):
            own = copy.copy(verifier)  # it keeps errors of this side
            racers.append(_compiled(asked, said, request, channel, target, device, own))
    channel.step(Step.MEASURE)
    reference = ReferenceWork(device)
    with no_garbage_collection():
        synchronize = telemetry.synchronizer(device)
        found = _time(request, channel, racers, eager, at_work, synchronize, reference)
    result.reference_s = reference.median_s
    channel.step(Step.VERIFY)
    for racer, measurement in found:
        asked, said = racer.asked, racer.said
        with at_work.turn(said), exclusive(channel, device):
            racer.verifier.last_call(racer.side)
            said.measurement = asdict(measurement)
            if asked.is_warm and not asked.config.is_eager:
                said.compile_s = racer.clock.compile_s(measurement.compiled_call_s)
            said.outcome, said.step = Outcome.OK.value, Step.EXIT.value


def _compiled(
    asked: requests.Side,
    said: SideResult,
    request: RaceRequest,
    channel: Channel,
    target: Target,
    device: torch.device,
    verifier: Verifier,
) -> _Racer:
    """Compile a side in its own cache and verify its first calls."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = asked.cache
    os.environ["TRITON_CACHE_DIR"] = str(Path(asked.cache) / "triton")
    phase, config, exported = request.phase, asked.config, asked.exported
    inputs = inputs_of(target, phase, request.batch_size, device, request.header.seed)
    if exported is not None:
        side = exported_side(target, phase, inputs, config, exported, channel.folder)
    else:
        with _own_code(asked.number):
            side = make_side(target, phase, inputs, config)
    clock = FirstCalls(side, telemetry.synchronizer(device), lambda: channel.waited_s)
    # What is applied as in a user's process compiles at its first call.
    with verifier.comparable_random_numbers(side), _own_code(asked.number):
        output = verifier.seeded_call(side, 0)
        with exclusive(channel, device):
            channel.step(Step.VERIFY)
            verifier.first_calls(side, output)
            clock.stop()
    side.keep()
    return _Racer(asked, said, side, verifier, clock)


@contextlib.contextmanager
def _own_code(number: int) -> Iterator[None]:
    """Context in which torch.compile shares no code with other sides.

    Dynamo takes equal backends for one and reuses another side's code wherever its guards hold, and
    a setting may drop guards.
    """
    optimize = torch._dynamo.optimize

    def optimize_apart(*args: Any, backend: Any, **kwargs: Any) -> Any:
        kind: Any = type(backend)

        def is_equal(self: Any, other: Any) -> bool:
            return getattr(other, "side", None) == number and bool(kind.__eq__(self, other))

        own = {"side": number, "__eq__": is_equal, "__hash__": kind.__hash__}
        backend.__class__ = type(kind.__name__, (kind,), own)
        return optimize(*args, backend=backend, **kwargs)

    torch._dynamo.optimize = optimize_apart
    try:
        yield
    finally:
        torch._dynamo.optimize = optimize


def _time(
    request: RaceRequest,
    channel: Channel,
    racers: list[_Racer],
    eager: Side,
    at_work: _AtWork,
    synchronize: Any,
    reference: ReferenceWork,
) -> list[tuple[_Racer, Measurement]]:
    """Time eager and all sides that work in rounds; start again when one fails."""

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        with channel.exclusive():  # this is how processes take turns
            reference.sample()
            yield

    seed = request.header.seed + request.number
    while running := [racer for racer in racers if racer.said.outcome is None]:
        sides = [timed(eager), *(_watched(racer, at_work) for racer in running)]
        whole = contextlib.nullcontext() if request.takes_turns else channel.exclusive()
        with contextlib.suppress(_Dropped), whole:
            with channel.exclusive():
                rounds = Rounds(sides, synchronize, request.block_s, seed)
            side_by_side(rounds, request.rounds, request.max_s, turn)
            return [(racer, rounds.measurement(i)) for i, racer in enumerate(running, 1)]
    return []


def _watched(racer: _Racer, at_work: _AtWork) -> Timed:
    """A side for timing whose failure inside a block is its own outcome."""
    own = timed(racer.side)

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with at_work.turn(racer.said), own.context():
            yield
        if racer.said.outcome is not None:
            raise _Dropped

    return Timed(own.call, own.restore, context)
