"""RLlib's smallest algorithms and settings for them: for tests of what is active in them."""

from __future__ import annotations

from typing import Any

import torch

from autocompile.runtime.machine import describe
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Choice, Tuned

AOT = CompileConfig("aot_eager")  # captures graphs and needs no C++ compiler
FUSED = CompileConfig("eager", optimizer="fused")
SPEEDUP = {"value": 1.5, "low": 1.4, "high": 1.6}


def settings(**phases: CompileConfig) -> Tuned:
    here = {
        k: v
        for k, v in describe(torch.device("cpu")).items()
        if k in ("torch", "device")
    }
    size = {"optimizer_step": None}
    found = {n: (Choice(c, size.get(n, 2), SPEEDUP, 3),) for n, c in phases.items()}
    return Tuned(found, here)


ALL = settings(forward_exploration=AOT, forward_train=AOT, optimizer_step=FUSED)


def trained(algorithm: Any, times: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is in effect in its only env runner and in its only learner after some iterations."""
    for _ in range(times):
        found = algorithm.train()["autocompile"]
    (runner,), (learner,) = found["env_runners"], found["learners"]
    return runner["settings"], learner["settings"]


def ppo(**runners: Any) -> Any:
    """PPO on CartPole, as small as it can be, with all in this process."""
    from ray.rllib.algorithms.ppo import PPOConfig

    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(**{"num_env_runners": 0, "num_envs_per_env_runner": 2, **runners})
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=0)
    )
