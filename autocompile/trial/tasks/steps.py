"""Steps that several tasks share: load and feed the target, run eager mode, time a side."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch

from autocompile.protocol.events import EventName
from autocompile.protocol.requests import (
    ProbeRequest,
    RaceRequest,
    Request,
    TrialRequest,
)
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.store.record import Outcome, Step
from autocompile.trial.channel import Channel
from autocompile.trial.failures import Failed
from autocompile.trial.measure import environment, telemetry
from autocompile.trial.measure.timing import (
    Timed,
    cost_of_giving_back,
    keep_freed_memory,
    timer_of,
)
from autocompile.trial.model.calls import Calls, first_call, other_values
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.verify.compare import mismatch_scale
from autocompile.trial.verify.outputs import View, copy_view, refusal, tensors_by_path
from autocompile.trial.verify.verifier import Verifier


def load(request: Request, channel: Channel) -> Target:
    """Steps ``import`` and ``build``: the same weights in every process."""
    header = request.header
    channel.step(Step.IMPORT)
    device = environment.pick_device(header.device)
    if isinstance(request, ProbeRequest) and is_prepared(request, channel, device):
        channel.send(EventName.TOOLCHAIN)  # the fork server sees to it meanwhile
    seed_everything(header.seed)
    module = import_target(header.target)
    if isinstance(request, ProbeRequest):
        channel.send(EventName.MODULES, names=environment.library_modules())
    channel.step(Step.BUILD)
    target = build(header.target, module, header.calls)
    target.to(device)
    return target


def is_prepared(request: ProbeRequest, channel: Channel, device: torch.device) -> bool:
    """Whether the fork server makes what compiler caches start with."""
    return bool(request.toolchain) and channel.has_fork_server and device.type == "cpu"


def inputs_of(
    target: Target, phase: str, batch_size: int | None, seed: int, draw: int = 0
) -> Any:
    """The inputs of one batch; another ``draw`` gives other values. An optimizer step has none."""
    if not phase_of(phase).has_batch_size:
        return None
    seed_everything(seed + 1000 * (draw + 1))
    inputs = target.inputs(phase, batch_size)
    if draw and isinstance(inputs, Calls):
        return other_values(inputs_of(target, phase, batch_size, seed), inputs)
    return inputs


class Comparison:
    """The target's unchanged eager side, and the verifier of settings of one precision."""

    def __init__(
        self,
        request: TrialRequest | RaceRequest,
        channel: Channel,
        config: CompileConfig,
        notes: list[str],
        compiles: bool,
    ) -> None:
        self.request, self.channel = request, channel
        self.target = load(request, channel)
        device = self.target.device
        self.timer = timer_of(device)
        if compiles:
            telemetry.use_compile_workers(request.compile_threads, device)
        channel.drain = lambda: telemetry.drain(device)
        channel.step(Step.EAGER)
        header = request.header
        named = config.eager_reference, config.scope == "step"
        more = header.seed, notes, header.tolerance, *named
        with self.exclusive_on_cpu():
            batches = self.inputs(), self.inputs(draw=1)
            self.given_back: dict[str, float] = {}
            if config.is_plain_eager and device.type == "cpu":
                self.given_back = self._cost_of_giving_back()
            keep_freed_memory()
            self.verifier = Verifier(self.target, request.phase, batches, *more)
            self.eager = self.verifier.eager
            if config.eager_reference != EAGER:
                self.eager = self.verifier.another_side()
                output = self.verifier.seeded_call(self.eager, 0)
                unchanged = copy_view(self.eager.view(output))
                self.eager.keep()
                _demand_close(self.verifier, unchanged, notes)

    def exclusive_on_cpu(self) -> contextlib.AbstractContextManager[None]:
        """Exclusive use on a CPU, where eager's threads wait for each other by busy-waiting.

        Next to a compiling trial, both would become up to ten times slower.
        """
        on_cpu = self.target.device.type == "cpu"
        return self.channel.exclusive() if on_cpu else contextlib.nullcontext()

    def _cost_of_giving_back(self) -> dict[str, float]:
        """Before anything is verified, which frees large blocks: glibc then keeps more."""
        phase = self.request.phase
        model = self.target.fresh_model(phase, shares_parameters=True)
        side = make_side(self.target, phase, first_call(self.inputs()), model=model)
        side.keep()
        cost = cost_of_giving_back(timed(side))
        del side, model
        gc.collect()  # views of a side refer to it
        return cost

    def inputs(self, draw: int = 0) -> Any:
        """One batch; another ``draw`` gives other values."""
        request, seed = self.request, self.request.header.seed
        return inputs_of(self.target, request.phase, request.batch_size, seed, draw)


def _demand_close(verifier: Verifier, unchanged: View, notes: list[str]) -> None:
    """Compare eager mode at the requested precision with the view of the unchanged model.

    The user's check judges the outputs if there is one, otherwise the tolerance; without a
    tolerance any finite change is allowed. A note says how large the change is.
    """
    changed = verifier.expected
    # Without gradients and updates: noise among them differs at every precision.
    results = [
        {n: v for n, v in view.items() if n in ("outputs", "loss")}
        for view in (unchanged, changed)
    ]
    change = mismatch_scale(*results)
    tensors = tensors_by_path(changed)
    for path, x in tensors_by_path(unchanged).items():
        y = tensors.get(path)
        if y is None or x.shape != y.shape:
            continue
        if bool((x.isfinite() & ~y.isfinite()).any()):
            what = f"{path} overflows in eager mode too at the requested precision"
            raise Failed(Outcome.WRONG_OUTPUT, what)
        is_whole = not x.is_floating_point() and not x.is_complex()
        if is_whole and x.numel() and path.startswith(("['outputs']", "['loss']")):
            change = max(change, float((x != y).float().mean()))  # such as labels
    notes.append(f"at the requested precision, outputs change by {change:.1g}")
    if verifier.check:
        if problem := refusal(verifier.check, unchanged["outputs"], changed["outputs"]):
            raise Failed(
                Outcome.WRONG_OUTPUT, f"{problem} (at the requested precision)"
            )
    elif verifier.tolerance is not None and change > verifier.tolerance:
        limit = f"tolerance {verifier.tolerance:g}"
        what = f"outputs change by {change:.2g} (relative RMS; {limit})"
        raise Failed(Outcome.WRONG_OUTPUT, what)


def timed(side: Side) -> Timed:
    """A side for timing, in which a recompile inside a block is an error.

    Recompiles are counted after the block: torch's stance ``fail_on_recompile`` would add a
    microsecond to each compiled call.
    """

    @contextlib.contextmanager
    def counted() -> Iterator[None]:
        before, side.is_timed = telemetry.compilations(), True
        try:
            with side.context():
                yield
        finally:
            side.is_timed = False
        if not side.is_eager and telemetry.compilations() != before:
            why = ("no reason is known", *telemetry.recompile_reasons())[-1]
            raise Failed(
                Outcome.RECOMPILE_LIMIT, f"recompiled while it was timed: {why}"
            )

    return Timed(side.call, side.restore, counted)
