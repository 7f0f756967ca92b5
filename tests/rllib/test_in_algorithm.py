"""``verify --in-algorithm``: RLlib's own algorithm with and without settings, in turns."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from autocompile.errors import TargetError
from autocompile.estimate.intervals import over_sets
from autocompile.protocol.requests import AlgorithmResult
from autocompile.rllib.gain import figures
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import TunedSet
from autocompile.store.reading import plain

pytest.importorskip("ray")
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from rllib_algorithms import ALL, AOT, FUSED, ppo, settings

from autocompile.rllib import NotInEffect
from autocompile.rllib.in_algorithm import compare

CONFIG = """
from ray.rllib.algorithms.ppo import PPOConfig

def get_model():
    return (
        PPOConfig()
        .environment({env})
        .env_runners(num_env_runners={runners}, num_envs_per_env_runner=2)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
        .rl_module(model_config={{"fcnet_hiddens": [8]}})
    )
"""


def turn(
    steps: int, train_s: float, sample_s: float, forward_s: float
) -> dict[str, float]:
    both = {
        "steps": steps,
        "train_s": train_s,
        "sample_s": sample_s,
        "forward_s": forward_s,
    }
    return {**both, "update_s": 0.3, "updates": 3}


def test_figures_are_rates_of_pairs() -> None:
    rounds = [
        {"untouched": turn(100, 4.0, 2.0, 1.0), "tuned": turn(100, 2.0, 1.0, 0.25)},
        {"untouched": turn(200, 8.0, 4.0, 2.0), "tuned": turn(100, 2.0, 1.0, 0.25)},
    ]
    found = figures(rounds, runners=2)
    assert found["steps_per_s"]["untouched"]["value"] == pytest.approx(25)
    assert found["steps_per_s"]["gain"]["value"] == pytest.approx(2)
    assert found["sampled_per_s"]["tuned"]["value"] == pytest.approx(
        200
    )  # of both together
    assert found["update_s"]["gain"]["value"] == pytest.approx(1)
    assert found["update_s"]["tuned"]["value"] == pytest.approx(0.1)
    assert found["forward_share"]["untouched"]["value"] == pytest.approx(0.5)
    assert "gain" not in found["forward_share"]
    # Rounds that agree say nothing of other processes.
    usual = over_sets([0.0])
    gain = found["steps_per_s"]["gain"]
    assert gain["low"] <= 2 * usual.low and gain["high"] >= 2 * usual.high
    rounds[0]["tuned"] |= {
        "updates": 0,
        "update_s": 0.0,
    }  # a turn without an update has no time
    assert "update_s" in figures(rounds) and "update_s" not in figures(rounds[:1])


@pytest.mark.usefixtures("_ray", "_dynamo_as_it_was")
def test_both_sides_take_turns_and_one_uses_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, seen = torch.get_num_threads(), defaultdict(set)
    sample = SingleAgentEnvRunner.sample

    def noting(runner: Any, **kwargs: Any) -> Any:
        seen[hasattr(runner, "tuned")].add(torch.get_num_threads())
        return sample(runner, **kwargs)

    monkeypatch.setattr(SingleAgentEnvRunner, "sample", noting)
    threads = dataclasses.replace(AOT, threads=usual + 1)
    tuned = settings(
        forward_exploration=threads, forward_train=AOT, optimizer_step=FUSED
    )
    # With evaluation by runners for which ray has no room: none of them is made.
    config = ppo().evaluation(evaluation_interval=1, evaluation_num_env_runners=9)
    found = AlgorithmResult()
    compare(config, TunedSet((tuned,)), 0.0, found)
    assert len(found.rounds) == 2 and found.runners == 1
    assert list(found.rounds[0]) == list(found.rounds[1])[::-1]
    for turns in found.rounds:
        for each in turns.values():
            assert 0 < each["forward_s"] < each["sample_s"] < each["train_s"]
            assert each["steps"] >= 64 and each["updates"] >= 2 and each["update_s"] > 0
    (runner,) = found.active["env_runners"]
    assert runner["settings"]["forward_exploration"]["graphs"] == 1
    assert seen == {
        False: {usual},
        True: {usual + 1},
    }  # the other side keeps the process's own
    json.dumps(plain(found))  # it travels as JSON


@pytest.mark.usefixtures("_ray", "_dynamo_as_it_was")
def test_what_is_not_in_effect_or_cannot_run_is_an_error() -> None:
    broken = settings(forward_exploration=CompileConfig("no_such_backend"))
    for config, tuned, error, words in (
        (ppo().environment(env=None), ALL, TargetError, "has no environment"),
        (
            learners(num_gpus_per_learner=1),
            ALL,
            TargetError,
            "need 2 GPUs, and ray has 0",
        ),
        (
            learners(num_cpus_per_learner=3),
            ALL,
            TargetError,
            "need 6 CPUs, and ray has 4",
        ),
        (ppo(), broken, NotInEffect, "no_such_backend failed"),
    ):
        with pytest.raises(error, match=words):
            compare(config, TunedSet((tuned,)), 0.0, AlgorithmResult())


def learners(**each: int) -> Any:
    return ppo().learners(num_learners=1, **each)


@pytest.mark.slow
@pytest.mark.parametrize("runners", [0, 2])
def test_the_command_runs_an_algorithm_in_a_process_of_its_own(
    runners: int, work: Path, typed: Callable[..., Any]
) -> None:
    (work / "net.py").write_text(CONFIG.format(env="'CartPole-v1'", runners=runners))
    (work / "tuned.json").write_text(TunedSet((ALL,)).to_json())
    command = (
        "verify",
        "tuned.json",
        "--in-algorithm",
        "--target",
        "net.py",
        "--budget",
        "20s",
    )
    done = typed(*command, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rounds"] and found["figures"]["sampled_per_s"]["gain"]["value"] > 0
    assert any("forward free" in note for note in found["notes"])
    if not runners:
        done = typed(*command)
        print(done.stdout)
        assert "env steps/s of sampling" in done.stdout and "×" in done.stdout


@pytest.mark.slow
def test_the_command_says_what_is_missing(
    work: Path, typed: Callable[..., Any]
) -> None:
    (work / "tuned.json").write_text(TunedSet((ALL,)).to_json())
    for source, words in (
        (CONFIG.format(env="", runners=0), "has no environment"),
        (
            "import torch\ndef get_model(): return torch.nn.Linear(2, 2)\n",
            "get_model is a Linear",
        ),
        (CONFIG.format(env="'NoSuchEnv-v7'", runners=0), "NoSuchEnv"),
    ):
        (work / "net.py").write_text(source)
        done = typed("verify", "tuned.json", "--in-algorithm", "--target", "net.py")
        assert done.returncode == 2 and words in done.stderr
        assert "Traceback" not in done.stderr.splitlines()[0]
