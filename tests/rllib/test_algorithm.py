"""RLlib's own algorithms with tuned settings: what is active, and what training comes to.

With another ray: ``pip install --no-deps 'ray[rllib]==2.50.*' gymnasium==1.1.1 ormsgpack==1.7.0``
into an environment of its own, in whose site-packages a ``.pth`` file names this one's, and there
``python -m pytest -n0 -m "" tests/rllib``.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from autocompile.errors import UsageError
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.tuned import TunedSet

pytest.importorskip("ray")
import gymnasium
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from rllib_algorithms import ALL, AOT, FUSED, ppo, settings, trained

from autocompile.rllib import NotInEffect, actors, tuned

Built = Callable[[Any], Any]


def demand_fused(algorithm: Any) -> None:
    optimizers = algorithm.learner_group._learner._named_optimizers.values()
    assert optimizers and all(
        group["fused"] for o in optimizers for group in o.param_groups
    )


def test_runner_and_learner_use_the_settings_say_so_and_train_as_untuned(
    built: Built,
) -> None:
    config = ppo()
    plain = built(config)
    assert all("autocompile" not in plain.train() for _ in range(2))
    weights = plain.get_module().state_dict()
    for _ in range(2):  # a second algorithm in the process is compiled too
        algorithm = built(tuned(config, ALL))
        runner, learner = trained(algorithm, 2)
        explored = runner["forward_exploration"]
        assert explored["setting"] == AOT.label()
        assert (explored["graphs"], explored["recompiles"]) == (1, 0)
        assert learner["default_policy.forward_train"]["graphs"] >= 1
        (stepped,) = [v for k, v in learner.items() if "optimizer_step" in k]
        assert stepped["setting"] == FUSED.label()
        demand_fused(algorithm)
        torch.testing.assert_close(algorithm.get_module().state_dict(), weights)
    assert config.env_runner_cls is None  # the user's own stays as it is


def test_new_weights_reach_a_runner_whose_weights_are_constants(built: Built) -> None:
    frozen = settings(forward_exploration=CompileConfig(freezing=True))
    module = built(tuned(ppo(), frozen)).env_runner.module
    batch = {"obs": torch.randn(2, 4)}
    for scale in (1.0, 0.0, 3.0):
        module.set_state({k: v * scale for k, v in module.get_state().items()})
        plain = copy.deepcopy(module)
        vars(plain).pop("_forward_exploration")
        torch.testing.assert_close(
            *(
                m.forward_exploration(batch, t=5)["action_dist_inputs"]
                for m in (module, plain)
            )
        )


def test_a_restored_algorithm_steps_by_the_settings(
    built: Built, tmp_path: Any
) -> None:
    plain = built(ppo())
    plain.train()
    path = plain.save_to_path(str(tmp_path / "checkpoint"))
    algorithm = built(tuned(ppo(), ALL))
    algorithm.restore_from_path(path)
    assert trained(algorithm)[1]["default_policy.forward_train"]["graphs"] >= 1
    demand_fused(algorithm)
    # And the other way round: keys and optimizers are those of an untuned one.
    plain.restore_from_path(algorithm.save_to_path(str(tmp_path / "tuned")))
    (optimizer,) = plain.learner_group._learner._named_optimizers.values()
    assert not any(group["fused"] for group in optimizer.param_groups)
    plain.train()


def test_evaluation_is_compiled_for_its_own_number_of_environments(
    built: Built,
) -> None:
    own = {"num_envs_per_env_runner": 1, "explore": False}
    config = ppo().evaluation(
        evaluation_interval=1, evaluation_duration=1, evaluation_config=own
    )
    (runner,) = built(tuned(config, ALL)).train()["autocompile"]["eval_runners"]
    assert runner["settings"]["forward_inference"]["graphs"] == 1


def test_a_setting_that_fails_is_an_error_or_a_warning_and_eager_mode(
    built: Built,
) -> None:
    broken = CompileConfig("no_such_backend")
    broken_all = settings(
        forward_exploration=broken, forward_train=broken, optimizer_step=broken
    )
    with pytest.raises(NotInEffect, match="no_such_backend failed"):
        built(tuned(ppo(), broken_all)).train()
    algorithm = built(tuned(ppo(), broken_all, strict=False))
    with pytest.warns(UserWarning, match="no_such_backend failed"):
        found = algorithm.train()
    for part in ("env_runners", "learners"):
        (one,) = found["autocompile"][part]
        assert {facts["setting"] for facts in one["settings"].values()} == {"eager"}
    assert found["num_env_steps_sampled_lifetime"] > 0


def test_a_backend_that_captures_nothing_is_no_success(built: Built) -> None:
    with torch.compiler.set_stance("force_eager"):
        algorithm = built(tuned(ppo(), ALL))
        with pytest.raises(NotInEffect, match="has captured no graph"):
            algorithm.train()


def test_each_phase_of_a_process_runs_on_its_own_threads(built: Built) -> None:
    usual, ran = torch.get_num_threads(), {}
    phases = settings(
        forward_exploration=CompileConfig("aot_eager", threads=usual + 1),
        forward_train=CompileConfig("aot_eager", threads=usual + 2, precision="high"),
        optimizer_step=FUSED,
    )

    def note(phase: str) -> None:
        ran[phase] = torch.get_num_threads(), torch.get_float32_matmul_precision()

    config = ppo().callbacks(on_episode_step=lambda **_: note("exploration"))
    algorithm = built(tuned(config, phases))
    learner = algorithm.learner_group._learner
    (optimizer,) = learner._named_optimizers.values()
    optimizer.register_step_pre_hook(lambda *_: note("step"))
    parameter = next(iter(learner._params.values()))
    parameter.register_hook(lambda _: note("backward"))
    explored = trained(algorithm, 2)[0]["forward_exploration"]
    assert (explored["graphs"], explored["recompiles"]) == (1, 0)
    assert ran == {
        "exploration": (usual + 1, "highest"),
        "backward": (usual + 2, "high"),
        "step": (usual, "high"),
    }
    note("after")
    assert ran["after"] == (usual, "highest")


class Wide(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, _: Any = None) -> None: ...

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample(), {}

    def step(self, _: Any) -> Any:
        return self.observation_space.sample(), 1.0, False, False, {}


def test_numbers_of_64_bits_are_seen_as_rllib_sees_them(built: Built) -> None:
    runner, _ = trained(built(tuned(ppo().environment(Wide), ALL)))
    assert runner["forward_exploration"]["recompiles"] == 0


def test_a_learning_rate_in_a_tensor_stays_in_it(built: Built) -> None:
    config = ppo().training(lr=[[0, 0.1], [10_000, 0.0]])
    step = CompileConfig("eager", optimizer="tensor_lr")
    algorithm = built(tuned(config, settings(optimizer_step=step)))
    trained(algorithm, 2)
    (optimizer,) = algorithm.learner_group._learner._named_optimizers.values()
    rate = optimizer.param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor) and 0 < float(rate) < 0.1


@pytest.mark.parametrize(
    ("kind", "environment", "optimizers"),
    [(DQNConfig, "CartPole-v1", 1), (SACConfig, "Pendulum-v1", 4)],
)
def test_dqn_and_sac_compile_exploration_once_and_each_of_their_optimizers(
    kind: Any, environment: str, optimizers: int, built: Built
) -> None:
    """DQN's exploration gets the number of steps; SAC steps policy, two critics, temperature."""
    config = (
        kind()
        .environment(environment)
        .env_runners(
            num_env_runners=0, num_envs_per_env_runner=2, rollout_fragment_length=20
        )
        .training(
            num_steps_sampled_before_learning_starts=0, train_batch_size_per_learner=16
        )
        .rl_module(model_config={"fcnet_hiddens": [8]})
    )
    runner, learner = trained(built(tuned(config, ALL)), 2)
    assert runner["forward_exploration"]["recompiles"] == 0
    assert runner["forward_exploration"]["graphs"] >= 1
    assert len([key for key in learner if "optimizer_step" in key]) == optimizers


def test_a_learner_uses_what_was_measured_of_whole_updates(built: Built) -> None:
    update = CompileConfig("aot_eager", optimizer="fused")
    both = settings(forward_train=EAGER, optimizer_step=EAGER, learner_update=update)
    algorithm = built(tuned(ppo(), both))
    algorithm.train()
    (learner,) = algorithm.train()["autocompile"]["learners"]
    assert {key.rpartition(".")[2] for key in learner["settings"]} == {"learner_update"}
    assert len(learner["settings"]) == 2  # module and optimizer
    assert learner["settings"]["default_policy.learner_update"]["graphs"] >= 1
    demand_fused(algorithm)


def test_several_agents_have_each_module_compiled(built: Built) -> None:
    config = ppo().environment(MultiAgentCartPole, env_config={"num_agents": 2})
    config.multi_agent(
        policies={"a", "b"},
        policy_mapping_fn=lambda agent, *_, **__: "ab"[int(agent) % 2],
    )
    runner, learner = trained(built(tuned(config, ALL)))
    assert {"a.forward_exploration", "b.forward_exploration"} <= runner.keys()
    assert {"a.forward_train", "b.forward_train"} <= learner.keys()


def test_modules_that_come_later_are_tuned_and_those_that_go_are_forgotten(
    built: Built,
) -> None:
    def mapped(*names: str) -> Callable[..., str]:
        return lambda agent, *_, **__: names[int(agent) % 2]

    config = ppo().environment(MultiAgentCartPole, env_config={"num_agents": 2})
    config.multi_agent(policies={"a", "b"}, policy_mapping_fn=mapped("a", "b"))
    algorithm = built(tuned(config, ALL))
    algorithm.train()
    gone = weakref.ref(algorithm.env_runner.module["b"])
    like = algorithm.env_runner.module["a"]
    spec = RLModuleSpec(
        type(like), like.observation_space, like.action_space, model_config={}
    )
    algorithm.add_module("c", spec, new_agent_to_module_mapping_fn=mapped("a", "c"))
    algorithm.remove_module("b", new_agent_to_module_mapping_fn=mapped("a", "c"))
    algorithm.train()
    runner = algorithm.env_runner.tell_active()["settings"]
    (learner,) = (
        each.get()["settings"]
        for each in algorithm.learner_group.foreach_learner(
            lambda one, *_: one.tell_active()
        )
    )
    assert {*runner} == {"a.forward_exploration", "c.forward_exploration"}
    assert not any(key.startswith("b") for key in learner), "its optimizer is gone, too"
    assert {key for key in learner if key.endswith("forward_train")} == {
        "a.forward_train",
        "c.forward_train",
    }
    assert runner["c.forward_exploration"]["graphs"]
    gc.collect()
    assert gone() is None


def test_what_cannot_be_tuned_is_refused_in_words() -> None:
    elsewhere = CompileConfig(environment="other")
    old = ppo().api_stack(
        enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False
    )
    for config, made, words in (
        (ppo(), settings(forward=AOT), "not for an RLModule: forward"),
        (ppo(), settings(forward_exploration=elsewhere), "needs the interpreter other"),
        (old, ALL, "old API stack"),
    ):
        with pytest.raises(UsageError, match=words):
            tuned(config, made)
    tuned(
        ppo(), settings(forward_exploration=AOT, train_step=elsewhere)
    )  # RLlib has none


def test_of_several_machines_only_the_settings_of_this_one_must_be_usable(
    built: Built,
) -> None:
    other = settings(forward_exploration=CompileConfig(environment="other"))
    t4 = {"device": "cuda:0", "device_name": "Tesla T4"}
    built(tuned(ppo(), TunedSet((dataclasses.replace(other, fingerprint=t4), ALL))))
    elsewhere = tuned(
        ppo(), TunedSet((dataclasses.replace(ALL, fingerprint=t4), other))
    )
    with pytest.raises(UsageError, match="needs the interpreter other"):
        built(elsewhere)
    with pytest.raises(UsageError, match="needs the interpreter other"):
        tuned(ppo(), TunedSet((other, dataclasses.replace(other, fingerprint=t4))))


@pytest.mark.parametrize("several", [False, True])
def test_the_driver_looks_at_no_device(
    several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(
        actors, "describe", lambda _: pytest.fail("a device was looked at")
    )
    other = settings(forward_exploration=CompileConfig(environment="other"))
    found = TunedSet((other, ALL) if several else (ALL,))
    tuned(ppo().learners(num_gpus_per_learner=1), found)


def test_an_eager_winner_compiles_nothing(built: Built) -> None:
    algorithm = built(tuned(ppo(), settings(forward_exploration=EAGER)))
    assert "graphs" not in trained(algorithm)[0]["forward_exploration"]
    assert "_forward_exploration" not in vars(algorithm.env_runner.module)


def test_tuned_twice_is_tuned_once() -> None:
    once = tuned(ppo(), settings(forward_exploration=AOT))
    twice = tuned(once, ALL)
    assert twice.env_runner_cls.__bases__ == once.env_runner_cls.__bases__
    assert twice.env_runner_cls.tuned_set.entries == (ALL,)
    assert len(twice.callbacks_on_train_result) == 1
