"""Applies settings in place: the module keeps its identity, its class and its keys."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._dynamo.utils import counters

from autocompile.errors import UsageError
from autocompile.runtime import warm_start
from autocompile.runtime.applying import prepare_model
from autocompile.runtime.compiling import compile_function
from autocompile.runtime.graphs import with_own_code
from autocompile.runtime.optimizers import set_implementation
from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import FORWARD, FORWARD_TRAIN, LEARNER_UPDATE

__all__ = ["Compiled", "apply_to_optimizer", "apply_to_phase", "apply_to_update", "compile_model"]

_STEP = "_autocompile_step"  # where an optimizer keeps what its step calls


class Compiled:
    """A function that compiles at its first call and counts the graphs that Dynamo captures.

    Args:
        function: what to compile.
        config: the setting.
        model: the module that the function calls, if any.
        grad: if False, runs under ``no_grad``: RLModules disable gradients only inside the method,
            but Dynamo calls the backend in the caller's grad mode.
        or_eager: if the compiled function fails and the original does not, use the original.

    Attributes:
        calls: number of calls.
        graphs: graphs captured by the first call.
        later_graphs: graphs captured later, by recompiles and by freezing new weights.
        failed: why it runs uncompiled; empty if it does not.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        config: CompileConfig,
        model: torch.nn.Module | None = None,
        grad: bool = True,
        or_eager: bool = False,
    ) -> None:
        self.function = function
        self.calls = self.graphs = self.later_graphs = 0
        self.failed = ""
        self._config, self._model, self._grad, self._or_eager = config, model, grad, or_eager
        self._compiled: Callable[..., Any] = function
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function."""
        if torch.compiler.is_compiling():  # called inside compiled code
            return self.function(*args, **kwargs)
        if not self.calls:
            with self._lock:  # one thread compiles, the others wait
                if not self.calls:
                    before = _captured()
                    result = self._tried(self._first, *args, **kwargs)
                    self.graphs = _captured() - before
                    self.calls = 1
                    return result
        before = _captured()
        result = self._tried(self._compiled, *args, **kwargs)
        self.later_graphs += _captured() - before
        self.calls += 1
        return result

    def _tried(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if not self._or_eager or self.failed:
                raise
            result = self.function(*args, **kwargs)  # raises again if the caller is at fault
            first = str(error).strip().partition("\n")[0]
            self.failed = f"{type(error).__name__}: {first}"
            self._compiled = self.function
            return result

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        own = with_own_code(self.function, "tuned")
        compiled = compile_function(own, self._config, self._model)
        compiled = compiled if self._grad else torch.no_grad()(compiled)
        with warm_start.as_saved():
            result = compiled(*args, **kwargs)
        self._compiled = compiled
        return result


class CompiledMethod(Compiled):
    """Replaces a method of a module. A copied or unpickled module gets its own."""

    def __init__(
        self,
        module: torch.nn.Module,
        name: str,
        config: CompileConfig,
        grad: bool = False,
        or_eager: bool = False,
    ) -> None:
        self._made_of = (module, name, config, grad, or_eager)
        super().__init__(
            getattr(type(module), name).__get__(module), config, module, grad, or_eager
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> _Later:
        module, *rest = self._made_of
        return _Later(memo.get(id(module), module), *rest)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Later, self._made_of)


class _Later:
    """Placeholder in a copied or unpickled module until the method is first called."""

    def __init__(self, *made_of: Any) -> None:
        self._made_of = made_of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, name, *_ = self._made_of
        method = vars(module)[name] = CompiledMethod(*self._made_of)
        return method(*args, **kwargs)

    __deepcopy__, __reduce__ = CompiledMethod.__deepcopy__, CompiledMethod.__reduce__


def apply_to_phase(
    module: torch.nn.Module, phase: str, config: CompileConfig, or_eager: bool = False
) -> Compiled | None:
    """Make a module use a setting in a forward phase.

    Args:
        module: changed in place.
        phase: ``forward``, or another forward phase.
        config: the setting; its threads and precision are the process's, and not set here.
        or_eager: as of :class:`Compiled`.

    Returns:
        The compiled function; None for eager mode.

    Raises:
        UsageError: the module has no such phase.
    """
    if phase != FORWARD and not hasattr(type(module), f"_{phase}"):
        raise UsageError(
            f"a {type(module).__name__} has no {phase}",
            hint="from autocompile.rllib import tuned" if phase == LEARNER_UPDATE else None,
        )
    prepare_model(module, config)
    is_compiled = not config.is_eager or config.autocast != "none"
    if phase == FORWARD:
        own = Compiled(module._call_impl, config, module, or_eager=or_eager)
        # As Module.compile does; a copy of the module is not compiled.
        module._compiled_call_impl = own if is_compiled else None
        return own if is_compiled else None
    # As RLlib does: RLModule.compile() has another signature, and forward_* switches between train
    # and eval.
    vars(module).pop(f"_{phase}", None)
    if not is_compiled:
        return None
    method = CompiledMethod(module, f"_{phase}", config, phase == FORWARD_TRAIN, or_eager)
    vars(module)[f"_{phase}"] = method
    return method


def compile_model(model: torch.nn.Module, config: CompileConfig, phase: str) -> torch.nn.Module:
    """Compile a model for a forward phase, and return what to call instead.

    A plain module is wrapped, as by ``torch.compile``. Of an RLModule ``_forward_*`` is replaced on
    the instance, by compiled code without the counters of :class:`Compiled`.
    """
    prepare_model(model, config)
    if phase == FORWARD:
        return compile_function(model, config, model)  # type: ignore[return-value]
    if not config.is_eager or config.autocast != "none":
        compiled = compile_function(getattr(model, f"_{phase}"), config, model)
        # Callers of an RLModule leave it to the function beneath to record no gradients; but a
        # backend is asked in the mode of the caller, and may then refuse, or compile a backward.
        trains = phase == FORWARD_TRAIN
        vars(model)[f"_{phase}"] = compiled if trains else torch.no_grad()(compiled)
    return model


def apply_to_optimizer(
    optimizer: torch.optim.Optimizer, config: CompileConfig, or_eager: bool = False
) -> Compiled | None:
    """Make an optimizer's ``step`` use a setting.

    Loading a state dict restores the implementation of that state; apply again after it.

    Args:
        optimizer: changed in place.
        config: the setting.
        or_eager: as for :class:`Compiled`.

    Returns:
        The compiled step; None for eager mode.

    Raises:
        UsageError: the optimizer has no such implementation.
    """
    set_implementation(optimizer, config.optimizer)
    if config.optimizer in ("fused", "capturable"):
        _move_step_counts(optimizer)
    own = vars(optimizer).get(_STEP)
    if own is None and config.is_eager and config.autocast == "none":
        return None
    if own is None:
        own = vars(optimizer)[_STEP] = _Step(optimizer.step)
        # A bound method: LR schedulers wrap optimizer.step.__func__.
        optimizer.step = types.MethodType(own.function(), optimizer)  # type: ignore[method-assign]
    own.compiled = None
    if not config.is_eager or config.autocast != "none":
        own.compiled = Compiled(own.uncompiled, config, or_eager=or_eager)
    compiled: Compiled | None = own.compiled
    return compiled


def apply_to_update(
    module: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer], config: CompileConfig
) -> None:
    """Make an update of RLlib's Learner use a setting in its forward pass and optimizer steps.

    Loss, backward pass and clipping stay uncompiled, as in :mod:`autocompile.rllib`.
    """
    apply_to_phase(module, FORWARD_TRAIN, config)
    for optimizer in optimizers:
        apply_to_optimizer(optimizer, config.of_optimizer)


class _Step:
    """The replaceable target of an optimizer's ``step``."""

    def __init__(self, uncompiled: Callable[..., Any]) -> None:
        self.uncompiled = uncompiled
        self.compiled: Compiled | None = None

    def function(self) -> Callable[..., Any]:
        """The function to bind as ``optimizer.step``."""

        def step(_: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            if closure is None:
                return (self.compiled or self.uncompiled)()
            if self.compiled is None:
                return self.uncompiled(closure)
            with torch.enable_grad():  # first and once, as in each of torch's but LBFGS
                loss = closure()
            self.compiled()
            return loss

        vars(step).update(vars(self.uncompiled))  # attributes set by LR schedulers
        return step


def _captured() -> int:
    return int(counters["stats"]["unique_graphs"])


def _move_step_counts(optimizer: torch.optim.Optimizer) -> None:
    """Move step counts to the parameters' device, which fused and capturable steps require."""
    for parameter, state in optimizer.state.items():
        count = state.get("step")
        if isinstance(count, torch.Tensor):
            state["step"] = count.to(parameter.device, torch.float32)
