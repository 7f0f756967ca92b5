"""``breakout.py`` with an env runner in a process of its own, on the GPU where there is one."""

from __future__ import annotations

from typing import Any

import breakout
import torch

SHARE = 0.25  # of a GPU: two algorithms stand side by side, each with a runner


def get_model() -> Any:
    """One remote env runner; the learner stays in the process of the algorithm."""
    gpus = SHARE * torch.cuda.is_available()
    return breakout.get_model().env_runners(
        num_env_runners=1, num_gpus_per_env_runner=gpus
    )
