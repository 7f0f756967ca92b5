"""PPO on ALE/Breakout, tuned and untouched, in turns: what of a gain is left in an algorithm.

    autocompile tune examples/ppo_breakout.py && autocompile export last -o tuned.json
    python studies/rllib/breakout.py tuned.json

Two env runners and two learners in one process, one of each with the settings of the file. Rounds
in random order: each runner samples a fragment, each learner does one update with the same
minibatch. Weights are sent before each fragment, as in training. Needs ``ale-py`` and
``opencv-python-headless``. Written to ``<device>/breakout.json``; no run of it is recorded yet.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import time
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

from autocompile.rllib import tuned
from autocompile.runtime.machine import describe

HERE = Path(__file__).parent
ENVS, FRAGMENT, MINIBATCH = 16, 16, 128  # environments, steps of each, rows of an update


def make_env(_: Any) -> gymnasium.Env[Any, Any]:
    """Breakout as RLlib's examples see it: 84 x 84, four grey frames, values in [-1, 1]."""
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    return wrap_atari_for_new_api_stack(env, dim=84, framestack=4)


def make_config(device: str) -> Any:
    """PPO with the defaults of RLlib for such images."""
    gpus = 1 if device == "cuda" else 0
    return (
        PPOConfig()
        .environment("breakout")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=ENVS,
            num_gpus_per_env_runner=gpus,
            rollout_fragment_length=FRAGMENT,
        )
        .learners(num_learners=0, num_gpus_per_learner=gpus)
        .training(minibatch_size=MINIBATCH, num_epochs=1)
    )


class Side:
    """An env runner and a learner with one configuration."""

    def __init__(self, config: Any) -> None:
        self.runner = (config.env_runner_cls or SingleAgentEnvRunner)(config=config)
        self.learner = config.build_learner(spaces=self.runner.get_spaces())
        self.inference_s = 0.0
        explore = self.runner.module.forward_exploration

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            output = explore(*args, **kwargs)
            output["action_dist_inputs"].cpu()  # waits for the device
            self.inference_s += time.perf_counter() - began
            return output

        self.runner.module.forward_exploration = timed

    def sample(self) -> tuple[dict[str, float], Any]:
        """Seconds of a fragment and of inference in it, and its episodes."""
        self.inference_s = 0.0
        began = time.perf_counter()
        episodes = self.runner.sample(num_timesteps=ENVS * FRAGMENT)
        wall_s = time.perf_counter() - began
        return {"sample_s": wall_s, "inference_s": self.inference_s}, episodes

    def update(self, episodes: Any) -> float:
        """Seconds of one epoch, connectors and loss included."""
        began = time.perf_counter()
        self.learner.update(episodes=episodes, minibatch_size=MINIBATCH, num_epochs=1)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def send_weights(self) -> None:
        """As an algorithm does between an update and the next fragment."""
        state = self.learner.get_state(components="rl_module", inference_only=True)
        self.runner.set_state(state)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("settings", help="a file of autocompile export -o")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    gymnasium.register_envs(importlib.import_module("ale_py"))
    register_env("breakout", make_env)
    config = make_config(asked.device)
    sides = {"untouched": Side(config), "tuned": Side(tuned(config, asked.settings))}
    rounds: list[dict[str, Any]] = []
    for number in range(-3, asked.rounds):  # the first three warm up
        names = list(sides)
        random.Random(number).shuffle(names)
        found: dict[str, Any] = {"order": names}
        for name in names:
            side = sides[name]
            side.send_weights()
            found[name], episodes = side.sample()
            found[name]["update_s"] = side.update(episodes)
        if number >= 0:
            rounds.append(found)
    result = {
        "machine": describe(torch.device(asked.device)),
        "envs": ENVS,
        "steps": ENVS * FRAGMENT,
        "minibatch": MINIBATCH,
        "active": [part.tell_active() for part in (sides["tuned"].runner, sides["tuned"].learner)],
        "rounds": rounds,
    }
    path = HERE / asked.device.split(":")[0] / "breakout.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    for key in ("sample_s", "inference_s", "update_s"):
        ratios = [r["untouched"][key] / r["tuned"][key] for r in rounds]
        print(f"{key}: untouched over tuned {median(ratios):.3f}")
    share = median(r["untouched"]["inference_s"] / r["untouched"]["sample_s"] for r in rounds)
    print(f"share of sampling that is inference: {share:.2f}")


if __name__ == "__main__":
    main()
