"""Tuned settings in RLlib's remote runners, several learners and threads.

With another ray: see ``test_algorithm``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo import register_backend

from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Choice, Tuned

pytest.importorskip("ray")
import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo.torch import default_ppo_torch_rl_module
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.rl_module import RLModuleSpec
from ray.rllib.utils.actor_manager import ResultOrError
from rllib_algorithms import ALL, AOT, FUSED, ppo, settings, trained

from autocompile.rllib import NotInEffect, tuned
from autocompile.rllib.actors import of_learner, warm_up
from autocompile.rllib.algorithm import Tell
from autocompile.rllib.observations import module_spec
from autocompile.runtime.applying import Compiled

Built = Callable[[Any], Any]


def asynchronous(kind: Any, **runners: Any) -> Any:
    """Its learner updates in a thread of its own."""
    return (
        kind()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=2, rollout_fragment_length=16, **runners)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=32)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .reporting(min_time_s_per_iteration=0.5)
        .debugging(seed=0)
    )


class AddMask(ConnectorV2):
    """Gives the module more than observations."""

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "mask", np.zeros(2, np.float32), episode)
        return batch


class Masked(default_ppo_torch_rl_module.DefaultPPOTorchRLModule):
    """Cannot explore without a mask."""

    def _forward(self, batch: Any, **given: Any) -> Any:
        output = super()._forward(batch, **given)
        return {
            **output,
            "action_dist_inputs": output["action_dist_inputs"] + batch["mask"],
        }


def of_sizes(phases: dict[str, dict[int | None, CompileConfig]]) -> Tuned:
    speedup = {"value": 1.5, "low": 1.4, "high": 1.6}
    return Tuned(
        {
            name: tuple(
                Choice(config, size, speedup, 3) for size, config in one.items()
            )
            for name, one in phases.items()
        },
        {},
    )


def test_a_whole_update_goes_before_its_parts() -> None:
    """What is about blocks and layouts is the forward pass's alone."""
    eager = CompileConfig("eager")
    parts = of_sizes({"forward_train": {4: AOT}, "optimizer_step": {None: eager}})
    (forward, choice), (own_step, other) = of_learner(parts, 4)
    assert (forward, own_step) == ("forward_train", "optimizer_step")
    assert choice and choice.config == AOT and other and other.config == eager
    whole = CompileConfig(
        "aot_eager", optimizer="tensor_lr", memory_format="channels_last"
    )
    both = of_sizes({"forward_train": {4: AOT}, "learner_update": {4: AOT, 64: whole}})
    (forward, choice), (own_step, other) = of_learner(both, 60)
    assert forward == own_step == "learner_update"
    assert choice and choice.config == whole
    assert other and other.config == CompileConfig("aot_eager", optimizer="tensor_lr")


def weights_of(algorithm: Any) -> torch.Tensor:
    state = algorithm.learner_group._learner.module["default_policy"].state_dict()
    return torch.cat([value.flatten() for value in state.values()])


@pytest.mark.parametrize(
    ("kind", "runners"),
    [
        (IMPALAConfig, 0),
        pytest.param(IMPALAConfig, 2, marks=pytest.mark.slow),
        pytest.param(APPOConfig, 2, marks=pytest.mark.slow),
    ],
)
def test_asynchronous_algorithms_learn_in_a_thread_by_the_settings(
    kind: Any, runners: int, built: Built
) -> None:
    algorithm = built(tuned(asynchronous(kind, num_env_runners=runners), ALL))
    before = weights_of(algorithm).clone()
    for _ in range(20):  # until the learner's thread has done updates
        algorithm.config.callbacks_on_train_result[-1]._asked_s = 0.0
        found = algorithm.train()["autocompile"]
        learner = found["learners"][0]["settings"]
        graphs = learner["default_policy.forward_train"]["graphs"]
        if graphs and not torch.equal(weights_of(algorithm), before):
            break
    else:
        pytest.fail(f"nothing was learnt: {found}")
    assert torch.isfinite(weights_of(algorithm)).all()
    explored = [one["settings"]["forward_exploration"] for one in found["env_runners"]]
    assert [one["graphs"] for one in explored] == [1] * (runners or 1)
    assert any("optimizer_step" in name for name in learner)


def test_threads_that_call_at_once_compile_once(built: Built) -> None:
    algorithm = built(tuned(ppo(), settings(forward_train=AOT)))
    module = algorithm.learner_group._learner.module["default_policy"]
    batch = {"obs": torch.randn(4, 4)}
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(module.forward_train, [batch] * 4))
    outputs.append(module.forward_train(batch))
    method = vars(module)["_forward_train"]
    # Torch says of a thread that compiles that all do: they go on in eager mode meanwhile.
    assert method.calls >= 2 and (method.graphs, method.later_graphs) == (1, 0)
    for output in outputs:
        torch.testing.assert_close(
            output["action_dist_inputs"], outputs[0]["action_dist_inputs"]
        )


def test_ray_own_flags_are_turned_off(built: Built) -> None:
    whole = {"torch_compile_learner_what_to_compile": "complete_update"}
    flags = {"torch_compile_learner": True, "torch_compile_worker": True, **whole}
    plain = ppo().framework("torch", **flags)
    config = tuned(plain, ALL)
    assert not config.torch_compile_worker and not config.torch_compile_learner
    assert plain.torch_compile_worker and plain.torch_compile_learner
    _, learner = trained(built(config))
    assert learner["default_policy.forward_train"]["recompiles"] == 0


def test_blocks_are_compiled_where_a_module_repeats_some(built: Built) -> None:
    regional = CompileConfig("aot_eager", scope="regional")
    # A learner of PPO has one encoder for the actions and an equal one for the values.
    config = ppo().rl_module(
        model_config={"fcnet_hiddens": [8], "vf_share_layers": False}
    )
    _, learner = trained(built(tuned(config, settings(forward_train=regional))))
    compiled = learner["default_policy.forward_train"]
    assert compiled["setting"] == regional.label() and compiled["graphs"] >= 1
    # An env runner's module has only the first.
    with pytest.raises(NotInEffect, match="repeats no block"):
        built(tuned(config, settings(forward_exploration=regional))).train()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnxrt", "openvino_onnx"])
def test_our_onnx_backends_explore(backend: str, built: Built) -> None:
    pytest.importorskip({"onnxrt": "onnxruntime"}.get(backend, "openvino"))
    algorithm = built(
        tuned(ppo(), settings(forward_exploration=CompileConfig(backend)))
    )
    explored = trained(algorithm, 2)[0]["forward_exploration"]
    assert (explored["graphs"], explored["recompiles"]) == (1, 0)
    module, batch = algorithm.env_runner.module, {"obs": torch.randn(2, 4)}
    output = module.forward_exploration(batch)["action_dist_inputs"]
    vars(module).pop("_forward_exploration")
    expected = module.forward_exploration(batch)["action_dist_inputs"]
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-4)


def test_a_module_that_needs_more_than_observations_is_compiled_at_its_first_call(
    built: Built,
) -> None:
    config = ppo(env_to_module_connector=lambda *_, **__: AddMask())
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Masked))
    algorithm = built(tuned(config, settings(forward_exploration=AOT)))
    assert not warm_up(algorithm.env_runner.module, "forward_exploration", 2)
    assert trained(algorithm)[0]["forward_exploration"]["graphs"] == 1


def test_a_warm_up_does_not_look_at_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_spec(ppo(), inference_only=True).build()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_rng_state", lambda *_: pytest.fail("CUDA was started")
    )
    assert warm_up(module, "forward_exploration", 2)


def test_it_is_a_problem_where_nobody_answers(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = built(tuned(ppo(), settings(optimizer_step=FUSED), strict=False))
    Tell(strict=True)(algorithm=algorithm, result={})
    silent = [ResultOrError(error=OSError())]
    runners, learners = algorithm.env_runner_group, algorithm.learner_group
    for group, method, found, words in (
        (learners, "foreach_learner", silent, "none of the learners answered"),
        (runners, "foreach_env_runner", [], "none of the env runners answered"),
    ):
        monkeypatch.setattr(group, method, lambda *_, found=found, **__: found)
        with pytest.raises(NotInEffect, match=words):
            Tell(strict=True)(algorithm=algorithm, result={})


def test_rows_that_a_backend_refuses_later_are_computed_in_eager_mode() -> None:
    def refusing(graph: Any, inputs: Any) -> Any:
        if inputs[-1].shape[0] == 3:
            raise RuntimeError("no 3 rows")
        return graph

    register_backend(refusing, "refusing")
    torch._dynamo.reset()
    config = CompileConfig("refusing", dynamic=False)
    double = Compiled(lambda x: x * 2, config, or_eager=True)
    for rows in (2, 3, 4):
        assert torch.equal(double(torch.ones(rows)), torch.full((rows,), 2.0))
    assert double.failed == "RuntimeError: no 3 rows" and double.graphs == 1


@pytest.mark.slow
def test_each_of_many_runners_compiles_in_one_thread(built: Built) -> None:
    config = ppo(num_env_runners=3)
    algorithm = built(tuned(config, settings(forward_exploration=CompileConfig())))
    found = algorithm.train()["autocompile"]["env_runners"]
    explored = [runner["settings"]["forward_exploration"] for runner in found]
    assert all(one["graphs"] == 1 and one["recompiles"] == 0 for one in explored)

    def compile_threads(_: Any) -> int:
        import torch._inductor.config as inductor

        return inductor.compile_threads

    group = algorithm.env_runner_group
    assert group.foreach_env_runner(compile_threads, local_env_runner=False) == [
        1,
        1,
        1,
    ]


@pytest.mark.slow
def test_remote_runners_are_compiled_also_when_they_start_again(built: Built) -> None:
    config = ppo(num_env_runners=2).fault_tolerance(
        restart_failed_env_runners=True, delay_between_env_runner_restarts_s=0.0
    )
    algorithm = built(tuned(config, ALL))
    assert len(algorithm.train()["autocompile"]["env_runners"]) == 2
    (first, *_) = algorithm.env_runner_group._worker_manager.actors().values()
    ray.kill(first, no_restart=False)
    for _ in range(20):
        found = algorithm.train()["autocompile"]["env_runners"]
        if len(found) == 2 and all(r["settings"] for r in found):
            break
    else:
        pytest.fail(f"the runner did not come back: {found}")
    assert all(r["settings"]["forward_exploration"]["graphs"] == 1 for r in found)


@pytest.mark.slow
def test_two_learners_are_tuned_under_ddp(built: Built) -> None:
    algorithm = built(tuned(ppo().learners(num_learners=2), ALL))
    algorithm.train()
    found = algorithm.train()["autocompile"]["learners"]
    assert len(found) == 2
    assert all(
        f["settings"]["default_policy.forward_train"]["graphs"] >= 1 for f in found
    )
