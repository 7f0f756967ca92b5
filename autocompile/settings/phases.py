"""The table of phases: the units of work that are timed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FORWARD = "forward"
FORWARD_EXPLORATION = "forward_exploration"
FORWARD_INFERENCE = "forward_inference"
FORWARD_TRAIN = "forward_train"
OPTIMIZER_STEP = "optimizer_step"
TRAIN_STEP = "train_step"
LEARNER_UPDATE = "learner_update"
STEP = "step"
INFERENCE_STEP = "inference_step"


@dataclass(frozen=True)
class Phase:
    """What a phase does and needs."""

    is_forward: bool = False  # it calls the model and nothing else
    has_backward: bool = False  # it computes gradients
    steps: bool = False  # it steps an optimizer
    whole: str = ""  # the function of all that it does, which scope ``step`` compiles
    # The library whose own loop does it as it was measured: the name of its export format.
    library: str = ""
    # That library calls the model's method of this name, not the model itself.
    method: bool = False
    # The library's own gradient update, of which plain torch has no form. It comes with the
    # library's configuration, and so do its batch size and its optimizers.
    is_update: bool = False
    role: str = ""  # the part of the library that does it, as reports name it
    has_batch_size: bool = True  # inputs come in batches; else throughput counts calls
    prior: str = ""  # the phase whose recorded tables fit it; empty for its own
    is_own: bool = False  # the target's ``get_step`` gives its unit of work

    @property
    def trains(self) -> bool:
        """Whether gradients are recorded while it runs, or weights change."""
        return self.has_backward or self.steps

    @property
    def unit(self) -> Literal["samples/s", "steps/s"]:
        return "samples/s" if self.has_batch_size else "steps/s"


_SAMPLING = Phase(
    is_forward=True, library="rllib", method=True, role="worker", prior=FORWARD
)
_learning = functools.partial(Phase, library="rllib", role="learner")
_own = functools.partial(Phase, is_own=True, whole="step")

PHASES: Mapping[str, Phase] = {
    FORWARD: Phase(is_forward=True),
    FORWARD_EXPLORATION: _SAMPLING,
    FORWARD_INFERENCE: _SAMPLING,
    FORWARD_TRAIN: _learning(is_forward=True, has_backward=True, method=True),
    OPTIMIZER_STEP: _learning(steps=True, has_batch_size=False),
    TRAIN_STEP: Phase(
        has_backward=True,
        steps=True,
        whole=TRAIN_STEP,
        role="learner",
    ),
    LEARNER_UPDATE: _learning(
        has_backward=True, steps=True, is_update=True, prior=TRAIN_STEP
    ),
    STEP: _own(has_backward=True, steps=True, prior=TRAIN_STEP),
    INFERENCE_STEP: _own(prior=FORWARD),
}

OF_RANKS = (TRAIN_STEP, LEARNER_UPDATE, STEP)
"""The phases that several ranks can make together; a library's updates wrap the model themselves."""
FORWARD_PHASES = tuple(name for name, phase in PHASES.items() if phase.is_forward)


def phase_of(name: str) -> Phase:
    """The entry of a phase; an empty one for a name that this version does not know."""
    return PHASES.get(name, Phase())
