"""RLlib's Learner as a phase: its losses and optimizers, on minibatches of made-up episodes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import TARGETS
from in_process import Try

ray = pytest.importorskip("ray")

import torch._dynamo  # noqa: E402
from gymnasium import spaces  # noqa: E402
from ray.rllib.algorithms.appo import APPOConfig  # noqa: E402
from ray.rllib.algorithms.dqn import DQNConfig  # noqa: E402
from ray.rllib.algorithms.impala import IMPALAConfig  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.algorithms.sac import SACConfig  # noqa: E402
from ray.rllib.core.learner.training_data import TrainingData  # noqa: E402
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch  # noqa: E402

from autocompile.protocol.requests import (  # noqa: E402
    ProbeResult,
    TimingLimits,
)
from autocompile.rllib.learner import (  # noqa: E402
    LearnerUpdates,
    _episodes,
    minibatch,
)
from autocompile.rllib.modules import from_object  # noqa: E402
from autocompile.settings.config import CompileConfig  # noqa: E402
from autocompile.settings.dimensions import why_not  # noqa: E402
from autocompile.space.space import _place  # noqa: E402
from autocompile.store.reading import plain  # noqa: E402
from autocompile.trial.measure import telemetry  # noqa: E402
from autocompile.trial.model.calls import Calls, first_call  # noqa: E402
from autocompile.trial.model.sides import LibraryUpdate, make_side  # noqa: E402
from autocompile.trial.model.target import Target, seed_everything  # noqa: E402
from autocompile.trial.tasks import probing  # noqa: E402
from autocompile.trial.verify.outputs import copy_view  # noqa: E402
from autocompile.trial.verify.reference import Reference, Subject  # noqa: E402
from autocompile.trial.verify.side_checks import (  # noqa: E402
    first_calls,
    last_call,
    schedule,
    weights,
)

AOT = CompileConfig("aot_eager")
BOX = spaces.Box(-1.0, 1.0, (4,), np.float32)
DISCRETE, CONTINUOUS = spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,), np.float32)
KINDS = {
    "PPO": (PPOConfig, DISCRETE),
    "DQN": (DQNConfig, DISCRETE),
    "SAC": (SACConfig, CONTINUOUS),
    "IMPALA": (IMPALAConfig, DISCRETE),
    "APPO": (APPOConfig, DISCRETE),
}
MODULE = "default_policy"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):
        yield
    torch._dynamo.reset()


def small(name: str, **model_config: Any) -> Any:
    kind, actions = KINDS[name]
    config = kind().environment(observation_space=BOX, action_space=actions)
    if name == "SAC":
        config.training(train_batch_size_per_learner=16)
    widths = {"fcnet_hiddens": [8], "head_fcnet_hiddens": [8]}
    return config.rl_module(model_config={**widths, **model_config})


def loaded(config: Any) -> Target:
    seed_everything(0)
    return from_object(config)


def verified(
    target: Target, phase: str, draws: Any, config: CompileConfig
) -> tuple[Reference, Subject]:
    """A reference, and a side that was right at its first calls."""
    reference = Reference(target, phase, draws, 0, [])
    telemetry.reset_dynamo(config.backend)
    side = make_side(target, phase, draws[0], config)
    subject = Subject(side, reference.call(side, 0), [])
    first_calls(reference, subject)
    return reference, subject


def drawn(target: Target, phase: str = "learner_update", draw: int = 0) -> Any:
    seed_everything(draw)
    return target.inputs(phase, target.own_batch_size[phase])


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n != "PPO" else []) for n in KINDS],
)
def test_updates_of_each_algorithm_are_judged_right(name: str) -> None:
    target = loaded(small(name))
    assert target.known_phases()[-1] == "learner_update"
    draws = drawn(target), drawn(target, draw=1)
    view = Reference(target, "learner_update", draws, 0, []).first_view()
    assert set(view) >= {"loss", "gradients"}
    reference, subject = verified(target, "learner_update", draws, AOT)
    assert reference.most_noise < 1e-6
    assert telemetry.dynamo_facts()["graphs"] >= 2  # forward pass and optimizer
    assert weights(reference, subject) is None
    subject.side.keep()
    subject.side.run()
    last_call(reference, subject)
    assert not ray.is_initialized()


@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC"])
def test_an_update_does_what_the_learners_own_update_does(name: str) -> None:
    config = small(name)
    target = loaded(config)
    batch = drawn(target)
    own = LearnerUpdates(config, copy.deepcopy(target.model))
    spaces_of_module = {
        MODULE: (target.model.observation_space, target.model.action_space)
    }
    theirs = config.build_learner(spaces=spaces_of_module)
    theirs.module[MODULE].load_state_dict(target.model.state_dict(), strict=False)
    if name != "PPO":
        theirs.module[MODULE].make_target_networks()  # of these weights
    columns = {name: SampleBatch(dict(found)) for name, found in batch.items()}
    rows = target.own_batch_size["learner_update"]
    seed_everything(1)
    own.update(batch)
    seed_everything(1)
    theirs.update(batch=MultiAgentBatch(columns, rows))
    after = list(theirs._params.values())
    assert len(own.parameters) == len(after)
    for mine, other in zip(own.parameters.values(), after, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", KINDS)
def test_a_side_comes_back_to_the_state_that_it_has_kept(name: str) -> None:
    target = loaded(small(name))
    side = make_side(target, "learner_update", drawn(target))
    side.run()
    side.keep()
    seed_everything(0)
    before = copy_view(side.parameters)
    first = copy_view({**side.view(side.run()), "after": side.parameters})
    side.run()
    side.restore()
    seed_everything(0)
    again = {**side.view(side.run()), "after": side.parameters}
    for name, value in before.items():
        assert not torch.equal(first["after"][name], value), name
    for part in ("gradients", "after"):
        for path, value in first[part].items():
            assert torch.equal(again[part][path], value), (part, path)


def test_minibatches_are_those_of_the_algorithm() -> None:
    batches = {name: first_call(drawn(loaded(small(name))))[MODULE] for name in KINDS}
    shapes = {
        n: {key: tuple(x.shape) for key, x in found.items()}
        for n, found in batches.items()
    }
    assert shapes["PPO"]["obs"] == (128, 4)
    assert {"advantages", "value_targets", "action_logp", "loss_mask"} <= shapes[
        "PPO"
    ].keys()
    assert shapes["DQN"]["new_obs"] == shapes["DQN"]["obs"] == (32, 4)
    assert {"weights", "n_step", "terminateds", "actions"} <= shapes["DQN"].keys()
    assert shapes["SAC"]["actions"] == (16, 2)
    # Ten fragments of fifty steps, each with one step more that its value is taken from.
    assert shapes["IMPALA"]["obs"] == shapes["APPO"]["obs"] == (510, 4)


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_minibatch_repeats_with_the_seed_and_has_as_many_rows_as_are_asked_for(
    name: str,
) -> None:
    target = loaded(small(name).debugging(seed=3))
    one, same, other = (drawn(target, draw=draw)[MODULE] for draw in (0, 0, 1))
    assert all(
        torch.equal(one[column], same[column])
        for column in ("obs", "actions", "rewards")
    )
    assert not torch.equal(one["obs"], other["obs"])
    for rows in (1, 7):
        found = minibatch(small(name), target.model, rows)
        assert found[MODULE]["obs"].shape[0] == rows


def test_a_module_with_a_state_gets_sequences() -> None:
    config = small("PPO", use_lstm=True, lstm_cell_size=4, max_seq_len=4)
    target = loaded(config.training(minibatch_size=32))
    side = make_side(target, "learner_update", drawn(target))
    assert drawn(target)[MODULE]["obs"].shape[1:] == (
        4,
        4,
    )  # steps, and what is observed
    assert all(torch.isfinite(x) for x in side.run().values())


def test_no_thread_is_started_and_the_users_config_stays_as_it_is() -> None:
    config = small("IMPALA").learners(
        num_learners=2, num_aggregator_actors_per_learner=1
    )
    config.callbacks(
        on_episode_created=lambda **_: pytest.fail("a user's callback ran")
    )
    before = threading.enumerate()
    target = loaded(config)
    make_side(target, "learner_update", drawn(target)).run()
    assert threading.enumerate() == before
    assert (config.num_learners, config.num_aggregator_actors_per_learner) == (2, 1)


def test_the_settings_reach_every_optimizer_and_the_forward_pass() -> None:
    target = loaded(small("SAC"))
    fused = CompileConfig("eager", optimizer="fused")
    side = make_side(target, "learner_update", drawn(target), fused)
    assert len(side.optimizers) == 4  # two critics, policy and temperature
    assert all(group["fused"] for o in side.optimizers for group in o.param_groups)
    assert all(torch.isfinite(x) for x in side.run().values())
    compiled = make_side(target, "learner_update", drawn(target), AOT)
    assert "_forward_train" in vars(compiled.model) and "_forward_train" not in vars(
        target.model
    )


def test_what_updates_log_is_dropped_between_blocks() -> None:
    target = loaded(small("DQN"))
    side = make_side(target, "learner_update", drawn(target))
    side.keep()
    for _ in range(3):
        side.run()
    assert isinstance(side, LibraryUpdate)
    metrics = side.updates.learner.metrics
    assert (MODULE, "td_error") in metrics
    side.restore()
    assert (MODULE, "td_error") not in metrics


@pytest.mark.slow
def test_a_schedule_of_learning_rates_is_tried_on_all_optimizers() -> None:
    target = loaded(small("SAC"))
    draws = drawn(target), drawn(target, draw=1)
    fused = CompileConfig("eager", optimizer="fused")
    reference, subject = verified(target, "learner_update", draws, fused)
    subject.notes.clear()
    schedule(reference, subject)
    assert subject.notes == []


RL = f"{TARGETS / 'rl.py'}:config"
UPDATES = {"phase": "learner_update", "batch_size": 24}


@pytest.mark.parametrize(
    ("longest_s", "phase", "words"),
    [
        (60.0, "learner_update", None),
        (
            0.0,
            "optimizer_step",
            "optimizer_step instead of learner_update, which takes more than",
        ),
        (None, "optimizer_step", "which fails here: TypeError"),
    ],
)
def test_without_a_phase_whole_updates_are_tuned_unless_one_fails_or_takes_long(
    try_it: Try,
    monkeypatch: pytest.MonkeyPatch,
    longest_s: Any,
    phase: str,
    words: str | None,
) -> None:
    monkeypatch.setattr(probing, "_LONGEST_UPDATE_S", longest_s)
    if longest_s is None:
        monkeypatch.setattr(probing, "block", lambda: None)
    target = try_it(RL, kind="probe", phases=None)["target"]
    assert target["phases"] == ["forward_exploration", phase]
    assert (
        words in target["choices"]["phases"]
        if words
        else "phases" not in target["choices"]
    )


@pytest.mark.parametrize(
    ("part_s", "whole_s", "why"),
    [
        (0.01, 0.04, ""),
        (0.1, 0.4, "which takes about 0.4 s each"),
        (0.59, AssertionError("it is made"), "which takes more than 0.5 s each"),
        (ValueError("too few rows"), 0.04, ""),
        (
            ValueError("wrong"),
            ValueError("wrong"),
            "which fails here: ValueError: wrong",
        ),
    ],
)
def test_an_update_of_which_a_part_takes_too_long_is_not_made_whole(
    part_s: Any, whole_s: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = loaded(small("PPO"))
    part = target.own_batch_size["learner_update"] // probing._PART_OF_AN_UPDATE
    answers = Mock(side_effect=[part_s, whole_s])
    monkeypatch.setattr(probing, "_update_s", answers)
    assert probing._why_no_update(target, "learner_update", 0, Mock()) == why
    sizes = [call.args[2] for call in answers.call_args_list]
    assert sizes == ([part] if "more than" in why else [part, None])


def test_a_trial_times_updates_and_tells_what_they_compile(try_it: Try) -> None:
    found = try_it(RL, **UPDATES)
    assert found["outcome"] == "ok", found["message"]
    assert found["graphs"] >= 2 and found["recompiles"] == 0
    assert found["measurement"]["compiled_s"] and found["peak_memory_bytes"] > 0
    assert found["weights_live"] is None
    probed = try_it(RL, kind="probe", **UPDATES)["target"]
    assert "fused" in probed["optimizers"]
    assert probed["own_batch_size"]["learner_update"] == 24


def test_settings_of_updates_are_raced_each_with_code_of_its_own(
    try_it: Try, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the caches are
    for name in (
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
    ):  # each side sets its own
        monkeypatch.setenv(name, str(tmp_path / "nobodys"))
    sides = [
        {
            "repeats": number,
            "config": config.to_dict(),
            "cache": f"cache{number}",
            "is_warm": True,
            "checks": "first",
        }
        for number, config in enumerate(
            (AOT, CompileConfig("eager", optimizer="fused")), 1
        )
    ]
    limits = plain(TimingLimits.exactly(3, 60.0, 0.001))
    found = try_it(RL, sides=sides, limits=limits, **UPDATES)
    assert [side["outcome"] for side in found["sides"]] == ["ok", "ok"], found["sides"]


@pytest.mark.slow
def test_updates_that_draw_random_numbers_are_compared_whoever_draws_them(
    try_it: Try,
) -> None:
    """SAC samples actions in its losses; Inductor's generator draws others than eager's."""
    found = try_it(
        f"{TARGETS / 'rl.py'}:sac", "learner_update", "inductor", batch_size=16
    )
    assert found["outcome"] == "ok", found["message"]
    assert any("random numbers" in note for note in found["notes"])


# --- forward phases of the algorithms that learn from a buffer ------------------------------------


@pytest.mark.parametrize("name", ["DQN", "SAC", "APPO"])
def test_training_gets_actions_what_follows_and_target_networks(name: str) -> None:
    target = loaded(small(name))
    side = make_side(target, "forward_train", target.inputs("forward_train", 4))
    assert side.inputs["actions"].shape[0] == side.inputs["new_obs"].shape[0] == 4
    assert side.run()
    assert len(dict(target.model.named_parameters())) < len(
        dict(side.model.named_parameters())
    )


@pytest.mark.parametrize(
    "name", ["DQN", pytest.param("SAC", marks=pytest.mark.slow), "APPO"]
)
@pytest.mark.parametrize(
    "phase", ["forward_exploration", "forward_inference", "forward_train"]
)
def test_forward_phases_get_what_their_modules_need(name: str, phase: str) -> None:
    target = loaded(small(name))
    seed_everything(0)
    verified(target, phase, (target.inputs(phase, 4), target.inputs(phase, 4)), AOT)
    assert telemetry.dynamo_facts()["graphs"] >= 1


def exploring(config: CompileConfig) -> Any:
    """DQN's exploration, which gets the number of steps."""
    target = loaded(small("DQN"))
    seed_everything(0)
    telemetry.reset_dynamo("aot_eager")
    return make_side(
        target, "forward_exploration", target.inputs("forward_exploration", 4), config
    )


def test_steps_change_at_each_call_and_what_that_recompiles_is_counted() -> None:
    """Once: from then on the number of steps is one of Dynamo's symbols."""
    side, told = exploring(AOT), []
    for _ in range(6):
        side.run()
        told.append(side.counters["t"])
    assert told == [2, 3, 4, 5, 6, 7]
    assert telemetry.dynamo_facts()["recompiles"] == 1
    side.keep()
    side.run()
    side.restore()
    assert side.counters["t"] == 7


def test_a_setting_that_compiles_for_each_number_of_steps_shows_it() -> None:
    side = exploring(CompileConfig("aot_eager", dynamic=False))
    for _ in range(5):
        side.run()
    assert telemetry.dynamo_facts()["recompiles"] == 4


def test_whole_train_batches_are_a_workload(try_it: Try) -> None:
    """Each has a row more for each of its episodes, whose number differs."""
    where = f"{TARGETS / 'rl.py'}:whole_batches"
    phases = ["learner_update", "forward_exploration"]
    probed = try_it(where, kind="probe", phases=phases)
    assert probed["target"]["workload"] == {
        "calls": 4,
        "kinds": 4,
        "phases": ["learner_update"],
    }
    own = probed["target"]["own_batch_size"]["learner_update"]
    assert own == 4 * 96
    place = _place("learner_update", ProbeResult.read(probed))
    static = CompileConfig("aot_eager", dynamic=False)
    assert "more sizes than a pass shows" in why_not(static, place)
    assert _place("forward_exploration", ProbeResult.read(probed)).kinds == 1
    result = try_it(where, "learner_update", batch_size=own)
    assert result["outcome"] == "ok", result["message"]
    assert len(result["kinds"]) == 4 and result["graphs"] >= 2


def test_minibatches_have_one_size_also_where_a_batch_is_no_multiple() -> None:
    """RLlib begins a batch anew where it ends, so none is smaller: nothing to make a pass of."""
    config = small("PPO").training(
        minibatch_size=16, train_batch_size_per_learner=40, num_epochs=2
    )
    updates = LearnerUpdates(config, loaded(config).model)
    episodes = _episodes(config, loaded(config).model, 40)
    given = TrainingData(episodes=episodes)
    batches = updates.learner._create_iterator_if_necessary(
        training_data=given, minibatch_size=16, num_epochs=2
    )
    assert {len(batch.policy_batches[MODULE]["obs"]) for batch in batches} == {16}
    assert not isinstance(drawn(loaded(config)), Calls)
