"""CompileConfig: one setting, of torch.compile and of what surrounds it, in one canonical form."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autocompile.errors import UsageError

__all__ = [
    "AUTOCASTS",
    "DEFAULT_INDUCTOR",
    "EAGER",
    "GUARDS",
    "GUARD_FILTERS",
    "MEMORY_FORMATS",
    "OPTIMIZERS",
    "PRECISIONS",
    "SCOPES",
    "CompileConfig",
]

_OF_A_COMPILER = ("mode", "options", "fullgraph", "dynamic", "scope", "freezing", "guards")

OptionValue = bool | int | float | str | None

MEMORY_FORMATS = ("default", "channels_last")
OPTIMIZERS = ("default", "for_loop", "foreach", "fused", "capturable", "tensor_lr")
"""How an optimizer steps; ``default`` is as the target made it."""
SCOPES = ("full", "regional")
PRECISIONS = ("default", "high", "medium")
"""Of products of float32 matrices, as ``torch.set_float32_matmul_precision`` names them."""
AUTOCASTS = ("none", "bfloat16", "float16")
GUARD_FILTERS = {
    "skip_inbuilt_modules": "skip_guard_on_inbuilt_nn_modules_unsafe",
    "skip_modules": "skip_guard_on_all_nn_modules_unsafe",
    "keep_tensors": "keep_tensor_guards_unsafe",
    "skip_all": "skip_all_guards_unsafe",
}
"""What is checked at each call before compiled code is taken: names in ``torch.compiler``."""
GUARDS = ("all", *GUARD_FILTERS)

_NO_EFFECT = ("backend", "mode", "options", "fullgraph")  # named otherwise, or without any
_OF_EAGER = ("memory_format", "optimizer", "threads")  # eager mode has them too
# What each mode turns on (torch._inductor.list_mode_options): options by another name.
_GRAPHS = ("triton.cudagraphs", True)
_AUTOTUNE = (("max_autotune", True), ("coordinate_descent_tuning", True))
_OF_MODES: Mapping[str, tuple[tuple[str, OptionValue], ...]] = {
    "reduce-overhead": (_GRAPHS,),
    "max-autotune-no-cudagraphs": _AUTOTUNE,
    "max-autotune": (_GRAPHS, *_AUTOTUNE),
}


@dataclass(frozen=True)
class CompileConfig:
    """One setting of ``torch.compile``; equal settings compare and hash equal.

    Attributes:
        backend: a name that Dynamo knows, or ``"eager"`` for a model that is not compiled.
        mode: an Inductor mode; ``"default"`` for every backend that has no modes.
        options: Inductor options as sorted pairs; a mapping is accepted.
        fullgraph: whether a graph break is an error.
        dynamic: ``None`` lets torch decide after the first recompile.
        scope: ``"full"`` compiles the phase's function as one, ``"regional"`` the blocks that the
            model repeats, each by itself.
        environment: the name of the interpreter that the setting runs under.
        memory_format: of the weights of convolutions.
        optimizer: one of :data:`OPTIMIZERS`.
        freezing: Inductor takes the weights as constants; they are read again when they change.
        threads: of torch's operators on a CPU; None for as many as torch takes by itself.
        precision: of products of float32 matrices; one of :data:`PRECISIONS`.
        autocast: the lower precision that ``torch.autocast`` computes in; :data:`AUTOCASTS`.
        guards: one of :data:`GUARDS`; all but the first are unsafe.

    Raises:
        UsageError: a mode together with options or guards (torch refuses the pair), or a value
            that is none.
    """

    backend: str = "inductor"
    mode: str = "default"
    options: tuple[tuple[str, OptionValue], ...] = ()
    fullgraph: bool = False
    dynamic: bool | None = None
    scope: str = "full"
    environment: str = "default"
    memory_format: str = "default"
    optimizer: str = "default"
    freezing: bool = False
    threads: int | None = None
    precision: str = "default"
    autocast: str = "none"
    guards: str = "all"

    def __post_init__(self) -> None:
        options: Any = self.options
        if isinstance(options, Mapping):
            options = options.items()
        object.__setattr__(self, "options", tuple(sorted((str(k), v) for k, v in options)))
        if self.options and self.mode != "default":
            raise UsageError(
                f"mode {self.mode!r} and options {dict(self.options)} cannot go together",
                "torch.compile takes either a mode or options",
            )
        if self.guards != "all" and self.mode != "default":
            raise UsageError(
                f"mode {self.mode!r} and guards {self.guards!r} cannot go together",
                "torch.compile takes a filter of guards as an option, and either a mode or options",
            )
        known = {
            "memory_format": MEMORY_FORMATS,
            "optimizer": OPTIMIZERS,
            "scope": SCOPES,
            "precision": PRECISIONS,
            "autocast": AUTOCASTS,
            "guards": GUARDS,
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise UsageError(f"{name} {getattr(self, name)!r} is none of {', '.join(values)}")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"{self.threads} threads are too few")
        if self.backend == "eager":  # nothing is compiled, so this has no meaning
            for name in _OF_A_COMPILER:
                object.__setattr__(self, name, type(self).__dataclass_fields__[name].default)

    @property
    def is_eager(self) -> bool:
        """Whether the model runs uncompiled."""
        return self.backend == "eager"

    @property
    def is_plain_eager(self) -> bool:
        """Whether it is the target as it stands, under whatever interpreter."""
        return dataclasses.replace(self, environment="default") == EAGER

    @property
    def is_baseline(self) -> bool:
        """Whether it is the target as it stands, here: all speed-ups are over it."""
        return self == EAGER

    @property
    def bakes_weights(self) -> bool:
        """Whether new weights cost something: they are constants of what was compiled."""
        return self.freezing or dict(self.options).get("weights") == "baked"

    @property
    def numbers(self) -> CompileConfig:
        """Eager mode with what of this setting changes numbers by intention."""
        return CompileConfig("eager", precision=self.precision, autocast=self.autocast)

    @property
    def of_optimizer(self) -> CompileConfig:
        """What of a setting of RLlib's updates is about their optimizers."""
        # torch.compile passes over a fused step.
        backend = "eager" if self.optimizer == "fused" else self.backend
        return dataclasses.replace(
            self, backend=backend, memory_format="default", scope="full", autocast="none"
        )

    @property
    def key(self) -> str:
        """Twelve hex digits that are the same for equal settings on every machine."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """The setting as JSON, every key always present (``report.json``, schema 1)."""
        return {
            "backend": self.backend,
            "mode": self.mode,
            "options": dict(self.options),
            "fullgraph": self.fullgraph,
            "dynamic": self.dynamic,
            "scope": self.scope,
            "environment": self.environment,
            "memory_format": self.memory_format,
            "optimizer": self.optimizer,
            "freezing": self.freezing,
            "threads": self.threads,
            "precision": self.precision,
            "autocast": self.autocast,
            "guards": self.guards,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CompileConfig:
        """Read what :meth:`to_dict` wrote; unknown keys are an error, missing ones default."""
        unknown = set(data) - set(cls.__dataclass_fields__)
        if unknown:
            raise UsageError(f"a compile setting has no key {sorted(unknown)[0]!r}")
        return cls(**data)

    def compile_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for ``torch.compile``; the backend is always named.

        Mode and options are never both present, and a value that is torch's default is left out.

        Raises:
            UsageError: the setting is eager, for which there is nothing to call.
        """
        if self.is_eager:
            raise UsageError("the eager setting is not compiled and has no arguments")
        kwargs: dict[str, Any] = {"backend": self.backend}
        if self.mode != "default":
            kwargs["mode"] = self.mode
        if self.options:
            kwargs["options"] = dict(self.options)
        if self.fullgraph:
            kwargs["fullgraph"] = True
        if self.dynamic is not None:
            kwargs["dynamic"] = self.dynamic
        return kwargs

    def label(self) -> str:
        """A short name for screens: ``inductor max-autotune · fullgraph · dynamic``."""
        if self == DEFAULT_INDUCTOR:
            return "plain torch.compile()"
        head = self.backend if self.mode == "default" else f"{self.backend} {self.mode}"
        parts = [head]
        parts += [f"{name}={value}" for name, value in self.options]
        if self.fullgraph:
            parts.append("fullgraph")
        if self.dynamic is not None:
            parts.append("dynamic" if self.dynamic else "static")
        if self.scope != "full":
            parts.append(self.scope)
        if self.freezing:
            parts.append("frozen weights")
        if self.memory_format != "default":
            parts.append(self.memory_format)
        if self.optimizer != "default":
            parts.append(f"{self.optimizer} optimizer")
        if self.threads is not None:
            parts.append(f"{self.threads} thread{'s' * (self.threads != 1)}")
        if self.precision != "default":
            parts.append(f"{self.precision} precision")
        if self.autocast != "none":
            parts.append(f"autocast {self.autocast}")
        if self.guards != "all":
            parts.append(f"guards {self.guards}")
        if self.environment != "default":
            parts.append(self.environment)
        return " · ".join(parts)

    def changes(self) -> int:
        """How many fields differ from plain ``torch.compile()``, each option being one."""
        mine, plain = self.to_dict(), DEFAULT_INDUCTOR.to_dict()
        fields = [name for name in plain if name != "options" and mine[name] != plain[name]]
        return len(fields) + len(self.options)

    @property
    def has_cuda_graphs(self) -> bool:
        """Whether CUDA graphs are asked for."""
        inductor = self.backend == "inductor" and _GRAPHS in self.turned_on
        return inductor or self.backend == "cudagraphs"

    @property
    def turned_on(self) -> tuple[tuple[str, OptionValue], ...]:
        """Options of the backend, those that the mode stands for included."""
        by_mode = _OF_MODES.get(self.mode, (("mode", self.mode),) * (self.mode != "default"))
        return (*by_mode, *self.options)

    @functools.cached_property
    def features(self) -> frozenset[str]:
        """What may change its speed, by name; plain eager has nothing."""
        kind = "eager" if self.is_eager else "compiled"
        found = set() if self.is_eager else {self.backend}
        for name, value in self.to_dict().items():
            if name not in _NO_EFFECT and value != getattr(DEFAULT_INDUCTOR, name):
                found.add(f"{name}={value} {kind}" if name in _OF_EAGER else f"{name}={value}")
        return frozenset(found | {f"{self.backend} {name}={v}" for name, v in self.turned_on})


EAGER = CompileConfig(backend="eager")
DEFAULT_INDUCTOR = CompileConfig()
