"""RLlib with tuned settings: env runners and learners that use them, and prove it in each result.

Tested with ray 2.60, new API stack. ray's own ``torch_compile_*`` fields do not reach env runners,
and carry neither memory formats nor optimizers nor frozen weights. So the classes of env runner and
learner are extended: ray builds them in every process, and again after a restart.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from filelock import FileLock
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner
from ray.rllib.utils import force_list

from autocompile.errors import TargetError, UsageError
from autocompile.runtime import warm_start
from autocompile.runtime.apply import demand_this_interpreter
from autocompile.runtime.compiling import RL_PHASES, prepare_model, set_precision, set_threads
from autocompile.runtime.inplace import Compiled, apply_to_optimizer, apply_to_phase
from autocompile.runtime.machine import describe
from autocompile.runtime.observations import connectors_of, made_up_batch
from autocompile.tuned import Choice, Tuned

__all__ = ["NotInEffect", "tuned", "warm_up"]

_ANSWER_S = 30.0  # how long a runner or learner may take to say what it uses
_AGAIN_S = 10.0  # nobody is asked more often, unless one has gone or come


class NotInEffect(RuntimeError):
    """A setting was asked for, and is not what runs."""


def tuned(config: Any, settings: Any, *, strict: bool = True) -> Any:
    """An RLlib configuration whose env runners and learners use tuned settings.

    Env runners compile and warm up when they are built, for their own number of environments (of
    several agents at their first step); learners at their first update. What is active is in each
    result of ``train()``, under ``autocompile``.

    Args:
        config: an AlgorithmConfig of the new API stack; it stays as it is.
        settings: a file that ``autocompile export -o`` wrote, or a Result.
        strict: ``train()`` raises :class:`NotInEffect` where a setting failed or captured no graph,
            where threads or precision are others, or where a runner uses no settings. Otherwise it
            warns. What failed goes on in eager mode.

    Returns:
        A copy of the configuration.

    Raises:
        UsageError: the settings are about no RLModule or are another interpreter's, or the
            configuration is of the old API stack.
    """
    found = Tuned.read(settings)
    if not {*RL_PHASES, "optimizer_step", "learner_update"} & set(found.phases):
        raise UsageError(f"the settings are about no RLModule: {', '.join(found.phases)}")
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        raise UsageError(
            f"this {type(config).__name__} is of RLlib's old API stack, which is not supported",
            hint="config.api_stack(enable_rl_module_and_learner=True, "
            "enable_env_runner_and_connector_v2=True)",
        )
    for phase, choices in found.phases.items():
        for choice in choices:
            demand_this_interpreter(found, phase, choice)
    config = config.copy(copy_frozen=False)
    runner = config.env_runner_cls or _default_runner(config)
    config.env_runners(env_runner_cls=_extended(_TunedRunner, runner, found))
    # By the method of 2.60 or that of 2.50, of which the other one warns.
    config._learner_class = _extended(_TunedLearner, config.learner_class, found)
    # ray's own would compile a second time, or reset Dynamo.
    config.framework("torch", torch_compile_learner=False, torch_compile_worker=False)
    others = [f for f in force_list(config.callbacks_on_train_result) if not isinstance(f, _Tell)]
    config.callbacks(on_train_result=[*others, _Tell(strict)])
    return config


def _default_runner(config: Any) -> type:
    """What RLlib takes where the configuration names no class."""
    if config.output:
        return OfflineSingleAgentEnvRunner  # type: ignore[no-any-return]
    several: type = MultiAgentEnvRunner
    return several if config.is_multi_agent else SingleAgentEnvRunner


def _extended(mixin: type, base: type, settings: Tuned) -> type:
    """The class with the settings in it: it travels by value to wherever ray makes an actor."""
    base = vars(base).get("untuned", base)
    own = {"tuned": settings, "untuned": base, "__module__": __name__}
    return type(f"Tuned{base.__name__}", (mixin, base), own)


class _Tuned:
    """What runner and learner have in common: the settings, and what is active of them."""

    tuned: ClassVar[Tuned]
    active: dict[str, tuple[Choice, Compiled | None, dict[str, Any]]]

    def use(self, key: str, choice: Choice, compiled: Compiled | None, **facts: Any) -> None:
        """Set what torch has one of in a process, and remember what was applied."""
        warm_start.load(self.tuned, self._device)  # type: ignore[attr-defined]
        if choice.config.threads is not None:
            set_threads(choice.config.threads)
        set_precision(choice.config.precision)
        self.active[key] = choice, compiled, facts

    def tell_active(self) -> dict[str, Any]:
        """What is active here, for the result of ``train()``; what is not, under ``problems``."""
        told: dict[str, Any] = {}
        problems: list[str] = []
        for key, (choice, compiled, facts) in self.active.items():
            label = choice.config.label()
            told[key] = {"setting": label, "measured_at": choice.batch_size, **facts}
            if compiled is not None:
                told[key] |= {"graphs": compiled.graphs, "recompiles": compiled.later_graphs}
                if compiled.failed:
                    told[key]["setting"] = "eager"
                    problems.append(f"{key}: {label} failed: {compiled.failed}")
                elif compiled.calls and not compiled.graphs and not choice.config.is_eager:
                    problems.append(f"{key}: {label} has captured no graph")
            threads, precision = choice.config.threads, choice.config.precision
            if threads not in (None, torch.get_num_threads()):
                problems.append(f"{key}: {torch.get_num_threads()} threads, and not {threads}")
            if precision not in ("default", torch.get_float32_matmul_precision()):
                problems.append(f"{key}: another precision than {precision}")
        here = describe(self._device)  # type: ignore[attr-defined]
        return {
            "settings": told,
            "threads": torch.get_num_threads(),
            "measured_elsewhere": self.tuned.differences(here),
            "problems": problems,
        }


class _TunedRunner(_Tuned):
    """Of an env runner: the phase that it samples with."""

    def make_module(self) -> None:
        """Make the module, and have it use the settings for this number of environments."""
        super().make_module()  # type: ignore[misc]
        runner: Any = self
        self.active = {}
        if runner.module is None or runner.env is None:  # it does not sample
            return
        phase = "forward_exploration" if runner.config.explore else "forward_inference"
        choice = self.tuned.at(phase, runner.num_envs)
        choice = choice or self.tuned.at("forward_exploration", runner.num_envs)
        if choice is None:
            return
        for name, module in _modules(runner.module):
            compiled = apply_to_phase(module, phase, choice.config, or_eager=True)
            self.use(f"{name}.{phase}".strip("."), choice, compiled)
            # Of several agents, how many rows a module gets is known at the first step.
            if compiled is not None and not isinstance(runner.module, MultiRLModule):
                own = connectors_of(runner.config, runner.env)
                seconds = warm_up(module, phase, runner.num_envs, choice, own)
                self.active[phase][2]["warmup_s"] = seconds
                compiled.graphs += compiled.later_graphs
                compiled.later_graphs = 0


class _TunedLearner(_Tuned):
    """Of a learner: what was measured of training, for each module and each optimizer."""

    def _make_modules_ddp_if_necessary(self) -> None:
        learner: Any = self
        self.active = {}
        for name, module in _modules(learner.module):
            self._tune(name, module)
        self._tune_optimizers()
        super()._make_modules_ddp_if_necessary()  # type: ignore[misc]

    def add_module(self, *, module_id: str, **kwargs: Any) -> Any:
        """Add a module that uses the settings too."""
        added = super().add_module(module_id=module_id, **kwargs)  # type: ignore[misc]
        learner: Any = self
        self._tune(module_id, learner.module[module_id].unwrapped())
        self._tune_optimizers()
        return added

    def _set_optimizer_state(self, state: Any) -> None:
        super()._set_optimizer_state(state)  # type: ignore[misc]
        self._tune_optimizers()  # the state brings the implementation that it had

    @staticmethod
    def _set_optimizer_lr(optimizer: torch.optim.Optimizer, lr: Any) -> None:
        """As RLlib's, where a rate that is a tensor stays one, and another does not become one."""
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(float(lr))
            else:
                group["lr"] = float(lr)

    def _tune(self, name: str, module: Any) -> None:
        learner: Any = self
        (phase, choice), (_, step) = self.tuned.of_learner(_rows(learner.config))
        if choice:
            compiled = apply_to_phase(module, "forward_train", choice.config, or_eager=True)
            self.use(f"{name}.{phase}", choice, compiled)
        if step:
            prepare_model(module, step.config)

    def _tune_optimizers(self) -> None:
        learner: Any = self
        _, (phase, choice) = self.tuned.of_learner(_rows(learner.config))
        if choice:
            for name, optimizer in learner._named_optimizers.items():
                compiled = apply_to_optimizer(optimizer, choice.config, or_eager=True)
                self.use(f"{name}.{phase}", choice, compiled)


def _rows(config: Any) -> int:
    return int(config.minibatch_size or config.train_batch_size_per_learner)


def _modules(module: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """The RLModules of one, or of one for several agents, by name; without those of no torch."""
    several = isinstance(module, MultiRLModule)
    named = [(name, module[name]) for name in list(module.keys())] if several else [("", module)]
    return ((name, one) for name, one in named if isinstance(one, torch.nn.Module))


def warm_up(
    module: Any, phase: str, count: int, choice: Choice, connectors: Any = None
) -> float | None:
    """Seconds of calling a phase with made-up observations, which leaves random numbers alone.

    None where no observations can be made up: it compiles at its first step then.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    numbers = np.random.get_state()
    began = time.monotonic()
    try:
        with torch.random.fork_rng(), _first_of_its_kind(f"{choice.config.key}-{count}"):
            batch = made_up_batch(module, count, connectors)
            batch = torch.utils._pytree.tree_map(lambda t: t.to(device), batch)
            for steps in (2, 3):  # exploration gets the steps so far: one more is no new graph
                given = {"t": steps} if phase == "forward_exploration" else {}
                getattr(module, phase)(batch, **given)
    except (TargetError, KeyError):
        return None
    finally:
        np.random.set_state(numbers)
    return round(time.monotonic() - began, 3)


@contextlib.contextmanager
def _first_of_its_kind(key: str) -> Iterator[None]:
    """The first process on a machine compiles alone; the others find the code in torch's cache."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    done = Path(cache_dir()) / f"autocompile-{key}.done"
    os.makedirs(done.parent, exist_ok=True)
    if done.exists():
        yield
        return
    with FileLock(done.with_suffix(".lock")):
        yield
        done.touch()


class _Tell:
    """A callback of RLlib's, ``on_train_result``: puts what is active into each result.

    Of an asynchronous algorithm it has to wait for who samples, so that it asks now and then only.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._asked_s = 0.0
        self._known: Any = None
        self._told: dict[str, list[dict[str, Any]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Tell, (self._strict,))

    def __call__(self, *, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
        groups = {
            "env_runners": algorithm.env_runner_group,
            "eval_runners": algorithm.eval_env_runner_group,
        }
        known = tuple(
            (group.num_healthy_remote_workers(), group.num_remote_worker_restarts())
            for group in groups.values()
            if group is not None
        )
        if known != self._known or time.monotonic() - self._asked_s > _AGAIN_S:
            self._told = _ask(groups, algorithm.learner_group)
            self._known, self._asked_s = known, time.monotonic()
        result["autocompile"] = self._told
        problems = [p for part in self._told.values() for one in part for p in one["problems"]]
        if not problems:
            return
        if self._strict:
            hint = "tuned(config, settings, strict=False) goes on without it"
            raise NotInEffect(f"{'; '.join(dict.fromkeys(problems))}. {hint}")
        warnings.warn("; ".join(dict.fromkeys(problems)), stacklevel=2)


def _ask(groups: dict[str, Any], learners: Any) -> dict[str, list[dict[str, Any]]]:
    told = {}
    for name, group in groups.items():
        if group is not None:
            found = group.foreach_env_runner(_active_in_runner, timeout_seconds=_ANSWER_S)
            told[name] = [one for one in found if one]
    answers = learners.foreach_learner(_active_in_learner, timeout_seconds=_ANSWER_S)
    told["learners"] = [answer.get() for answer in answers if answer.ok]
    return told


def _active_in_runner(runner: Any) -> dict[str, Any] | None:
    if not isinstance(runner, _Tuned):
        return {"settings": {}, "problems": [f"a {type(runner).__name__} uses no settings"]}
    return runner.tell_active() if runner.env is not None else None  # type: ignore[attr-defined]


def _active_in_learner(learner: Any, **_: Any) -> dict[str, Any]:
    return learner.tell_active()  # type: ignore[no-any-return]
