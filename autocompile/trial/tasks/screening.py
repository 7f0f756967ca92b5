"""A trial of the search: is this setting right, and may it be fast?"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

import torch

from autocompile.errors import first_words
from autocompile.protocol.requests import TrialRequest
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.phases import phase_of
from autocompile.store.record import Measurement, Outcome, Record, Step
from autocompile.trial.channel import Channel, make_autotuning_exclusive
from autocompile.trial.failures import Failed, only_logged
from autocompile.trial.measure import memory, telemetry
from autocompile.trial.measure.timing import FirstCalls, ReferenceWork, screen
from autocompile.trial.target.load import home_of
from autocompile.trial.target.sides import Side, make_side
from autocompile.trial.tasks.steps import Comparison, timed
from autocompile.trial.verify.verifier import (
    Verifier,
    compare_with_eagers_draws,
    demand_draws_by_seed,
)

_TOO_LONG_S = 2.0  # a call of which no page faults are counted
_SCHEDULE_S = 5.0  # for trying changes of the learning rate; a while longer of the default
_FACTORS = (0.7, 0.49)  # of a learning rate: an older one is off by 40 % or more


def screen_setting(request: TrialRequest, channel: Channel, result: Record) -> None:
    """Eager twice, compile, verify, time against eager, verify again."""
    trial = _Trial(request, channel, result)
    with trial.verifier.comparable_random_numbers(trial.compiled):
        output = trial.verifier.seeded_call(trial.compiled, 0)
        with trial.exclusive_on_cpu():
            trial.check_first_calls(output)
            if result.duplicate_of is not None:  # it is measured, and verified to its end
                return
            seed = request.header.seed + request.number
            with channel.exclusive(), trial.measuring():
                measurement = screen(
                    timed(trial.eager),
                    timed(trial.compiled),
                    trial.synchronize,
                    request.limits,
                    seed,
                )
            trial.keep(measurement)
            trial.check_last_calls(measurement)
    if not trial.verifier.draws_otherwise(trial.compiled):  # else it is not verified yet
        channel.measured(result)
    try:
        trial.look_closer(measurement)  # not timed, so the others may go on
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
        self.home = home_of(request.header.target)  # found now: the target may change directory
        super().__init__(request, channel, config, result.notes, not config.is_eager)
        channel.step(Step.COMPILE)
        memory.give_back(self.target.device)
        telemetry.reset_dynamo(config.backend)
        make_autotuning_exclusive(channel)
        self.compiled = make_side(self.target, request.phase, self.inputs(), config)
        self.clock = FirstCalls(self.compiled, self.synchronize, lambda: channel.waited_s)

    def check_first_calls(self, output: Any) -> None:
        """Verify the first calls, and find the trial that has measured the same code."""
        request, result = self.request, self.result
        self.channel.step(Step.VERIFY)
        self.verifier.first_calls(self.compiled, output)
        self.clock.stop()
        telemetry.end_compile_workers()
        memory.give_back(self.target.device)
        if not request.config.is_eager:
            self.prove_compiled()
        result.code = telemetry.same_code_key(request.config, self.target.device)
        result.duplicate_of = request.known_codes.get(result.code)
        if result.duplicate_of is not None:
            result.compile_window, result.compile_s = self.clock.window, self.clock.compile_s(0.0)
            return
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

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """The step ``measure``, with the reference work before and after it."""
        self.channel.step(Step.MEASURE)
        self.verifier.share_kept(self.compiled)
        reference = ReferenceWork(self.target.device)
        reference.sample()
        yield
        reference.sample()
        self.result.reference_s = reference.median_s

    def keep(self, measurement: Measurement) -> None:
        result = self.result
        result.measurement = measurement
        if not self.request.config.is_eager:
            result.compile_s = self.clock.compile_s(measurement.compiled_call_s)
            result.compile_window = self.clock.window  # the parent takes out what it held us

    def check_last_calls(self, measurement: Measurement) -> None:
        """Verify a call after the timing, and load new weights where they are constants."""
        request, result, compiled = self.request, self.result, self.compiled
        self.channel.step(Step.VERIFY)
        self.verifier.last_call(compiled)
        if request.config.bakes_weights:  # new ones are a compile or a new session: one shows all
            counts = request.calls_per_update is not None  # else their seconds decide nothing
            with self.channel.exclusive() if counts else contextlib.nullcontext():
                is_live, took_s = self.verifier.new_weights(compiled, self.synchronize)
            result.weights_live = is_live
            result.refresh_s = max(0.0, took_s - measurement.compiled_call_s)
            result.calls_per_update = request.calls_per_update

    def look_closer(self, measurement: Measurement) -> None:
        """What is launched, memory, and what a learning-rate schedule recompiles."""
        config, result, compiled = self.request.config, self.result, self.compiled
        if self.target.device.type == "cuda":  # before the peaks of the two sides are measured
            result.held_bytes = memory.most_held_bytes(self.target.device)
        on_cpu = self.target.device.type == "cpu"
        if on_cpu and measurement.eager_call_s < _TOO_LONG_S:
            with only_logged():
                result.page_faults = [memory.page_faults(s.run) for s in (self.eager, compiled)]
        if not (config.is_eager or config.bakes_weights):  # whose refreshes were compiles too
            self.prove_compiled()
        # Before more CUDA graphs are made.
        result.eager_peak_memory_bytes = self.peak_memory(self.eager)
        result.peak_memory_bytes = self.peak_memory(compiled)
        if not config.is_eager:
            with self.verifier.comparable_random_numbers(compiled):
                # Dynamo recompiles alike whatever the backend's options: one shows all of it.
                longest_s = _SCHEDULE_S * (3 if config == DEFAULT_INDUCTOR else 1)
                try_schedule(self.verifier, compiled, result, longest_s)
        is_held = config.bakes_weights or config.entry.lays_out
        if is_held and on_cpu and result.peak_memory_bytes is not None:
            # What a runtime keeps between two calls, no tensor of the side shows. At the very end:
            # nothing that was compiled is there any more afterwards.
            result.peak_memory_bytes += memory.freed_bytes(torch._dynamo.reset)

    def peak_memory(self, side: Side) -> int | None:
        """What this side's tensors hold plus what a call needs on top, in bytes."""
        phase = phase_of(self.request.phase)

        def held() -> Any:
            model = side.model
            tensors = [dict(model.named_parameters()), dict(model.named_buffers()), side.inputs]
            # Elsewhere they are the step's inputs, or left by a comparison.
            if phase.steps and phase.has_backward:
                tensors.append([p.grad for p in model.parameters()])
            return tensors, side.held()

        return memory.peak_bytes(side.run, held, self.target.device, graphs=not side.is_eager)


def try_schedule(verifier: Verifier, compiled: Side, result: Record, budget_s: float) -> None:
    """Change the learning rate on both sides, step, and compare; then put everything back.

    Dynamo treats a learning rate that is a Python number as a constant: each new value may
    recompile the step, up to the recompile limit, after which torch runs eager. By the second
    change it is known whether the number has become dynamic.

    A note with advice joins the notes if a change recompiles the step, fails, or may take longer
    than ``budget_s``. Nothing is timed after it: what it compiles stays in Dynamo's cache.

    Raises:
        Failed: ``wrong_output``, if a step does not follow the learning rate.
    """
    eager = verifier.eager
    groups = [g for s in (eager, compiled) for o in s.optimizers for g in o.param_groups]
    rates = [float(g["lr"]) for g in groups if isinstance(g.get("lr"), (float, torch.Tensor))]
    if not groups or len(rates) < len(groups):
        return
    rate, kind = compiled.optimizers[0].param_groups[0]["lr"], type(compiled.optimizers[0]).__name__
    is_number = not isinstance(rate, torch.Tensor)
    advice = f"; pass it as a tensor, e.g. {kind}(params, lr=torch.tensor({rate:g}))" * is_number
    compile_s = result.compile_s or 0.0
    if is_number and len(_FACTORS) * compile_s > budget_s:
        result.notes.append(
            "whether a learning-rate schedule recompiles this step was not tried: it takes "
            f"{compile_s:.0f} s to compile"
        )
        return
    eager.restore()
    kept, before, problem = eager.kept, telemetry.dynamo_facts()["graphs"], None
    try:
        for change, factor in enumerate(_FACTORS, 1):
            _set_rates(groups, rates, factor)
            eager.keep()
            compiled.adopt(eager)
            verifier.seeded_call(compiled, change)
            problem = problem or verifier.steps.problem(eager, compiled)
    except Exception as error:
        words = first_words(error)
        result.notes.append(f"after a change of the learning rate this step fails: {words}")
        return
    finally:
        _set_rates(groups, rates, 1.0)
        eager.kept = kept
        eager.restore()
        compiled.adopt(eager)
    if problem:
        what = f"the step does not follow the learning rate: {problem}"
        raise Failed(Outcome.WRONG_OUTPUT, what + advice)
    if recompiles := telemetry.dynamo_facts()["graphs"] - before:
        what = "a learning-rate schedule recompiles this step once"
        if recompiles > 1:
            what = "each change of the learning rate recompiles this step, up to torch's limit"
        result.notes.append(what + advice)


def _set_rates(groups: list[dict[str, Any]], rates: list[float], factor: float) -> None:
    """Like torch's schedulers: fill a tensor, replace a number."""
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * factor)
        else:
            group["lr"] = rate * factor
