"""Configurations of several agents: one of the modules that are alike is tuned."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")
import gymnasium
import numpy as np
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import (
    DefaultPPOTorchRLModule,
)
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from autocompile.errors import TargetError
from autocompile.rllib.modules import from_object
from autocompile.settings.config import CompileConfig
from autocompile.trial.measure import telemetry
from autocompile.trial.model.sides import make_side
from autocompile.trial.model.target import seed_everything
from autocompile.trial.tasks.steps import inputs_of
from autocompile.trial.verify.reference import Reference, Subject
from autocompile.trial.verify.side_checks import first_calls

SPACES: Any = {
    "observation_space": gymnasium.spaces.Box(-1, 1, (4,), np.float32),
    "action_space": gymnasium.spaces.Discrete(2),
}


def config(agents: int = 2, **more: Any) -> Any:
    """Two policies, whose spaces the environment tells, as most write it."""
    return (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": agents})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        .multi_agent(
            policies={"p0", "p1"},
            policy_mapping_fn=lambda agent, *_, **__: f"p{agent % 2}",
        )
        .training(minibatch_size=32, **more)
    )


WIDE = {"head_fcnet_hiddens": [8]}


def spec(**model_config: Any) -> RLModuleSpec:
    return RLModuleSpec(DefaultPPOTorchRLModule, model_config=model_config, **SPACES)


def test_one_of_the_modules_is_tuned_at_the_rows_that_a_runner_gives_it() -> None:
    target = from_object(config(agents=3))
    assert target.choices["module"] == "p0, one of 2 that are alike"
    assert isinstance(target.model, DefaultPPOTorchRLModule)
    assert target.inference_model is not None and target.inference_model.inference_only
    # Agents 0 and 2 of each of four environments.
    assert target.own_batch_size["forward_exploration"] == 8
    assert target.own_batch_size["forward_train"] == 32
    assert target.make_inputs(8)["obs"].shape == (8, 4)
    assert target.choices["optimizer"] == "Adam with the config's lr 5e-05"


def test_a_spec_of_several_is_one_of_them() -> None:
    target = from_object(MultiRLModuleSpec(rl_module_specs={"b": spec(), "a": spec()}))
    assert target.choices["module"] == "a, one of 2 that are alike"


class _Deep(PPOCatalog):
    """Gives the encoder other layers, which no model_config tells."""


def test_modules_of_other_catalogs_are_not_alike() -> None:
    deep = spec()
    deep.catalog_class = _Deep
    every = MultiRLModuleSpec(rl_module_specs={"a": spec(), "b": deep})
    assert from_object(every).choices["module"] == "a, b"


def unlike(**more: Any) -> Any:
    """Two scouts that are alike, and a captain of another form, which two of five agents are."""
    names = ["scout", "other_scout", "captain", "captain", "scout"]
    specs = {"scout": spec(), "other_scout": spec(), "captain": spec(**WIDE)}
    its = config(agents=5).rl_module(
        rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs)
    )
    return its.multi_agent(
        policies={*specs},
        policy_mapping_fn=lambda agent, *_, **__: names[agent],
        **more,
    )


def test_of_modules_that_are_not_alike_one_of_each_kind_is_tuned() -> None:
    target = from_object(unlike())
    assert target.choices["module"] == "captain, other_scout, one of 2 that are alike"
    assert target.own_batch_size["forward_exploration"] == 4  # environments
    assert target.own_batch_size["forward_train"] == 32
    batch = target.inputs("forward_exploration", 4)
    assert {name: len(part["obs"]) for name, part in batch.items()} == {
        "captain": 8,
        "other_scout": 4,
    }
    learned = target.inputs("forward_train", 32)
    assert {len(part["obs"]) for part in learned.values()} == {32}


def test_a_module_that_no_agent_is_mapped_to_is_not_tuned() -> None:
    its = unlike()
    its.policy_mapping_fn = lambda agent, *_, **__: "scout"
    target = from_object(its)
    words = "scout, one of 2 that are alike, not captain, to which no agent is mapped"
    assert target.choices["module"] == words
    assert target.own_batch_size["forward_exploration"] == 20


def made_by_a_factory() -> type:
    class Module(DefaultPPOTorchRLModule):
        pass

    return Module


def test_classes_of_one_name_are_not_alike() -> None:
    one, other = (
        RLModuleSpec(made_by_a_factory(), model_config={}, **SPACES) for _ in range(2)
    )
    every = MultiRLModuleSpec(rl_module_specs={"a": one, "b": other})
    assert from_object(every).choices["module"] == "a, b"


def test_the_rest_of_the_configuration_is_read_as_for_one_agent() -> None:
    its = unlike().evaluation(
        evaluation_interval=1,
        evaluation_config={"explore": False, "num_envs_per_env_runner": 2},
    )
    target = from_object(its)
    assert target.own_batch_size["forward_inference"] == 2
    assert target.calls_per_update["forward_exploration"] > 1
    assert "learner_update" not in target.own_batch_size
    assert "one for all; RLlib has one for each module" in target.choices["optimizer"]


def test_what_is_not_trained_is_called_by_runners_only() -> None:
    target = from_object(unlike(policies_to_train=["scout"]))
    assert target.choices["module"] == "scout, one of 2 that are alike, captain"
    assert {*target.inputs("forward_exploration", 4)} == {"scout", "captain"}
    assert {*target.inputs("forward_train", 32)} == {"scout"}
    parts = target.model.parts
    assert all(p.requires_grad for p in parts["scout"].parameters())
    assert not any(p.requires_grad for p in parts["captain"].parameters())


@pytest.mark.parametrize(
    "phase", ["forward_exploration", "forward_train", "train_step", "optimizer_step"]
)
def test_modules_that_are_not_alike_are_judged_right_when_compiled(phase: str) -> None:
    seed_everything(0)
    target = from_object(unlike())
    draws = inputs_of(target, phase, 4, 0), inputs_of(target, phase, 4, 0, draw=1)
    reference = Reference(target, phase, draws, 0, [])
    telemetry.reset_dynamo("aot_eager")
    compiled = make_side(target, phase, draws[0], CompileConfig("aot_eager"))
    subject = Subject(compiled, reference.call(compiled, 0), [])
    first_calls(reference, subject)
    parts = 2 if "optimizer" not in phase else 1
    assert telemetry.dynamo_facts()["graphs"] >= parts


def test_modules_that_others_call_are_refused_in_words() -> None:
    class Shared(MultiRLModule):
        pass

    shared = MultiRLModuleSpec(
        multi_rl_module_class=Shared, rl_module_specs={"a": spec()}
    )
    with pytest.raises(TargetError, match="are called by their Shared"):
        from_object(shared)


def test_without_an_environment_it_says_so() -> None:
    without = PPOConfig().multi_agent(policies={"p0"}, policy_mapping_fn=lambda a: "p0")
    with pytest.raises(TargetError, match="names no environment"):
        from_object(without)


class CartPoles(MultiAgentCartPole):  # type: ignore[misc,valid-type]
    """One that is named by its path, so that RLlib gives it the configuration by keywords."""

    def __init__(self, num_agents: int) -> None:
        super().__init__({"num_agents": num_agents})


def test_an_environment_may_be_named_by_the_path_of_its_class() -> None:
    its = config()
    its.environment(f"{__name__}.{CartPoles.__name__}")
    assert from_object(its).own_batch_size["forward_exploration"] == 4


def test_an_environment_that_cannot_be_made_is_an_error_in_words() -> None:
    def broken(_: Any) -> Any:
        raise OSError("no such map")

    with pytest.raises(TargetError, match="cannot be made: OSError: no such map"):
        from_object(config().environment(broken))


def by_chance(agent: Any, *_: Any, **__: Any) -> str:
    return str(np.random.choice(["p0", "p1"]))


def by_episode(agent: Any, episode: Any, **_: Any) -> str:
    return f"p{episode.id_ % 2}"


@pytest.mark.parametrize(
    ("mapping", "least", "most", "words"),
    [
        (by_chance, 5, 15, "on average, as policy_mapping_fn draws by chance"),
        (by_episode, 4, 4, "policy_mapping_fn needs an episode to tell more"),
    ],
)
def test_it_is_said_how_the_rows_of_a_module_are_known(
    mapping: Any, least: int, most: int, words: str
) -> None:
    """Five agents in each of four environments, two modules."""
    its = config(agents=5)
    its.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=mapping)
    target = from_object(its)
    assert least <= target.own_batch_size["forward_exploration"] <= most
    assert words in target.choices["rows"]


def test_a_spec_without_modules_says_so() -> None:
    with pytest.raises(TargetError, match="has no modules"):
        from_object(MultiRLModuleSpec(rl_module_specs={}))
