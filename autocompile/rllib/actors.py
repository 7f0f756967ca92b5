"""Env runners and learners of RLlib that apply tuned settings in their own process.

Mixins: :func:`autocompile.rllib.algorithm.tuned` joins them with the algorithm's classes.
"""

from __future__ import annotations

import functools
import importlib
import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.utils.torch_utils import convert_to_torch_tensor

from autocompile.errors import UsageError
from autocompile.interpreters.needed import demand_this_interpreter
from autocompile.rllib.described import RLLIB
from autocompile.rllib.observations import made_up_batch
from autocompile.runtime import warm_start
from autocompile.runtime.applying import (
    Compiled,
    apply_to_optimizer,
    apply_to_phase,
    prepare_model,
    process_of,
)
from autocompile.runtime.kept_memory import keep_in_program
from autocompile.runtime.machine import describe
from autocompile.runtime.ranks import of_rank_0
from autocompile.settings import phases
from autocompile.settings.tuned import Choice, Tuned, TunedSet

_Actor: Any = object  # RLlib's class follows in the order of methods


def demand_usable(entry: Tuned) -> None:
    """Raise a UsageError if settings are not for RLlib, or for another interpreter."""
    used = [
        name
        for name, phase in phases.PHASES.items()
        if phase.library == RLLIB.name and name in entry.phases
    ]
    if not used:
        raise UsageError(
            f"the settings are not for an RLModule: {', '.join(entry.phases)}"
        )
    for phase in used:
        for choice in entry.phases[phase]:
            demand_this_interpreter(entry, phase, choice)


class _Tuned(_Actor):  # type: ignore[misc]
    """Common base of runner and learner: the settings and which are active."""

    tuned_set: ClassVar[TunedSet]
    keeps_memory: ClassVar[bool] = True
    active: dict[str, tuple[Choice, Compiled | None]]

    @functools.cached_property
    def tuned(self) -> Tuned:
        """The settings that fit this process's device; of several learners the first one's."""
        fitting = self.tuned_set.fitting(describe(self._device), of_rank_0)
        demand_usable(fitting)
        return fitting

    def use(self, key: str, choice: Choice, compiled: Compiled | None) -> None:
        warm_start.load(self.tuned, self._device)
        if self.keeps_memory and torch.device(self._device).type == "cpu":
            keep_in_program()
        self.active[key] = choice, compiled

    def tell_active(self) -> dict[str, Any]:
        """Active settings and ``problems`` of this process, for the result of ``train()``."""
        settings: dict[str, Any] = {}
        problems: list[str] = []
        for key, (choice, compiled) in self.active.items():
            label = choice.config.label()
            settings[key] = {"setting": label, "measured_at": choice.batch_size}
            if compiled is not None:
                settings[key] |= {
                    "graphs": compiled.graphs,
                    "recompiles": compiled.later_graphs,
                }
                if compiled.failed:
                    settings[key]["setting"] = "eager"
                    problems.append(f"{key}: {label} failed: {compiled.failed}")
                elif (
                    compiled.calls
                    and not compiled.graphs
                    and not choice.config.is_eager
                ):
                    problems.append(f"{key}: {label} has captured no graph")
        # Of an actor: as Ray has it.
        threads = {"threads": self.tuned.fingerprint.get("threads")}
        return {
            "settings": settings,
            "measured_elsewhere": self.tuned.differences(
                describe(self._device) | threads
            ),
            "problems": problems,
        }


class TunedRunner(_Tuned):
    """Applies settings to the sampling phase of an env runner."""

    sampling: Choice | None = None
    _phase = ""
    _in_use: weakref.WeakValueDictionary[str, torch.nn.Module]

    def make_module(self) -> None:
        super().make_module()
        self.active = {}
        if self.module is None or self.env is None:  # it does not sample
            return
        phase = (
            phases.FORWARD_EXPLORATION
            if self.config.explore
            else phases.FORWARD_INFERENCE
        )
        if self.worker_index and "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
            # One of many on its machine, of which each would start a compile worker for each core.
            inductor: Any = importlib.import_module("torch._inductor.config")
            inductor.compile_threads = 1
        choice = self.tuned.at(phase, self.num_envs)
        choice = choice or self.tuned.at(phases.FORWARD_EXPLORATION, self.num_envs)
        if choice is None:
            return
        self.sampling, self._phase = choice, phase
        self._in_use = weakref.WeakValueDictionary()
        self._follow_modules()

    def _follow_modules(self) -> None:
        """Tune the modules that were added, and forget those that were removed."""
        if (choice := self.sampling) is None:
            return
        phase = self._phase
        named = {f"{n}.{phase}".strip("."): m for n, m in _modules(self.module)}
        for key in self.active.keys() - named.keys():
            del self.active[key]
        for key, module in named.items():
            if self._in_use.get(key) is module:
                continue
            self._in_use[key] = module
            compiled = apply_to_phase(module, phase, choice.config, or_eager=True)
            self.use(key, choice, compiled)
            # With several agents, a module's batch size is known only at the first step.
            if compiled is not None and not isinstance(self.module, MultiRLModule):
                with process_of(choice.config.process):
                    warm_up(module, phase, self.num_envs)
                compiled.graphs += compiled.later_graphs
                compiled.later_graphs = 0

    def sample(self, **kwargs: Any) -> Any:
        self._follow_modules()
        with process_of(self.sampling.config.process if self.sampling else {}):
            return super().sample(**kwargs)


class TunedLearner(_Tuned):
    """Applies training settings to each module and optimizer of a learner."""

    usual = 0  # threads of the process outside an update

    def _make_modules_ddp_if_necessary(self) -> None:
        self.active = {}
        for name, module in _modules(self.module):
            self._tune(name, module)
        self._tune_optimizers()
        super()._make_modules_ddp_if_necessary()

    def add_module(self, *, module_id: str, **kwargs: Any) -> Any:
        added = super().add_module(module_id=module_id, **kwargs)
        self._tune(module_id, self.module[module_id].unwrapped())
        self._tune_optimizers()
        return added

    def remove_module(self, module_id: str, **kwargs: Any) -> Any:
        removed = super().remove_module(module_id, **kwargs)
        alive = {*self.module.keys(), *self._named_optimizers}
        for key in [key for key in self.active if key.rpartition(".")[0] not in alive]:
            del self.active[key]
        return removed

    def _update(self, *args: Any, **kwargs: Any) -> Any:
        # The backward pass uses the setting of forward_train, as in its measurement.
        (_, choice), _ = self._choices()
        self.usual = torch.get_num_threads()
        with process_of(choice.config.process if choice else {}):
            return super()._update(*args, **kwargs)

    def apply_gradients(self, *args: Any, **kwargs: Any) -> None:
        _, (_, choice) = self._choices()
        with process_of(
            {"threads": self.usual or torch.get_num_threads(), **choice.config.process}
            if choice
            else {}
        ):
            super().apply_gradients(*args, **kwargs)

    def _set_optimizer_state(self, state: Any) -> None:
        super()._set_optimizer_state(state)
        for name, saved in state.items():
            # ray 2.50 converts the whole state to tensors, which loses moments and numbers.
            if optimizer := self._named_optimizers.get(name):
                tensors = convert_to_torch_tensor(
                    saved["state"]["state"], device=self._device
                )
                optimizer.load_state_dict({**saved["state"], "state": tensors})

    @staticmethod
    def _set_optimizer_lr(optimizer: torch.optim.Optimizer, lr: Any) -> None:
        """Set the learning rate like RLlib, but keep a tensor a tensor and a number a number."""
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(float(lr))
            else:
                group["lr"] = float(lr)

    def _choices(self) -> tuple[tuple[str, Choice | None], tuple[str, Choice | None]]:
        rows = self.config.minibatch_size or self.config.train_batch_size_per_learner
        return of_learner(self.tuned, int(rows))

    def _tune(self, name: str, module: Any) -> None:
        (phase, choice), (_, step) = self._choices()
        if choice:
            compiled = apply_to_phase(
                module, phases.FORWARD_TRAIN, choice.config, or_eager=True
            )
            self.use(f"{name}.{phase}", choice, compiled)
        if step:
            prepare_model(module, step.config)

    def _tune_optimizers(self) -> None:
        _, (phase, choice) = self._choices()
        if choice:
            for name, optimizer in self._named_optimizers.items():
                compiled = apply_to_optimizer(optimizer, choice.config, or_eager=True)
                self.use(f"{name}.{phase}", choice, compiled)


def of_learner(
    tuned: Tuned, batch_size: int
) -> tuple[tuple[str, Choice | None], tuple[str, Choice | None]]:
    """Phase and choice of a learner's forward pass, and of its optimizers.

    Those of a whole update come before those of its parts.
    """
    if update := tuned.at(phases.LEARNER_UPDATE, batch_size):
        step = replace(update, config=update.config.of_optimizer)
        return (phases.LEARNER_UPDATE, update), (phases.LEARNER_UPDATE, step)
    forward = tuned.at(phases.FORWARD_TRAIN, batch_size)
    step_only = tuned.at(phases.OPTIMIZER_STEP)
    return (phases.FORWARD_TRAIN, forward), (phases.OPTIMIZER_STEP, step_only)


def _modules(module: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """(name, RLModule) of a single- or multi-agent module, torch modules only."""
    several = isinstance(module, MultiRLModule)
    named = (
        [(name, module[name]) for name in list(module.keys())]
        if several
        else [("", module)]
    )
    return ((name, one) for name, one in named if isinstance(one, torch.nn.Module))


def warm_up(module: Any, phase: str, count: int) -> bool:
    """Call exploration or inference with generated observations; keeps the random state.

    ``count`` is the number of environments. Returns whether the module took the observations; if
    it needs more than its space says, the phase compiles at its first real call.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    random_state = np.random.get_state()
    try:
        # This device only: forking the others' generators would initialize CUDA on each.
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            batch = made_up_batch(module, count)
            batch = torch.utils._pytree.tree_map(lambda t: t.to(device), batch)
            # Exploration gets the steps so far: one more is no new graph.
            for steps in (2, 3):
                given = {"t": steps} if phase == phases.FORWARD_EXPLORATION else {}
                getattr(module, phase)(batch, **given)
    except Exception:
        return False
    finally:
        np.random.set_state(random_state)
    return True
