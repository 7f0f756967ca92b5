"""Applies settings in place: the module keeps its identity, its class and its keys."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from autocompile.errors import UsageError, first_words
from autocompile.runtime.compiling import (
    compile_function,
    repeated_blocks,
    uses_cuda_graphs,
)
from autocompile.runtime.devices import device_of
from autocompile.runtime.gradients import KeptGradients, count_step
from autocompile.runtime.graphs import with_own_code
from autocompile.runtime.optimizers import (
    fit_before_fused_steps,
    fit_fused,
    fit_to_parameters,
    follow_state_dicts,
    rate_is_zero,
    rates_above_zero,
    set_implementation,
)
from autocompile.settings import phases
from autocompile.settings.config import CompileConfig

Used = TypeVar("Used", bound=Callable[..., Any])

_STEP = "_autocompile_step"  # where an optimizer keeps what its step calls
# One name each: Dynamo makes a size dynamic that differs between functions of equal name and line,
# such as those of two env runners in one process.
_PROGRAMS = itertools.count()


def _lay_out(model: torch.nn.Module, value: str) -> None:
    # Of the weights of convolutions: a tensor without four dimensions stays as it is.
    cast(Any, model).to(memory_format=getattr(torch, value))
    fit_before_fused_steps()


MODEL: Mapping[str, Callable[[torch.nn.Module, Any], None]] = {
    "memory_format": _lay_out
}
"""In place, before anything is compiled."""


def _precision() -> str | tuple[str, ...]:
    """By its name, or where torch's newer switches were used what these are."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return tuple(each.fp32_precision for each in _products())


def _set_precision(value: str | tuple[str, ...]) -> None:
    if isinstance(value, str):
        torch.set_float32_matmul_precision(value)
        return
    for each, precision in zip(_products(), value, strict=True):
        each.fp32_precision = precision


def _products() -> tuple[Any, ...]:
    """What has a newer switch that the older name changes."""
    backends: Any = torch.backends
    return backends.cuda.matmul, backends.mkldnn.matmul


PROCESS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "precision": (_precision, _set_precision),
}
"""What torch has one of for the whole process: how it is read, and how it is set."""


def prepare_model(model: torch.nn.Module, config: CompileConfig) -> None:
    """Do to the model itself, in place, what a setting asks for before anything is compiled."""
    for dimension, value in config.changed("model"):
        MODEL[dimension.name](model, value)


def process_state() -> dict[str, Any]:
    """What the process has of the dimensions of ``PROCESS``, by name."""
    return {name: read() for name, (read, _) in PROCESS.items()}


_lock = threading.Lock()
_wanted: list[dict[tuple[str, int], Any]] = []
"""What is wanted of the process at this moment; the last one wins."""
_before: dict[tuple[str, int], Any] = {}
"""What the process had, to be put back when nothing is wanted."""
_unfinished: dict[int, list[Callable[[], None]]] = {}
"""By the thread of the forward pass, what ends the values of its backward passes that run.

One that raises ends nothing itself: torch calls no callback then.
"""


def _begin(values: Mapping[str, Any]) -> Callable[[], None]:
    """Set values; returns what ends it, in whatever order several end.

    Those of a backward pass end in the order of their beginning.
    """
    # torch has a number of threads for each thread.
    mine = {
        (n, threading.get_ident() if n == "threads" else 0): v
        for n, v in values.items()
    }
    _end_failed_backward_passes()
    with _lock:
        for place, value in mine.items():
            _before.setdefault(place, PROCESS[place[0]][0]())
            _change(place[0], value)
        _wanted.append(mine)
    return functools.partial(_end, mine)


def _end(mine: dict[tuple[str, int], Any]) -> None:
    with _lock:
        _wanted[:] = [each for each in _wanted if each is not mine]
        for place in mine:
            others = [each[place] for each in _wanted if place in each]
            _change(place[0], others[-1] if others else _before.pop(place))


def _end_failed_backward_passes() -> None:
    """Put back what backward passes of this thread have left: it is in none now."""
    if torch._C._current_graph_task_id() < 0:
        for end in _unfinished.pop(threading.get_ident(), ()):
            end()


def _change(name: str, value: Any) -> None:
    read, write = PROCESS[name]
    if read() != value:
        write(value)


@contextlib.contextmanager
def process_of(values: Mapping[str, Any]) -> Iterator[None]:
    """Set these for the process inside the context, and put back what it had."""
    end = _begin(values)
    try:
        yield
    finally:
        end()


def backward_within(result: Any, values: Mapping[str, Any]) -> None:
    """Set these for the process also in the backward pass, from a result's tensors to its end."""
    ends: list[Callable[[], None]] = []
    caller = threading.get_ident()

    def end() -> None:
        while ends:
            ends.pop()()
        with contextlib.suppress(KeyError, ValueError):
            _unfinished[caller].remove(end)

    def begin(_: torch.Tensor) -> None:
        if not ends:
            ends.append(_begin(values))
            _unfinished.setdefault(caller, []).append(end)
            cast(Any, torch.autograd.Variable)._execution_engine.queue_callback(end)

    leaves = pytree.tree_leaves(result)
    # Also in attributes of an object that no pytree knows, as of a dataclass.
    inside = [
        vars(x)
        for x in leaves
        if not isinstance(x, torch.Tensor) and hasattr(x, "__dict__")
    ]
    for x in (*leaves, *pytree.tree_leaves(inside)):
        # Not a parameter, which stays.
        if isinstance(x, torch.Tensor) and x.grad_fn is not None:
            x.register_hook(begin)  # type: ignore[no-untyped-call]


@functools.cache
def _let_threads_look_up() -> None:
    """Let threads look compiled code up at once, for all code of the process.

    torch (2.13) moves what it finds to the front of a list that other threads walk, who then miss
    theirs and compile it again, up to the limit of programs (studies/threads_of_a_server).
    """
    frames: Any = torch._C._dynamo.eval_frame
    if moves := getattr(frames, "_set_lru_cache", None):
        moves(False)


class Compiled:
    """A function that compiles at its first call and counts the graphs that Dynamo captures.

    It runs, and so do the gradients of its results, with the threads and the precision of the
    setting; the process keeps its own. Without ``grad`` it runs under ``no_grad``: methods
    that disable gradients do so only inside, but Dynamo calls the backend in the caller's grad
    mode. ``or_eager`` uses the original if that works and the compiled function fails, unless
    ``written`` changes: half of an optimizer's step must not be made twice. Autocast is
    of the device of the ``model``, else of ``device``, else of the first call's tensors.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        config: CompileConfig,
        model: torch.nn.Module | None = None,
        grad: bool = True,
        or_eager: bool = False,
        device: torch.device | None = None,
        written: Callable[[], object] | None = None,
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        self.function, self.config = function, config
        self._optimizers = optimizers  # that it steps
        self._thread = threading.get_ident()  # of the first call
        self._written = written
        self.failed = ""  # why it runs uncompiled
        self.calls = 0
        # Captured by the first call, and by later ones.
        self.graphs, self.later_graphs = 0, 0
        self._model, self._grad, self._or_eager, self._device = (
            model,
            grad,
            or_eager,
            device,
        )
        self._compiled: Callable[..., Any] | None = None
        self._process = config.process
        self._lock = threading.RLock()
        has_graphs = grad and model is not None and uses_cuda_graphs(config)
        self._gradients = KeptGradients(model) if has_graphs and model else None

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied or unpickled module runs its own, uncompiled.
        return _same, (self.function,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Called inside compiled code. Not is_compiling(), which is of all threads at once.
        if torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
            return self.function(*args, **kwargs)
        if not self._process:
            return self._counted(*args, **kwargs)
        with process_of(self._process):
            result = self._counted(*args, **kwargs)
        backward_within(result, self._process)
        return result

    def _counted(self, *args: Any, **kwargs: Any) -> Any:
        if self._gradients:
            self._gradients.before_call()
        if not self.calls:
            self._thread = threading.get_ident()
        elif self._thread != threading.get_ident():
            _let_threads_look_up()
        # One thread compiles, the others wait.
        with contextlib.nullcontext() if self.calls else self._lock:
            is_first, before = not self.calls, _captured()
            result = self._tried(*args, **kwargs)
            if is_first:
                self.graphs = _captured() - before
            else:
                self.later_graphs += _captured() - before
            self.calls += 1
            return result

    def _tried(self, *args: Any, **kwargs: Any) -> Any:
        if self.failed or rate_is_zero(self._optimizers):
            return self.function(*args, **kwargs)
        before = self._written() if self._written else None
        try:
            with self._precision(args, kwargs), rates_above_zero(self._optimizers):
                return (self._compiled or self._first)(*args, **kwargs)
        except Exception as error:
            is_half_done = self._written is not None and self._written() != before
            if not self._or_eager or is_half_done:
                raise
            # Raises again if the caller is at fault.
            result = self.function(*args, **kwargs)
            self.failed = first_words(error)
            return result

    def _precision(
        self, args: Any, kwargs: Any
    ) -> contextlib.AbstractContextManager[Any]:
        grad = contextlib.nullcontext() if self._grad else torch.no_grad()
        if self.config.autocast == "none":
            return grad
        # The model's device at the time of the call.
        first = (
            next(self._model.parameters(), None) if self._model is not None else None
        )
        if first is None and self._device is None:
            used = device_of(args, kwargs, self.function)
            self._device = used or torch.device("cpu")
        device = self._device if first is None else first.device
        assert device is not None
        kind = device.type
        stack = contextlib.ExitStack()
        stack.enter_context(grad)
        stack.enter_context(
            torch.autocast(kind, dtype=getattr(torch, self.config.autocast))
        )
        return stack

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        # As Module.compile does: Dynamo then begins at the user's own forward(), whose globals it
        # finds also where the class was pickled by value. It skips those of torch.nn.
        is_users = False
        if self._model is not None and self.function == self._model._call_impl:
            home = str(type(self._model).forward.__module__)
            is_users = not home.startswith("torch.nn.")
        name = f"tuned_{next(_PROGRAMS)}"
        function = self.function if is_users else with_own_code(self.function, name)
        compiled = compile_function(function, self.config, self._model)
        result = compiled(*args, **kwargs)
        self._compiled = compiled
        return result


def apply_config(
    model: Used,
    phase: str,
    config: CompileConfig,
    optimizers: Sequence[torch.optim.Optimizer] = (),
    step: CompileConfig | None = None,
    device: torch.device | None = None,
) -> Used:
    """Make a model and its optimizers use the setting of a phase: in trials, and for users.

    Of a training step and of a library's update the model is compiled with its backward pass; loss,
    ``backward()`` and the optimizers' steps stay outside. ``model`` is changed in place; for scope
    ``step`` it is the function that does the step. ``step`` is the setting of the optimizers beside
    a forward phase, ``device`` that of a function, which its first call tells otherwise. Returns
    what to call from now on: the model, or the compiled function.
    """
    if isinstance(model, torch.nn.Module):
        prepare_model(model, config)
    for optimizer in optimizers:
        apply_to_optimizer(optimizer, step or config.of_optimizer_in(phase))
    if not isinstance(model, torch.nn.Module):
        device = device or device_of(*optimizers)
        applied: Any = model
        if not _is_untouched(config):
            applied = Compiled(model, config, device=device, optimizers=optimizers)
        return applied  # type: ignore[no-any-return]
    if phase == phases.OPTIMIZER_STEP:
        return model
    is_whole = bool(phases.phase_of(phase).whole)
    if is_whole or phases.phase_of(phase).is_update:
        if hasattr(type(model), f"_{phases.FORWARD_TRAIN}"):  # called by its methods
            phase = phases.FORWARD_TRAIN
        elif is_whole:
            phase = phases.FORWARD
    # Of a model whose parts are called by themselves, each.
    parts_of = getattr(model, "autocompile_parts", lambda: [model])
    for part in parts_of():
        apply_to_phase(part, phase, config)
    return model


def apply_to_phase(
    module: torch.nn.Module,
    phase: str,
    config: CompileConfig,
    or_eager: bool = False,
) -> Compiled | None:
    """Make a module use a setting in a forward phase; returns None if it runs as it is."""
    known = phases.phase_of(phase)
    if phase != phases.FORWARD and not hasattr(type(module), f"_{phase}"):
        raise UsageError(
            f"a {type(module).__name__} has no {phase}",
            hint=f"from autocompile.{known.library} import tuned"
            if known.is_update
            else None,
        )
    prepare_model(module, config)
    # As Module.compile does; a copy of the module is not compiled. A method is replaced beneath
    # its public one, which switches between train and eval.
    name = "_compiled_call_impl" if phase == phases.FORWARD else f"_{phase}"
    is_last = _has_blocks(vars(module).pop(name, None))
    if is_last and not any(map(_has_blocks, vars(module).values())):
        for block in repeated_blocks(module):
            block._compiled_call_impl = None
    if _is_untouched(config):
        return None
    uncompiled = getattr(
        type(module), "_call_impl" if phase == phases.FORWARD else name
    )
    grad = phase in (phases.FORWARD, phases.FORWARD_TRAIN)
    function = uncompiled.__get__(module)
    compiled = Compiled(function, config, module, grad, or_eager)
    vars(module)[name] = compiled
    return compiled


def apply_to_optimizer(
    optimizer: torch.optim.Optimizer, config: CompileConfig, or_eager: bool = False
) -> Compiled | None:
    """Make an optimizer's ``step`` use a setting; returns what it calls, None for its own.

    The model is laid out before. State dicts that are loaded later get the implementation, too.
    """
    set_implementation(optimizer, config.optimizer)
    follow_state_dicts(optimizer)
    fit_to_parameters(optimizer)
    replaced: _Step | None = vars(optimizer).get(_STEP)
    if replaced is None:
        if _is_untouched(config):
            return None
        replaced = vars(optimizer)[_STEP] = _Step(optimizer.step)
        # A bound method: LR schedulers wrap optimizer.step.__func__.
        optimizer.step = types.MethodType(replaced.function(), optimizer)  # type: ignore[method-assign]
    replaced.compiled = None
    if not _is_untouched(config):
        replaced.compiled = Compiled(
            replaced.uncompiled,
            config,
            or_eager=or_eager,
            written=functools.partial(_versions, optimizer),
            optimizers=[optimizer],
        )
    return replaced.compiled


def _versions(optimizer: torch.optim.Optimizer) -> list[int]:
    """How often each parameter was written to."""
    return [p._version for group in optimizer.param_groups for p in group["params"]]


class _Step:
    """What an optimizer's ``step`` calls, replaceable."""

    def __init__(self, uncompiled: Callable[..., Any]) -> None:
        self.uncompiled = uncompiled
        self.compiled: Compiled | None = None

    def function(self) -> Callable[..., Any]:
        def step(
            optimizer: torch.optim.Optimizer,
            closure: Callable[[], Any] | None = None,
        ) -> Any:
            if closure is not None and self.compiled is None:
                return self.uncompiled(closure)
            loss = None
            if closure is not None:
                # First and once, as in each of torch's but LBFGS.
                with torch.enable_grad():
                    loss = closure()
            # What hooks of the step do, which compiled code does not call.
            count_step(optimizer)
            fit_fused(optimizer)
            result = (self.compiled or self.uncompiled)()
            return result if closure is None else loss

        vars(step).update(vars(self.uncompiled))  # attributes set by LR schedulers
        return step


def _is_untouched(config: CompileConfig) -> bool:
    """Whether a function of the setting is the function itself."""
    return config.is_eager and config.autocast == "none" and not config.process


def _has_blocks(value: Any) -> bool:
    return isinstance(value, Compiled) and value.config.scope == "regional"


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _captured() -> int:
    return int(counters["stats"]["unique_graphs"])
