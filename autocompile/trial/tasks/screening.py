"""A trial of the search: is this setting right, and may it be fast?"""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from typing import Any

import torch

from autocompile.errors import first_words
from autocompile.estimate.intervals import median
from autocompile.protocol.requests import TrialRequest
from autocompile.settings.phases import phase_of
from autocompile.store.record import CallKind, Measurement, Outcome, Record, Step
from autocompile.store.targets import split_spec
from autocompile.trial.channel import Channel, make_autotuning_exclusive
from autocompile.trial.failures import Failed
from autocompile.trial.measure import memory, telemetry
from autocompile.trial.measure.timing import (
    FirstCalls,
    ReferenceWork,
    each_call,
    screen,
)
from autocompile.trial.model.calls import Calls, between, in_words, kinds
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.tasks.steps import Comparison, timed
from autocompile.trial.verify.verifier import (
    Verifier,
    compare_with_eagers_draws,
    demand_draws_by_seed,
)

_FACTOR = 0.7  # of a learning rate: the older one is off by 40 %
_LONGEST_COMPILE_S = 5.0  # of a step that another learning rate may compile again


def screen_setting(request: TrialRequest, channel: Channel, result: Record) -> None:
    """Eager twice, compile, verify, time against eager, verify again."""
    trial = _Trial(request, channel, result)
    with trial.verifier.comparable_random_numbers(trial.compiled):
        output = trial.verifier.seeded_call(trial.compiled, 0)
        with trial.exclusive_on_cpu():
            trial.check_first_calls(output)
            reference = ReferenceWork(trial.target.device)
            with channel.exclusive():
                channel.step(Step.MEASURE)
                trial.verifier.share_kept(trial.compiled)
                sides = timed(trial.eager), timed(trial.compiled)
                reference.sample()
                seed = request.header.seed + request.number
                measurement, notes = screen(*sides, trial.timer, request.limits, seed)
                reference.sample()
            result.reference_s, result.measurement = reference.median_s, measurement
            result.notes += notes
            if isinstance(trial.compiled.inputs, Calls):
                with channel.exclusive():
                    result.kinds = trial.kinds_of_calls()
            if not request.config.is_eager:
                of_shape = {kind.shape: kind.call_s for kind in result.kinds or ()}
                result.compile_s = trial.clock.compile_s(
                    measurement.compiled_pass_s, of_shape
                )
                result.compile_window = (
                    trial.clock.window
                )  # the parent takes out what it held us
            trial.check_last_calls(measurement)
    if not trial.verifier.draws_otherwise(
        trial.compiled
    ):  # else it is not verified yet
        channel.measured(result)
    try:
        trial.look_closer()  # not timed, so the others may go on
    except Failed:
        raise
    except Exception as error:
        traceback.print_exc()
        result.notes.append(f"after its measurement: {first_words(error)}")
    compare_with_eagers_draws(trial.verifier, trial.compiled, request.config)


class _Trial(Comparison):
    request: TrialRequest

    def __init__(self, request: TrialRequest, channel: Channel, result: Record) -> None:
        self.result, config = result, request.config
        # Of the user's file, which may change directory when it is loaded.
        self.home = Path(split_spec(request.header.target)[0]).resolve().parent
        super().__init__(request, channel, config, result.notes, not config.is_eager)
        channel.step(Step.COMPILE)
        memory.give_back(self.target.device)
        telemetry.reset_dynamo(config.backend)
        make_autotuning_exclusive(channel)
        if self.given_back:
            result.detail["given_back"] = self.given_back
        self.compiled = make_side(self.target, request.phase, self.inputs(), config)
        self.clock = FirstCalls(self.compiled, self.timer, lambda: channel.waited_s)

    def check_first_calls(self, output: Any) -> None:
        """Verify the first calls."""
        request, result = self.request, self.result
        self.channel.step(Step.VERIFY)
        self.verifier.first_calls(self.compiled, output)
        self.verifier.make_pass(self.compiled)
        self.clock.stop()
        telemetry.end_compile_workers()
        memory.give_back(self.target.device)
        if not request.config.is_eager:
            self.prove_compiled()
        demand_draws_by_seed(self.verifier, self.compiled)
        if not request.config.bakes_weights:
            result.weights_live = self.verifier.weights(self.compiled)

    def prove_compiled(self) -> None:
        """At least one graph reached the backend, and what the setting asked for happened."""
        result, facts = self.result, telemetry.dynamo_facts()
        for name in ("graphs", "graph_breaks", "recompiles"):
            setattr(result, name, facts.pop(name))
        result.detail |= {**facts, **telemetry.found_by_dynamo(self.home)}
        if result.graphs == 0:
            met = (*facts["break_reasons"], *facts["skip_reasons"])
            why = f": {met[0]}" if met else ""
            what = f"Dynamo captured no graph: everything ran in eager mode{why}"
            raise Failed(Outcome.NOT_COMPILED, what)
        skipped = "no CUDA graphs: Inductor gave them up here"
        if facts["cudagraph_skips"] and skipped not in result.notes:
            result.notes.append(skipped)

    def kinds_of_calls(self) -> list[CallKind]:
        """Seconds of the calls of each shape, the most frequent shape first."""
        calls = self.compiled.inputs
        eager_s, compiled_s = each_call((self.eager, self.compiled), self.timer)
        found = [
            CallKind(
                in_words(calls[group[0]]),
                len(group),
                median([eager_s[n] for n in group]),
                median([compiled_s[n] for n in group]),
            )
            for group in kinds(calls)
        ]
        return sorted(found, key=lambda kind: -kind.calls)

    def check_between(self) -> None:
        """A program for several sizes must be right at one that no call has had, too.

        It may compile once more, so nothing is timed after it.
        """
        calls, config = self.inputs(), self.request.config
        if not isinstance(calls, Calls) or config.is_eager or config.dynamic is False:
            return
        inputs = between(calls)
        if inputs is not None and (
            why := self.verifier.at_another_size(self.compiled, inputs)
        ):
            self.result.notes.append(
                f"at a size between those of the calls, eager fails: {why}"
            )

    def check_last_calls(self, measurement: Measurement) -> None:
        """Verify a call after the timing, and load new weights where they are constants."""
        request, result, compiled = self.request, self.result, self.compiled
        self.channel.step(Step.VERIFY)
        self.verifier.last_call(compiled)
        self.check_between()
        if (
            request.config.bakes_weights
        ):  # new ones are a compile or a new session: one shows all
            counts = (
                request.calls_per_update is not None
            )  # else their seconds decide nothing
            with self.channel.exclusive() if counts else contextlib.nullcontext():
                is_live, took_s = self.verifier.new_weights(
                    compiled, self.timer.synchronize
                )
            result.weights_live = is_live
            result.refresh_s = max(0.0, took_s - measurement.compiled_pass_s)
            result.calls_per_update = request.calls_per_update

    def look_closer(self) -> None:
        """Memory, and what a learning-rate schedule recompiles."""
        config, result, compiled = self.request.config, self.result, self.compiled
        if (
            self.target.device.type == "cuda"
        ):  # before the peaks of the two sides are measured
            result.held_bytes = memory.most_held_bytes(self.target.device)
        on_cpu = self.target.device.type == "cpu"
        if not (
            config.is_eager or config.bakes_weights
        ):  # whose refreshes were compiles too
            self.prove_compiled()
        # Before more CUDA graphs are made.
        result.eager_peak_memory_bytes = self.peak_memory(self.eager)
        # On a CPU no tensor shows the weights that another runtime or constants hold.
        if not on_cpu or not (config.bakes_weights or config.entry.lays_out):
            result.peak_memory_bytes = self.peak_memory(compiled)
        if not config.is_eager:
            with self.verifier.comparable_random_numbers(compiled):
                if (
                    result.compile_s or 0.0
                ) < _LONGEST_COMPILE_S or config.guards != "all":
                    try_schedule(self.verifier, compiled, result.notes)
                elif compiled.optimizers:
                    what = "whether a learning-rate schedule recompiles this step was not tried"
                    result.notes.append(
                        f"{what}: it takes {result.compile_s:.0f} s to compile"
                    )

    def peak_memory(self, side: Side) -> int:
        """What this side's tensors hold plus what a call needs on top, in bytes."""
        phase = phase_of(self.request.phase)

        def held() -> Any:
            model = side.model
            tensors = [
                dict(model.named_parameters()),
                dict(model.named_buffers()),
                side.inputs,
            ]
            # Elsewhere they are the step's inputs, or left by a comparison.
            if phase.steps and phase.has_backward:
                tensors.append([p.grad for p in model.parameters()])
            return tensors, side.held()

        return memory.peak_bytes(
            side.run, held, self.target.device, graphs=not side.is_eager
        )


def try_schedule(verifier: Verifier, compiled: Side, notes: list[str]) -> None:
    """Change the learning rate on both sides, step, and compare; then put everything back.

    Dynamo guards on a learning rate that is a Python number, and a setting may drop guards: then
    the step must still follow the rate. Where it compiles again for it, a note says so. Nothing is
    timed after it: what it compiles stays in Dynamo's cache.
    """
    eager = verifier.eager
    groups = [
        g for s in (eager, compiled) for o in s.optimizers for g in o.param_groups
    ]
    if verifier.compares_updates or not groups:
        return
    if not all(isinstance(g.get("lr"), (float, torch.Tensor)) for g in groups):
        return
    rates = [float(g["lr"]) for g in groups]
    eager.restore()
    kept, before = eager.kept, telemetry.dynamo_facts()["graphs"]
    try:
        _set_rates(groups, [rate * _FACTOR for rate in rates])
        eager.keep()
        compiled.adopt(eager)
        verifier.seeded_call(compiled, 1)

        def again() -> Side:
            eager.restore()
            return eager

        problem = verifier.step_problem(eager, compiled, again)
    finally:
        _set_rates(groups, rates)
        eager.kept = kept
        eager.restore()
        compiled.adopt(eager)
    if problem:
        what = f"the step does not follow the learning rate: {problem}"
        raise Failed(Outcome.WRONG_OUTPUT, what)
    if telemetry.dynamo_facts()["graphs"] > before:
        kind, rate = (
            type(compiled.optimizers[0]),
            compiled.optimizers[0].param_groups[0]["lr"],
        )
        advice = f"; pass the rate as a tensor, e.g. {kind.__name__}(params, lr=torch.tensor({rate}))"
        is_tensor = isinstance(rate, torch.Tensor)
        notes.append(
            "a learning-rate schedule recompiles this step" + advice * (not is_tensor)
        )


def _set_rates(groups: list[dict[str, Any]], rates: list[float]) -> None:
    """Like torch's schedulers: fill a tensor, replace a number."""
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
