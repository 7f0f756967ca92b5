"""Makes RLlib's env runners and learners use tuned settings and report them in each result.

Tested with ray 2.50 and 2.60, new API stack. ray's ``torch_compile_*`` fields do not reach env
runners and carry no memory format, optimizer or frozen weights. So the classes of env runner and
learner are extended: ray builds them in every process, and again after a restart.
"""

from __future__ import annotations

import warnings
from typing import Any

import ray
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner
from ray.rllib.utils import force_list

from autocompile.errors import UsageError
from autocompile.runtime.rllib.actors import TunedLearner, TunedRunner, demand_any_usable
from autocompile.runtime.rllib.in_effect import NotInEffect, Tell
from autocompile.settings.tuned_set import TunedSet

__all__ = ["NotInEffect", "default_runner", "tuned"]


def tuned(config: Any, settings: Any, *, strict: bool = True) -> Any:
    """A copy of an RLlib configuration whose env runners and learners use tuned settings.

    Env runners compile and warm up when they are built, for their number of environments, or with
    several agents at their first step. Learners compile at their first update. Each result of
    ``train()`` lists the active settings under ``autocompile``.

    Args:
        config: an AlgorithmConfig of the new API stack; not changed.
        settings: a file written by ``autocompile export -o``, or a Result. Of a file with entries
            of several machines, each process takes the one that fits its device.
        strict: if True, ``train()`` raises :class:`NotInEffect` when a setting failed or captured
            no graph, when threads or precision differ, or when a runner uses no settings. If
            False, it warns. A failed setting runs in eager mode.

    Raises:
        UsageError: no entry is for an RLModule and this interpreter, or the configuration uses the
            old API stack. A process whose own entry is not usable raises it when it is built.

    Warns:
        UserWarning: the configuration sets ray's ``torch_compile_*``, which are turned off.
    """
    found = TunedSet.read(settings)
    demand_any_usable(found)
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        raise UsageError(
            f"this {type(config).__name__} uses RLlib's old API stack, which is not supported",
            hint="config.api_stack(enable_rl_module_and_learner=True, "
            "enable_env_runner_and_connector_v2=True)",
        )
    config = config.copy(copy_frozen=False)
    runner = config.env_runner_cls or default_runner(config)
    config.env_runners(env_runner_cls=_extended(TunedRunner, runner, found))
    # ray 2.50 and 2.60 set this by different methods, and each warns of the other's.
    config._learner_class = _extended(TunedLearner, config.learner_class, found)
    _warn_of_own_flags(config)
    config.framework("torch", torch_compile_learner=False, torch_compile_worker=False)
    others = [f for f in force_list(config.callbacks_on_train_result) if not isinstance(f, Tell)]
    config.callbacks(on_train_result=[*others, Tell(strict)])
    return config


def _warn_of_own_flags(config: Any) -> None:
    """Warn that ray's own compile fields are turned off, and what they would do."""
    said = []
    if config.torch_compile_worker:
        said.append(
            f"torch_compile_worker does nothing: no env runner of ray {ray.__version__} reads it"
        )
    if config.torch_compile_learner:
        if config.torch_compile_learner_what_to_compile == "complete_update":
            what = "compile the tuned parts a second time, and reset Dynamo"
        else:
            what = "compile nothing: ray passes over the modules of a learner"
        said.append(f"torch_compile_learner would {what}")
    if said:
        warnings.warn(
            f"{'; '.join(said)}. It is turned off: the tuned settings replace it", stacklevel=3
        )


def default_runner(config: Any) -> type:
    """The env runner class that RLlib uses by default."""
    if config.output:
        return OfflineSingleAgentEnvRunner  # type: ignore[no-any-return]
    several: type = MultiAgentEnvRunner
    return several if config.is_multi_agent else SingleAgentEnvRunner


def _extended(mixin: type, base: type, settings: TunedSet) -> type:
    """A subclass that holds the settings; ray pickles it by value to each actor."""
    base = vars(base).get("untuned", base)
    own = {"tuned_set": settings, "untuned": base, "__module__": __name__}
    return type(f"Tuned{base.__name__}", (mixin, base), own)
