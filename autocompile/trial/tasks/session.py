"""What the sides of one trial share: the target, eager mode in two parts, and the clock.

Three kinds of sides are told apart:

- the *baseline* is eager mode as the user has it. It is what settings are timed against;
- the *reference* is eager mode at the setting's precision. It is what settings are compared with,
  and where they change no precision the baseline is the same side;
- the *entrants* are the settings: what is compared, and timed.

A file names the entrant that is at work, so that the parent knows whose a crash was.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from autocompile.protocol.requests import Side as Asked
from autocompile.protocol.requests import TrialRequest
from autocompile.runtime.kept_memory import keep_freed_memory
from autocompile.runtime.ranks import here
from autocompile.settings.config import EAGER
from autocompile.settings.phases import phase_of
from autocompile.store.record import AT_WORK, Checks, Measurement, Outcome, Record, Step
from autocompile.store.targets import split_spec
from autocompile.trial.channel import Channel, make_autotuning_exclusive
from autocompile.trial.failures import note_failure
from autocompile.trial.measure import footprint, telemetry
from autocompile.trial.measure.timing import (
    FirstCalls,
    ReferenceWork,
    Rounds,
    Timed,
    alone_s,
    no_garbage_collection,
    screen,
    side_by_side,
    timer_of,
)
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.tasks.apart import own_code
from autocompile.trial.tasks.exported import exported_side
from autocompile.trial.tasks.steps import (
    given_back_by_eager,
    inputs_of,
    load,
    profile_of_eager,
    timed,
)
from autocompile.trial.values import copy_inputs
from autocompile.trial.verify.outputs import copy_view
from autocompile.trial.verify.precision import demand_close
from autocompile.trial.verify.reference import Reference, Subject

_ENTRIES = 64  # of code compiled for one function: each side of a race adds some


@dataclass(frozen=True)
class Entrant:
    """A setting that has made its first call; ``record`` is its result.

    Attributes:
        subject: what checks know of its side.
        clock: seconds of the calls that may compile.
    """

    asked: Asked
    record: Record
    subject: Subject
    clock: FirstCalls

    @property
    def side(self) -> Side:
        """The compiled side."""
        return self.subject.side

    @property
    def is_reference(self) -> bool:
        """Whether it is eager mode as it is, which has been compared with itself already."""
        return self.asked.config.is_baseline

    @property
    def has_ended(self) -> bool:
        return self.record.outcome not in (Outcome.INTERRUPTED, Outcome.OK)


class _Dropped(Exception):
    """A side failed while it was timed: the rounds start again without it."""


class Session:
    """What the sides of one process share: the target, the baseline, the reference, the clock."""

    def __init__(self, request: TrialRequest, channel: Channel) -> None:
        self.request, self.channel = request, channel
        self._at_work = os.open(
            channel.folder / AT_WORK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644
        )
        # Found now, since the user's file may change directory when it is loaded.
        self.home = Path(split_spec(request.header.target)[0]).resolve().parent
        self.entrants: list[Entrant] = []
        self.notes: list[str] = []  # on the reference
        self.target = load(request, channel)
        device = self.target.device
        self.timer = timer_of(device)
        if any(not side.config.is_eager for side in request.sides):
            threads = here().share(request.compile_threads)
            telemetry.use_compile_workers(threads, device)
        channel.drain = lambda: telemetry.drain(device)
        channel.step(Step.EAGER)
        with self.exclusive_on_cpu():
            self._run_eager()
        footprint.give_back(device)
        backends = [side.config.backend for side in request.sides]
        telemetry.reset_dynamo("inductor" if "inductor" in backends else backends[0])
        make_autotuning_exclusive(channel)
        if len(request.sides) > 1:
            torch._dynamo.config.recompile_limit = _ENTRIES

    def _run_eager(self) -> None:
        """Make the reference and the baseline."""
        config, header = self.request.sides[0].config, self.request.header
        is_first = not self.request.is_race
        self.workload = self.inputs()
        self.given_back: dict[str, float] = {}
        on_cpu = self.target.device.type == "cpu" and not here().are_several
        if is_first and config.is_plain_eager and on_cpu:
            # Before anything is verified, which frees large blocks: glibc keeps more then.
            phase = self.request.phase
            self.given_back = given_back_by_eager(self.target, phase, self.inputs())
        keep_freed_memory()
        self.reference = Reference(
            self.target,
            self.request.phase,
            (self.workload, self.inputs(draw=1)),
            header.seed,
            self.notes,
            tolerance=header.tolerance,
            precision=config.eager_reference,
            is_whole=config.scope == "step",
        )
        self.baseline = self.reference.eager
        self.eager_peak_bytes: int | None = None  # once something has asked
        if config.eager_reference != EAGER:
            self.baseline = self.reference.another_side()
            output = self.reference.call(self.baseline, 0)
            unchanged = copy_view(self.baseline.view(output))
            changed, check = self.reference.expected[0], self.reference.check
            self.notes.append(demand_close(changed, unchanged, check, header.tolerance))

    def inputs(self, draw: int = 0) -> Any:
        """One batch, or the calls of a workload; another ``draw`` gives other values."""
        request, seed = self.request, self.request.header.seed
        return inputs_of(self.target, request.phase, request.batch_size, seed, draw)

    def eager_call(self) -> dict[str, Any]:
        """What one eager call does, for the user; empty where it cannot be told."""
        phase = self.request.phase
        try:
            with self.channel.exclusive():
                return profile_of_eager(self.target, phase, self.inputs())
        except Exception:
            traceback.print_exc()
            return {}

    def exclusive_on_cpu(self) -> contextlib.AbstractContextManager[None]:
        """Exclusive use on a CPU, where eager's threads wait for each other by busy-waiting.

        Next to a compiling trial, both would become up to ten times slower.
        """
        on_cpu = self.target.device.type == "cpu"
        return self.channel.exclusive() if on_cpu else nullcontext()

    @contextlib.contextmanager
    def turn(self, record: Record) -> Iterator[None]:
        """Context in which a crash or exception is this side's.

        One side of several is dropped then. That of a trial with one side ends the trial, in the
        same words.
        """
        os.pwrite(self._at_work, b"%8d" % record.number, 0)
        try:
            yield
        except (Exception, SystemExit) as error:
            record.step = self.channel.current
            note_failure(record, error, record.step, self.home)
            # The other ranks may be in a collective that this one has left.
            if len(self.request.sides) == 1 or here().are_several:
                raise
            traceback.print_exc()
        finally:
            os.pwrite(self._at_work, b"%8d" % -1, 0)

    @property
    def running(self) -> list[Entrant]:
        """Those that no check has refused so far."""
        return [entrant for entrant in self.entrants if not entrant.has_ended]

    # Compile --------------------------------------------------------------------------------------

    def compile(self, asked: Asked, record: Record) -> Entrant:
        """Make a side and its first call, which compiles it."""
        self.channel.step(Step.COMPILE)
        if asked.cache is not None:
            cache = here().cache(asked.cache)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            os.environ["TRITON_CACHE_DIR"] = str(Path(cache) / "triton")
        notes = list[str]()  # a race repeats no words
        if not self.request.is_race:
            notes = record.notes
            notes += self.notes
            if self.given_back:
                record.detail["given_back"] = self.given_back
        with self.apart(record):
            side = self._made(asked)
            clock = FirstCalls(side, self.timer, lambda: self.channel.waited_s)
            # What is applied as in a user's process compiles at its first call.
            with self.reference.comparable_random_numbers(side):
                first = self.reference.call(side, 0)
        # Whatever may be an answer: a later set of a race may have compiled something else.
        finely = self.request.is_race or asked.checks is Checks.ALL
        subject = Subject(side, first, notes, is_judged_finely=finely)
        entrant = Entrant(asked, record, subject, clock)
        self.entrants.append(entrant)
        return entrant

    def apart(self, record: Record) -> contextlib.AbstractContextManager[None]:
        """Context in which a side of several compiles nothing that another could run."""
        is_alone = len(self.request.sides) == 1
        return nullcontext() if is_alone else own_code(record.number)

    def _made(self, asked: Asked) -> Side:
        target, phase = self.target, self.request.phase
        inputs = copy_inputs(self.workload)
        if asked.exported is None:
            return make_side(target, phase, inputs, asked.config)
        folder = self.channel.folder
        return exported_side(
            target, phase, inputs, asked.config, asked.exported, folder
        )

    # Time -----------------------------------------------------------------------------------------

    def end_compiling(self) -> None:
        """Give back what only compilers need: a worker would take a core from what is timed."""
        telemetry.end_compile_workers()
        footprint.give_back(self.target.device)

    def timed(self) -> list[tuple[Entrant, Measurement]]:
        """Time the baseline and all that run in turns; again without one that fails."""
        request, limits = self.request, self.request.limits
        self.work = ReferenceWork(self.target.device)
        seed = request.header.seed + request.number
        while self.running:
            # Where processes take turns, each round asks for itself.
            whole = nullcontext() if request.takes_turns else self.channel.exclusive()
            with contextlib.suppress(_Dropped), no_garbage_collection(), whole:
                with self.channel.exclusive():
                    self.channel.step(Step.MEASURE)
                    running, sides = self._ready()
                    if not request.is_race and len(request.sides) == 1:
                        return self._screened(running[0], sides, seed)
                    rounds = Rounds(sides, self.timer, limits.block_s, seed)
                side_by_side(rounds, limits, self._round)
                measured = (rounds.measurement(n) for n, _ in enumerate(running, 1))
                return list(zip(running, measured, strict=True))
        return []

    def _screened(
        self, entrant: Entrant, sides: list[Timed], seed: int
    ) -> list[tuple[Entrant, Measurement]]:
        """The same of the only side, which also tells whether it slows eager mode."""
        limits, (baseline, side) = self.request.limits, sides
        found, notes = screen(baseline, side, self.timer, limits, seed, self._round)
        if entrant.is_reference:  # it has slowed itself down by chance
            return [(entrant, replace(found, flags=()))]
        entrant.record.notes += notes
        return [(entrant, found)]

    def one_rank_alone_s(self) -> float | None:
        """Seconds of an eager call in which ranks average nothing, as one by itself has it.

        All make it, since the user's code may have collectives of its own. None where that code
        averages the gradients, or the call fails.
        """
        if self.target.strategy == "own":
            return None
        target, phase = replace(self.target, strategy=""), self.request.phase
        side = None
        try:
            side = make_side(target, phase, copy_inputs(self.workload))
            side.keep()
            side.run()
        except Exception:
            # One device is too small, or the step asks for what only ranks have.
            traceback.print_exc()
            works = False
        else:
            works = True
        took_s = None
        if here().agree(works, all) and side:
            took_s = alone_s(timed(side), self.timer, self.request.limits.block_s)
        if side:
            side.drop()
        return took_s

    def _ready(self) -> tuple[list[Entrant], list[Timed]]:
        """Those that run and can be timed, and for timing the baseline and them."""
        self.make_ready(self.baseline)
        for entrant in self.running:
            with self.turn(entrant.record):
                self.make_ready(entrant.side)
        running = self.running
        if not running:
            raise _Dropped
        baseline = timed(self.baseline)
        return running, [baseline, *map(self._watched, running)]

    def make_ready(self, side: Side) -> None:
        """Give a side that will be timed the calls of a pass, and the state that they start from.

        This is the only place in which a timed side gets its calls: checks use others.
        """
        phase = phase_of(self.request.phase)
        side.inputs = copy_inputs(self.workload)
        if phase.is_own:
            side.run()  # its step was made anew, so that CUDA graphs are to be recorded
        if phase.is_own or phase.steps:
            side.kept = self.reference.eager.kept
        elif side is not self.reference.eager:
            side.keep()

    @contextlib.contextmanager
    def _round(self) -> Iterator[None]:
        with self.channel.exclusive():  # this is how processes take turns
            self.work.sample()
            yield

    def _watched(self, entrant: Entrant) -> Timed:
        """A side for timing whose failure inside a block is its own outcome."""
        timing = timed(entrant.side)

        @contextlib.contextmanager
        def context() -> Iterator[None]:
            with self.turn(entrant.record), timing.context():
                yield
            if entrant.has_ended:
                raise _Dropped

        return replace(timing, context=context)
