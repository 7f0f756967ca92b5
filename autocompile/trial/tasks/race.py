"""A race: finalists and eager mode side by side in one fresh process, each verified again.

Each has a copy of the model and its own warm compiler cache and is timed in every round, so that
any two are compared directly, in the same seconds. A setting that fails is dropped, and the others
go on. A file names the side that is running, so that the parent knows whose a crash was.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from autocompile.protocol import requests
from autocompile.protocol.requests import ExportedCode, RaceRequest, RaceResult
from autocompile.runtime.applying import process_of, process_state
from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import FORWARD, OPTIMIZER_STEP, TRAIN_STEP
from autocompile.settings.tuned import TunedSet
from autocompile.store.record import AT_WORK, Measurement, Outcome, Record, Step
from autocompile.trial.channel import Channel, make_autotuning_exclusive
from autocompile.trial.failures import note_failure
from autocompile.trial.measure import telemetry
from autocompile.trial.measure.timing import (
    FirstCalls,
    ReferenceWork,
    Rounds,
    Timed,
    no_garbage_collection,
    side_by_side,
)
from autocompile.trial.model.sides import Side, follow_step, make_side
from autocompile.trial.model.target import Target, call_model
from autocompile.trial.tasks.steps import Comparison, timed
from autocompile.trial.verify.verifier import Verifier

_ENTRIES = 64  # of code compiled for one function: each side adds some
_TRAIN_STEP = """
def train_step(inputs):
    optimizer.zero_grad(set_to_none=True)
    value = loss(forward(model, inputs), inputs)
    value.backward()
    optimizer.step()
    return value.detach()
"""


def race(request: RaceRequest, channel: Channel, result: RaceResult) -> None:
    """Compile every side, verify it, time them all in turns, verify again."""
    result.sides = [
        Record(side.number, request.phase, side.config, request.batch_size)
        for side in request.sides
    ]
    run = _Race(request, channel)
    for side, record in zip(request.sides, result.sides, strict=True):
        channel.step(Step.COMPILE)
        with run.turn(record):
            run.racers.append(run.compiled(side, record))
    telemetry.end_compile_workers()  # after the last compile: a worker would take a core
    with no_garbage_collection():
        measurements = run.timed()
    channel.step(Step.VERIFY)
    for racer, measurement in measurements:
        side, record = racer.asked, racer.record
        with run.turn(record), run.exclusive_on_cpu():
            racer.verifier.last_call(racer.side)
            record.measurement, record.reference_s = measurement, run.reference.median_s
            if side.is_warm and not side.config.is_eager:
                record.compile_s = racer.clock.compile_s(measurement.compiled_pass_s)
                record.compile_window = (
                    racer.clock.window
                )  # others of the host may have held us
            record.outcome, record.step = Outcome.OK, Step.EXIT


@dataclass(frozen=True)
class _Racer:
    """A side that has compiled and was right at its first calls; ``record`` is its result."""

    asked: requests.Side
    record: Record
    side: Side
    verifier: Verifier
    clock: FirstCalls

    @property
    def has_ended(self) -> bool:
        return self.record.outcome is not Outcome.INTERRUPTED


class _Dropped(Exception):
    """A side failed while it was timed: the rounds start again without it."""


class _Race(Comparison):
    request: RaceRequest

    def __init__(self, request: RaceRequest, channel: Channel) -> None:
        self._at_work = os.open(
            channel.folder / AT_WORK, os.O_WRONLY | os.O_CREAT, 0o644
        )
        compiles = any(not side.config.is_eager for side in request.sides)
        super().__init__(request, channel, request.sides[0].config, [], compiles)
        self.racers: list[_Racer] = []
        telemetry.reset_dynamo("inductor")
        make_autotuning_exclusive(channel)
        torch._dynamo.config.recompile_limit = _ENTRIES

    @contextlib.contextmanager
    def turn(self, record: Record) -> Iterator[None]:
        """Context in which a crash or exception is this side's."""
        os.pwrite(self._at_work, b"%8d" % record.number, 0)
        try:
            yield
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            record.step = self.channel.current
            note_failure(record, error, self.channel.current)
        finally:
            os.pwrite(self._at_work, b"%8d" % -1, 0)

    def compiled(self, asked: requests.Side, record: Record) -> _Racer:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = asked.cache
        os.environ["TRITON_CACHE_DIR"] = str(Path(asked.cache) / "triton")
        target, phase, config, inputs = (
            self.target,
            self.request.phase,
            asked.config,
            self.inputs(),
        )
        if asked.exported is not None:
            folder = self.channel.folder
            side = exported_side(target, phase, inputs, config, asked.exported, folder)
        else:
            with _own_code(asked.number):
                side = make_side(target, phase, inputs, config)
        clock = FirstCalls(side, self.timer, lambda: self.channel.waited_s)
        verifier = self.verifier.for_another()
        # What is applied as in a user's process compiles at its first call.
        with verifier.comparable_random_numbers(side), _own_code(asked.number):
            output = verifier.seeded_call(side, 0)
            with self.exclusive_on_cpu():
                self.channel.step(Step.VERIFY)
                verifier.first_calls(side, output)
                verifier.make_pass(side)
                clock.stop()
        verifier.share_kept(side)
        return _Racer(asked, record, side, verifier, clock)

    def timed(self) -> list[tuple[_Racer, Measurement]]:
        """Time eager and all sides that work in rounds; start again when one fails."""
        request, channel = self.request, self.channel
        self.reference = ReferenceWork(self.target.device)
        seed = request.header.seed + request.number
        while running := [racer for racer in self.racers if not racer.has_ended]:
            eager = timed(self.eager)
            sides = [eager, *map(self._watched, running)]
            whole = (
                contextlib.nullcontext() if request.takes_turns else channel.exclusive()
            )
            with contextlib.suppress(_Dropped), whole:
                with channel.exclusive():
                    channel.step(Step.MEASURE)
                    rounds = Rounds(sides, self.timer, request.block_s, seed)
                side_by_side(rounds, request.rounds, request.max_s, self._round)
                return [
                    (racer, rounds.measurement(i)) for i, racer in enumerate(running, 1)
                ]
        return []

    @contextlib.contextmanager
    def _round(self) -> Iterator[None]:
        with self.channel.exclusive():  # this is how processes take turns
            self.reference.sample()
            yield

    def _watched(self, racer: _Racer) -> Timed:
        """A side for timing whose failure inside a block is its own outcome."""
        timing = timed(racer.side)

        @contextlib.contextmanager
        def context() -> Iterator[None]:
            with self.turn(racer.record), timing.context():
                yield
            if racer.has_ended:
                raise _Dropped

        return replace(timing, context=context)


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
            return getattr(other, "side", None) == number and bool(
                kind.__eq__(self, other)
            )

        members = {"side": number, "__eq__": is_equal, "__hash__": kind.__hash__}
        backend.__class__ = type(kind.__name__, (kind,), members)
        return optimize(*args, backend=backend, **kwargs)

    torch._dynamo.optimize = optimize_apart
    try:
        yield
    finally:
        torch._dynamo.optimize = optimize


def exported_side(
    target: Target,
    phase: str,
    inputs: Any,
    config: CompileConfig,
    exported: ExportedCode,
    folder: Path,
) -> Side:
    """The side of a program that defines a model, an optimizer and a step, and runs the code.

    ``tuned.json``, which the code may read, is put into the folder, where it runs.
    """
    side = make_side(target, phase, inputs)
    names: dict[str, Any] = {
        "torch": torch,
        "model": side.model,
        "optimizer": next(iter(side.optimizers), None),
        "side": side,
        "loss": target.loss,
        FORWARD: (lambda m, x: m.forward_train(x)) if target.is_rl else call_model,
    }
    exec(_TRAIN_STEP, names)
    is_own, is_whole = phase == target.own_phase, config.scope == "step"
    (folder / "tuned.json").write_text(
        TunedSet((exported.settings,)).to_json(), "utf-8"
    )
    usual, here = process_state(), os.getcwd()

    def run_code() -> Mapping[str, Any]:
        """Run it as a program of its own would; returns what it set in the process."""
        os.chdir(folder)
        try:
            with process_of(usual):  # of eager mode; the side has its own while it runs
                exec(compile(exported.code, "exported", "exec"), names)
                names["model"] = names[exported.called]
                return process_state()
        finally:
            os.chdir(here)

    def own_step() -> Callable[[Any], Any]:
        assert target.make_step
        names["step"] = target.make_step(names["model"], names["optimizer"])
        if is_whole:
            run_code()
        return names["step"]  # type: ignore[no-any-return]

    if is_own and is_whole:
        own_step()
    now = run_code()
    side.config = config
    changed = {name: value for name, value in now.items() if value != usual[name]}
    side.process = {**side.process, **changed}
    side.optimizers = [o for o in (names["optimizer"],) if o is not None]
    if phase == FORWARD:
        side.unit = lambda inputs: call_model(names["model"], inputs)
    elif phase == TRAIN_STEP:
        side.unit = names[TRAIN_STEP]
    elif is_own:
        follow_step(side, phase, own_step)
    elif phase == OPTIMIZER_STEP:
        step = names.get(OPTIMIZER_STEP) or (lambda: names["optimizer"].step())
        side.unit = lambda _: step()
    return side
