"""RLlib's targets: what is taken from a config, a spec or a module, and what is compiled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TARGETS

pytest.importorskip("ray.rllib")

import ray
import torch._dynamo
from gymnasium import spaces
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from rllib_algorithms import SPEEDUP

from autocompile.errors import TargetError
from autocompile.export.lines import Choice, Facts, lines_of
from autocompile.protocol.requests import ExportedCode
from autocompile.request import Request
from autocompile.rllib.actors import warm_up
from autocompile.rllib.described import RLLIB
from autocompile.rllib.modules import from_object
from autocompile.rllib.observations import _rows
from autocompile.runtime.applying import apply_to_phase
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Choice as TunedChoice
from autocompile.settings.tuned import Tuned
from autocompile.space.space import calls_between_updates
from autocompile.trial.measure import telemetry
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.sides import make_side
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.tasks.exported import exported_side
from autocompile.trial.tasks.steps import inputs_of
from autocompile.trial.verify.reference import Reference, Subject
from autocompile.trial.verify.side_checks import (
    first_calls,
    last_call,
    weights,
)

RL = str(TARGETS / "rl.py")
AOT = CompileConfig(backend="aot_eager")
BOX = spaces.Box(-1, 1, (4,))
RL_PHASES = ("forward_exploration", "forward_inference", "forward_train")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    path = list(sys.path)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):
        yield
    sys.path[:] = path
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def module() -> Any:
    path = list(sys.path)
    yield import_target(RL)
    sys.path[:] = path
    del sys.modules["rl"]


def load(module: Any, name: str | None) -> Target:
    seed_everything(0)
    return build(f"{RL}:{name}" if name else RL, module)


def modules_of(side_or_target: Any) -> set[str]:
    return {name.split(".")[0] for name, _ in side_or_target.named_parameters()}


@pytest.mark.parametrize(
    ("runners", "cpus", "learners", "threads"),
    [
        (0, 1, 0, {}),
        (2, 1, 0, {"forward_exploration": 1, "forward_inference": 1}),
        (
            2,
            2.5,
            1,
            {"forward_exploration": 2, "forward_inference": 2, "learner_update": 1},
        ),
    ],
)
def test_phases_are_measured_with_the_threads_of_the_actors_that_run_them(
    monkeypatch: pytest.MonkeyPatch,
    runners: int,
    cpus: float,
    learners: int,
    threads: Any,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = of_spaces(PPOConfig).env_runners(
        num_env_runners=runners, num_cpus_per_env_runner=cpus
    )
    target, usual = (
        from_object(config.learners(num_learners=learners)),
        torch.get_num_threads(),
    )
    more = CompileConfig("aot_eager", threads=usual + 1)
    for phase in ("forward_exploration", "forward_inference", "learner_update"):
        for setting, expected in ((AOT, threads.get(phase, usual)), (more, usual + 1)):
            inputs = inputs_of(target, phase, 4, 0)
            with make_side(target, phase, inputs, setting).context():
                assert torch.get_num_threads() == expected
    said = target.choices.get("env runners", "")
    assert said.startswith(f"{int(cpus)} thread" if runners else "")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # which Ray's workers inherit
    assert from_object(config).threads == {}


@pytest.mark.usefixtures("_ray")
def test_ray_gives_an_actor_as_many_threads_as_is_assumed() -> None:
    @ray.remote
    def threads() -> int:
        import torch

        return torch.get_num_threads()

    given = ray.get([threads.options(num_cpus=cpus).remote() for cpus in (0, 1, 2.5)])
    assert given == [1, 1, 2]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("config", "AlgorithmConfig"), ("ppo", "AlgorithmConfig"), ("spec", "RLModuleSpec"),
     ("get_model", "RLModule"), (None, "RLModule")],
)  # fmt: skip
def test_each_form_has_the_phases_of_an_rl_module(
    module: Any, name: str | None, kind: str
) -> None:
    target = load(module, name)
    assert target.kind == kind and target.library
    of_config = ("learner_update",) if kind == "AlgorithmConfig" else ()
    assert target.known_phases() == (
        *RL_PHASES,
        "optimizer_step",
        "train_step",
        *of_config,
    )
    training = "learner_update" if of_config else "optimizer_step"
    assert target.default_phases() == ("forward_exploration", training)


@pytest.mark.parametrize("name", ["config", "get_model", "with_lstm"])
def test_every_phase_runs_and_is_judged_right_when_compiled(
    module: Any, name: str
) -> None:
    target = load(module, name)
    for phase in RL_PHASES if name == "with_lstm" else target.known_phases():
        draws = (
            inputs_of(target, phase, 5, seed=0),
            inputs_of(target, phase, 5, seed=0, draw=1),
        )
        reference = Reference(target, phase, draws, 0, [])
        telemetry.reset_dynamo("aot_eager")
        compiled = make_side(target, phase, draws[0], AOT)
        subject = Subject(compiled, reference.call(compiled, 0), [])
        first_calls(reference, subject)
        assert telemetry.dynamo_facts()["graphs"] >= 1, phase
        is_live = True if phase in RL_PHASES else None
        assert weights(reference, subject) is is_live, phase
        compiled.keep()
        last_call(reference, subject)


@pytest.mark.parametrize("phase", RL_PHASES)
def test_the_function_beneath_is_compiled_and_the_users_module_is_left_alone(
    module: Any, phase: str
) -> None:
    target = load(module, "config")
    seen: list[str] = []

    def spy(graph: Any, inputs: Any) -> Any:
        seen.append(graph.print_readable(print_output=False))
        return graph.forward

    torch._dynamo.register_backend(spy, name=f"spy_{phase}")
    seed_everything(0)
    side = make_side(
        target, phase, target.make_inputs(4), CompileConfig(f"spy_{phase}")
    )
    assert not seen  # nothing is compiled before the first call
    telemetry.reset_dynamo("spy")
    output = side.run()
    assert telemetry.dynamo_facts()["graphs"] == 1
    assert "linear" in seen[0]
    assert output["action_dist_inputs"].shape == (4, 3)

    name = f"_{phase}"
    assert name in vars(side.model)
    for users in (target.model, target.inference_model):
        assert name not in vars(users)
        assert not any("Optimized" in type(m).__name__ for m in users.modules())
    for other in set(RL_PHASES) - {phase}:
        assert f"_{other}" not in vars(side.model)
    for other in RL_PHASES:
        assert other not in vars(side.model)


def test_exploration_runs_the_module_of_env_runners_and_training_the_full_one(
    module: Any,
) -> None:
    target = load(module, "config")
    assert "vf" in modules_of(target.model)
    inputs = target.make_inputs(4)
    for phase in ("forward_exploration", "forward_inference"):
        side = make_side(target, phase, inputs)
        assert "vf" not in modules_of(side.model) and not side.grad
    for phase in ("forward_train", "train_step", "optimizer_step"):
        side = make_side(target, phase, inputs)
        assert "vf" in modules_of(side.model) and side.grad
    assert "inference-only" in target.choices["exploration"]
    spec = load(module, "spec")
    assert "vf" in modules_of(spec.model) and "vf" not in modules_of(
        spec.inference_model
    )
    own = load(module, "get_model")
    assert own.model_of("forward_exploration") is own.model, "a module is used for all"


def test_batch_sizes_learning_rate_and_name_are_those_of_the_config(
    module: Any,
) -> None:
    target, spec = load(module, "config"), load(module, "spec")
    assert target.own_batch_size == {
        "forward_exploration": 6,
        "forward_inference": 6,
        "forward_train": 24,
        "train_step": 24,
        "learner_update": 24,
    }
    assert target.make_optimizer(target.model).defaults["lr"] == 3e-3
    assert "0.003" in target.choices["optimizer"]
    assert target.algorithm == "ray.rllib.algorithms.ppo.ppo:PPOConfig"
    assert spec.own_batch_size == {} and spec.algorithm is None


@pytest.mark.parametrize(
    ("evaluation", "sizes", "threads"),
    [
        ({}, (6, 6), (2, 2)),
        ({"evaluation_interval": 1}, (6, 6), (2, 2)),
        ({"explore": False}, (6, 6), (2, 2)),  # of no evaluation
        ({"evaluation_interval": 1, "explore": False, "envs": 3}, (6, 3), (2, None)),
        (
            {"evaluation_num_env_runners": 2, "explore": False, "envs": 3},
            (6, 3),
            (2, 1),
        ),
        ({"evaluation_interval": 1, "envs": 3}, (6, 6), (2, 2)),
    ],
)
def test_evaluation_is_measured_by_its_own_runners(
    monkeypatch: pytest.MonkeyPatch, evaluation: Any, sizes: Any, threads: Any
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = of_spaces(PPOConfig)
    runners = {"num_envs_per_env_runner": 6, "num_cpus_per_env_runner": 2}
    config.env_runners(num_env_runners=1, **runners)
    others = {"num_cpus_per_env_runner": 1}
    if envs := evaluation.get("envs"):
        others["num_envs_per_env_runner"] = envs
    others |= {key: value for key, value in evaluation.items() if key == "explore"}
    given = {
        key: value for key, value in evaluation.items() if key.startswith("evaluation")
    }
    target = from_object(config.evaluation(evaluation_config=others, **given))
    worker = ("forward_exploration", "forward_inference")
    assert tuple(target.own_batch_size[phase] for phase in worker) == sizes
    assert tuple(target.threads.get(phase) for phase in worker) == threads
    is_told = envs is not None and "explore" not in evaluation
    assert ("--batch-size 6,3" in target.choices.get("evaluation", "")) == is_told


def test_runners_of_one_process_have_programs_of_their_own_sizes(module: Any) -> None:
    """Dynamo would make the second one dynamic, which was measured static."""
    sizes: list[Any] = []

    def spy(graph: Any, inputs: Any) -> Any:
        tensors = [x for x in inputs if isinstance(x, torch.Tensor) and x.dim() == 2]
        sizes.append(
            [str(x.shape[0]) for x in tensors if x.shape[1] == 8 and x.shape[0] != 16]
        )
        return graph.forward

    torch._dynamo.register_backend(spy, name="spy_sizes")
    telemetry.reset_dynamo("spy_sizes")
    runners = [load(module, "config").inference_model for _ in range(2)]
    for runner in runners:
        apply_to_phase(runner, "forward_exploration", CompileConfig("spy_sizes"))
    for _ in range(2):
        for runner, environments in zip(runners, (6, 3), strict=True):
            assert warm_up(runner, "forward_exploration", environments)
    assert sizes == [["6"], ["3"]]


def of_spaces(kind: Any, observations: Any = BOX) -> Any:
    return kind().environment(
        observation_space=observations, action_space=spaces.Discrete(2)
    )


def test_a_config_without_a_minibatch_trains_on_its_whole_batch() -> None:
    config = of_spaces(PPOConfig)
    config.training(minibatch_size=None, train_batch_size_per_learner=640)
    assert from_object(config).own_batch_size["train_step"] == 640


@pytest.mark.parametrize(
    ("kind", "runners", "envs", "fragment", "calls"),
    [
        (PPOConfig, 0, 16, "auto", [4000, 1000, 250]),
        (PPOConfig, 0, 16, 50, [50, 50, 50]),
        (
            PPOConfig,
            8,
            2048,
            "auto",
            [500, 125, 32],
        ),  # a fragment of one step, rounded up
        (
            DQNConfig,
            0,
            16,
            "auto",
            [1, 1, 1],
        ),  # its own: as many steps as it looks ahead
    ],
)
def test_calls_between_updates_are_those_of_a_config_with_as_many_environments(
    kind: Any, runners: int, envs: int, fragment: Any, calls: list[int]
) -> None:
    """RLlib itself says how long a fragment is, for each batch size that may be measured."""
    config = of_spaces(kind).env_runners(
        num_env_runners=runners,
        num_envs_per_env_runner=envs,
        rollout_fragment_length=fragment,
    )
    target = from_object(config)
    names = ("calls_per_update", "samples_per_update")
    facts = {name: getattr(target, name) for name in names}
    request = Request("ppo.py")
    told = [
        calls_between_updates("forward_exploration", request, facts, size)
        for size in (1, 4, 16)
    ]
    there = [
        config.copy(copy_frozen=False).env_runners(num_envs_per_env_runner=size)
        for size in (1, 4, 16)
    ]
    assert told == [c.get_rollout_fragment_length() for c in there] == calls
    assert calls_between_updates("forward_train", request, facts, 16) is None
    asked = Request("ppo.py", calls_per_update=7)
    assert calls_between_updates("forward_exploration", asked, facts, 4) == 7


def test_the_spaces_come_from_the_environment_where_the_config_names_none(
    module: Any,
) -> None:
    target = load(module, "with_gymnasium")
    assert target.model.observation_space.shape == (4,)
    output = make_side(target, "forward_exploration", target.make_inputs(3)).run()
    assert output["action_dist_inputs"].shape == (3, 2)
    with pytest.raises(
        TargetError, match="neither an environment nor its spaces"
    ) as caught:
        load(module, "without_spaces")
    said = ".environment(observation_space=..., action_space=...) on the config"
    assert caught.value.hint == said


def test_images_get_a_convolution_and_a_batch_of_their_shape() -> None:
    images = spaces.Box(-1.0, 1.0, (84, 84, 4), np.float32)
    target = from_object(of_spaces(PPOConfig, images))
    obs = target.make_inputs(2)["obs"]
    assert obs.shape == (2, 84, 84, 4) and obs.dtype is torch.float32
    assert any(isinstance(m, torch.nn.Conv2d) for m in target.model.modules())
    output = make_side(target, "forward_exploration", {"obs": obs}, AOT).run()
    assert output["action_dist_inputs"].shape == (2, 2)


def test_a_recurrent_module_gets_a_time_dimension_and_its_state(module: Any) -> None:
    target = load(module, "with_lstm")
    assert target.model.is_stateful()
    inputs = target.make_inputs(5)
    assert inputs["obs"].shape == (5, 1, 8)
    assert {name: x.shape for name, x in inputs["state_in"].items()} == {
        "h": (5, 1, 8),  # rows, layers, units
        "c": (5, 1, 8),
    }
    inputs["state_in"]["h"][0] += 1  # rows are rows, not views of one
    assert inputs["state_in"]["h"][1].abs().sum() == 0
    side = make_side(target, "forward_exploration", inputs)
    output = side.run()
    assert "state_out" in side.view(output)["outputs"], "it is part of what is compared"
    assert output["action_dist_inputs"].shape == (5, 1, 3)
    assert output["state_out"]["h"].shape == (5, 1, 8)


# --- observations -------------------------------------------------------------------------------


def drawn(space: spaces.Space[Any], count: int, is_stateful: bool = False) -> Any:
    seed_everything(0)
    return _rows(SimpleNamespace(is_stateful=lambda: is_stateful), space, count)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 1.0, (8,), np.float32),
        spaces.Box(-np.inf, np.inf, (3, 2), np.float32),
        spaces.Box(0, 255, (4, 4), np.uint8),
        spaces.Box(-5, 5, (3,), np.int64),
        spaces.Box(0.25, 0.5, (2,), np.float64),
        spaces.Box(5.0, 10.0, (2,), np.float32),
        spaces.Box(-10.0, -5.0, (2,), np.float32),
        spaces.Box(np.array([-1, 3], np.float32), np.array([1, np.inf], np.float32)),
        spaces.Discrete(5, start=3),
        spaces.MultiBinary(6),
    ],
    ids=str,
)
def test_drawn_observations_lie_in_their_space(space: Any) -> None:
    batch = drawn(space, 50)
    assert batch.shape == (50, *space.shape) and batch.dtype is not torch.float64
    assert all(space.contains(row.numpy()) for row in batch)
    assert batch.unique().numel() >= 2


def test_nested_observations_keep_their_structure(module: Any) -> None:
    batch = drawn(module.NESTED, 7, is_stateful=True)
    assert set(batch) == {"image", "pair", "double", "anywhere"}
    assert batch["image"].shape == (7, 1, 4, 4) and batch["image"].dtype is torch.uint8
    assert isinstance(batch["pair"], tuple)
    assert [x.shape for x in batch["pair"]] == [(7, 1), (7, 1, 3)]


def test_a_space_that_cannot_be_made_up_is_told_the_way_out() -> None:
    with pytest.raises(
        TargetError, match="values of a Dict space cannot be generated"
    ) as caught:
        drawn(spaces.Dict({"text": spaces.Text(5)}), 3)
    assert (
        caught.value.hint is not None and "get_inputs(batch_size)" in caught.value.hint
    )


def test_observations_repeat_with_the_seed_and_differ_between_draws(
    module: Any,
) -> None:
    target = load(module, "config")
    found = []
    for seed in (1, 1, 2):
        seed_everything(seed)
        found.append(target.make_inputs(4)["obs"])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_the_users_own_inputs_come_before_made_up_ones(module: Any) -> None:
    users = type(module)("users")
    vars(users).update(vars(module))
    users.get_inputs = lambda batch_size: {"obs": torch.full((batch_size, 8), 0.5)}
    target = build(f"{RL}:config", users)
    assert torch.equal(target.make_inputs(2)["obs"], torch.full((2, 8), 0.5))
    assert target.choices["inputs"] == "get_inputs() of the target"


def test_something_else_of_rllib_is_no_target() -> None:
    from ray.rllib.callbacks.callbacks import RLlibCallback

    with pytest.raises(TargetError, match="RLlibCallback cannot be tuned"):
        from_object(RLlibCallback())


def test_the_module_moves_to_a_device_with_its_inference_half(module: Any) -> None:
    target = load(module, "config")
    target.to(torch.device("meta"))
    for model in (target.model, target.inference_model):
        assert {p.device.type for p in model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    "phase", ["forward_exploration", "optimizer_step", "train_step"]
)
def test_what_is_exported_for_an_rlmodule_is_what_runs(
    module: Any, phase: str, tmp_path: Path
) -> None:
    config = (
        CompileConfig("eager", optimizer="fused") if phase == "optimizer_step" else AOT
    )
    lines = lines_of(Choice(phase, "faster", config, ""), Facts(library=RLLIB))
    code = "\n".join(statement.code for statement in lines.statements)
    tuned = Tuned({phase: (TunedChoice(config, None, SPEEDUP, 3),)}, {})
    target = load(module, "spec")
    inputs = target.make_inputs(4)
    exported = ExportedCode(code, tuned)
    telemetry.reset_dynamo("aot_eager")
    side = exported_side(target, phase, inputs, config, exported, tmp_path)
    side.run()
    assert bool(telemetry.dynamo_facts()["graphs"]) == (phase != "optimizer_step")
    assert phase != "optimizer_step" or side.optimizers[0].param_groups[0]["fused"]
