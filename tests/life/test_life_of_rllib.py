"""The life of an RLlib algorithm, whose loop, batches and optimizers are RLlib's own.

RLlib accumulates no gradients and keeps its numbers in float32; parameters are added as modules
(``tests/rllib``). Algorithms are neither copied nor pickled: their configurations are.
"""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import life
import pytest
import torch
from life import Life, Values

pytest.importorskip("ray")
import cloudpickle
import ray
from rllib_algorithms import AOT, FUSED, ppo

from autocompile.rllib import tuned

STAGES = tuple(s for s in life.STAGES if s not in (life.CONVERTED, life.ADDED))
ITERATIONS = 7  # of three gradient steps each
PHASES = {"forward_exploration": AOT, "forward_train": AOT, "optimizer_step": FUSED}


def config_of(settings: str) -> Any:
    config = (
        ppo()
        .training(grad_clip=0.5, lr=0.01, optimizer={"adam_epsilon": 1e-3})
        .evaluation(
            evaluation_interval=1000,  # not by itself
            evaluation_duration=3,
            evaluation_config={"explore": False, "num_envs_per_env_runner": 3},
        )
    )
    return tuned(config, settings) if settings else config


class Program:
    """An algorithm, and whether settings are in effect in it."""

    def __init__(self, config: Any, is_tuned: bool) -> None:
        self.algorithm, self.is_tuned = config.build_algo(), is_tuned
        self.learner = self.algorithm.learner_group._learner

    @property
    def module(self) -> Any:
        return self.algorithm.get_module()

    def values(self) -> Values:
        every = self.learner.module["default_policy"].state_dict()
        return {name: x.detach().clone() for name, x in every.items()}

    def train(self, iterations: int = ITERATIONS) -> Values:
        for _ in range(iterations):
            found = self.algorithm.train()
        assert ("autocompile" in found) is self.is_tuned
        if self.is_tuned:
            active = found["autocompile"]
            (runner,), (learner,) = active["env_runners"], active["learners"]
            assert not runner["problems"] and not learner["problems"]
            assert runner["settings"]["forward_exploration"]["graphs"] >= 1
            assert learner["settings"]["default_policy.forward_train"]["graphs"] >= 1
            for optimizer in self.learner._named_optimizers.values():
                assert all(group["fused"] for group in optimizer.param_groups)
        return self.values()

    def encoder(self) -> Any:
        return self.learner.module["default_policy"].encoder


def go_on(settings: str, saved: str, after: str) -> None:
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        ignore_reinit_error=True,
    )
    program = Program(config_of(settings), bool(settings))
    program.algorithm.restore_from_path(saved)
    program.train()
    program.algorithm.save_to_path(after)
    program.algorithm.stop()


def algorithm_life(settings: str, folder: Path) -> Life:
    config, is_tuned, made = config_of(settings), bool(settings), list[Any]()

    def new(config: Any = config, is_tuned: bool = is_tuned) -> Program:
        made.append(Program(config, is_tuned))
        return made[-1]

    program = new()
    yield life.BEGUN, program.values()
    yield life.TRAINED, program.train()

    saved, after = (str(folder / f"{n}-{is_tuned}") for n in ("saved", "after"))
    program.algorithm.save_to_path(saved)
    plain = new(config_of(""), False)
    plain.algorithm.restore_from_path(saved)
    yield life.SAVED, plain.values()
    if is_tuned:
        life.in_fresh_process(go_on, settings, saved, after)
    else:
        go_on(settings, saved, after)
    program = new()
    program.algorithm.restore_from_path(after)
    yield life.RESUMED, program.values()

    found = program.algorithm.evaluate()["env_runners"]
    numbers = ("episode_return_mean", "episode_len_mean", "num_env_steps_sampled")
    results = {n: torch.tensor(float(found[n])) for n in numbers}
    runner = program.algorithm.eval_env_runner
    drawn = torch.Generator().manual_seed(0)
    outputs = [
        runner.module.forward_inference({"obs": torch.randn(size, 4, generator=drawn)})
        for size in (3, 3, 2)
    ]
    logits = torch.cat([each["action_dist_inputs"].detach() for each in outputs])
    yield life.EVALUATED, {**results, "logits": logits}
    if is_tuned:
        phases = {key.rpartition(".")[2] for key in runner.active}
        assert phases == {"forward_inference"}
    yield life.GONE_ON, program.train()

    program.algorithm.save_to_path(saved)
    untuned = new(config_of(""), False)
    untuned.algorithm.restore_from_path(saved)
    for optimizer in untuned.learner._named_optimizers.values():
        assert not any(group["fused"] for group in optimizer.param_groups)
    yield life.UNTUNED, untuned.train()

    with pytest.raises(RuntimeError, match=r"Use Algorithm.get_state\(\) instead"):
        copy.deepcopy(program.algorithm)  # RLlib says so itself
    ways: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        (life.DEEPCOPIED, copy.deepcopy),
        (life.PICKLED, lambda made: pickle.loads(cloudpickle.dumps(made))),
    )
    for stage, way in ways:
        copied = new(way(config))
        copied.algorithm.set_state(program.algorithm.get_state())
        yield stage, copied.train(2)

    program = new()
    program.algorithm.restore_from_path(saved)
    program.encoder().requires_grad_(False)
    before = program.values()
    found = program.train(2)
    frozen = [name for name in before if name.startswith("encoder")]
    assert frozen and all(torch.equal(before[name], found[name]) for name in frozen)
    yield life.FROZEN, found
    program.encoder().requires_grad_(True)
    found = program.train(2)
    assert not all(torch.equal(before[name], found[name]) for name in frozen)
    yield life.UNFROZEN, found
    for each in made:
        each.algorithm.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("_ray", "_dynamo_as_it_was", "_one_thread")
@pytest.mark.filterwarnings("ignore")
def test_a_scaler(tmp_path: Path) -> None:
    path, lives = str(life.settings(tmp_path, **PHASES)), []
    for settings in ("", path):
        scaler = functools.partial(torch.amp.GradScaler, "cpu")
        config = config_of(settings).experimental(_torch_grad_scaler_class=scaler)
        program = Program(config, bool(settings))
        lives.append(program.train(2))
        program.algorithm.stop()
    torch.testing.assert_close(lives[1], lives[0])


@pytest.mark.slow  # beside tests/rllib, which is in the default run
@pytest.mark.usefixtures("_ray", "_dynamo_as_it_was", "_one_thread")
@pytest.mark.filterwarnings("ignore")  # Ray's, of its own older names
def test_life(tmp_path: Path) -> None:
    path = str(life.settings(tmp_path, **PHASES))
    stages = life.assert_equal_lives(
        algorithm_life("", tmp_path), algorithm_life(path, tmp_path)
    )
    assert tuple(stages) == (life.BEGUN, *STAGES)
