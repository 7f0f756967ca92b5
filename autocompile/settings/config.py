"""CompileConfig: how torch.compile and what surrounds it are set, in one canonical form.

A Setting is a config at a batch size of a phase: one point of the space.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autocompile.errors import NEWER, UsageError
from autocompile.settings.backends import BACKENDS, Backend, OptionValue
from autocompile.settings.dimensions import DDP, DIMENSIONS, FSDP, Dimension
from autocompile.settings.phases import (
    FORWARD,
    OPTIMIZER_STEP,
    phase_of,
)

if TYPE_CHECKING:
    from autocompile.store.record import Record


# What each mode turns on (torch._inductor.list_mode_options): options by another name.
_GRAPHS = ("triton.cudagraphs", True)
_AUTOTUNE = (("max_autotune", True), ("coordinate_descent_tuning", True))
_OF_MODES: Mapping[str, tuple[tuple[str, OptionValue], ...]] = {
    "reduce-overhead": (_GRAPHS,),
    "max-autotune-no-cudagraphs": _AUTOTUNE,
    "max-autotune": (_GRAPHS, *_AUTOTUNE),
}
_COARSE = ("triton.cudagraphs", "max_autotune", "cpp_wrapper", "weights")
# Inductor puts texts into a compiler's command line, and loads from places that options name. Files
# of settings come from others, so a text is a word, and no option names a place.
_WORD = re.compile(r"\w[\w.,-]*|-O[0-3]", re.ASCII)
_PLACE = re.compile("remote|(cxx|dir|home|root|path|library|libs)$")
_PLAIN_FAMILIES = {"scope=model", "freezing=False"}
Cell = tuple[str, int | None]  # phase and batch size, within which speeds are compared


@dataclass(frozen=True)
class CompileConfig:
    """One setting of ``torch.compile``; equal settings compare and hash equal.

    ``options`` may be given as a mapping. In eager mode, what needs a compiler has its default.
    """

    # a name that Dynamo knows, or "eager" for what is not compiled
    backend: str = "inductor"
    # an Inductor mode; "default" for every backend that has no modes
    mode: str = "default"
    options: tuple[tuple[str, OptionValue], ...] = ()  # of Inductor, as sorted pairs
    fullgraph: bool = False  # a graph break is an error
    dynamic: bool | None = None  # None lets torch decide after the first recompile
    recompile_limit: int | None = None  # programs for one function; None is torch's 8
    # What is compiled: "model", "regional" for the blocks that the model repeats, each by itself,
    # or "step" for a whole training step: forward and backward passes, loss and optimizer. A phase
    # without a model compiles its function.
    scope: str = "model"
    # Inductor takes weights as constants; read again when they change
    freezing: bool = False
    memory_format: str = "default"  # of the weights of convolutions
    optimizer: str = "default"  # how it steps; "default" is as the target made it
    # how DistributedDataParallel is made around the model
    ddp: str = "default"
    # what fully_shard is given
    fsdp: str = "default"
    # of torch's operators on a CPU; None for as many as torch takes
    threads: int | None = None
    # of float32 products, as in torch.set_float32_matmul_precision
    precision: str = "default"
    autocast: str = "none"  # the lower precision that torch.autocast computes in
    # the name of the interpreter that the setting runs under
    environment: str = "default"

    def __post_init__(self) -> None:
        try:
            pairs: Any = dict(self.options).items()
        except (TypeError, ValueError):
            raise UsageError(
                f"options {self.options!r} are not names with a value each"
            ) from None
        object.__setattr__(
            self, "options", tuple(sorted((str(k), v) for k, v in pairs))
        )
        for name, value in self.options:
            is_word = isinstance(value, str) and _WORD.fullmatch(value)
            is_number = isinstance(value, (bool, int, float)) or value is None
            if not (is_word or is_number) or (value and _PLACE.search(name)):
                raise UsageError(
                    f"the option {name}={value!r} is not taken",
                    "an option is a number, true, false or a word: a path, a flag or a cache "
                    "elsewhere could bring in a program",
                )
        if self.mode != "default" and self.options:
            raise UsageError(
                f"mode {self.mode!r} and options {dict(self.options)} cannot go together",
                "torch.compile takes either a mode or options",
            )
        for d, value in self.changed():
            if type(value) not in d.kinds:
                raise UsageError(f"{d.name} {value!r} is not a value of this setting")
            if str in d.kinds and d.choices and value not in d.choices:
                raise UsageError(
                    f"{d.name} {value!r} is none of {', '.join(d.choices)}"
                )
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"{self.threads} threads are too few")
        if self.is_eager:
            for d in DIMENSIONS:
                if d.needs_compiler:
                    object.__setattr__(self, d.name, d.default)

    def changed(self, applied: str = "") -> list[tuple[Dimension, Any]]:
        """The dimensions that differ from plain ``torch.compile()``, with their values.

        ``applied``: only those that are applied to this (:attr:`Dimension.applied`).
        """
        return [
            (d, value)
            for d in DIMENSIONS
            if (value := getattr(self, d.name)) != d.default
            and applied in ("", d.applied)
        ]

    @property
    def entry(self) -> Backend:
        """What the table of backends has for its backend."""
        return BACKENDS.get(self.backend, Backend())

    @property
    def is_eager(self) -> bool:
        return self.backend == "eager"

    @property
    def isolates_recompiles(self) -> bool:
        """Whether its limit of programs is of its own compile alone, where torch can do so."""
        # Blocks share programs.
        return self.recompile_limit is not None and self.scope != "regional"

    @functools.cached_property
    def is_plain_eager(self) -> bool:
        """Whether it is the target as it stands, under any interpreter."""
        return replace(self, environment="default") == EAGER

    @property
    def is_baseline(self) -> bool:
        """Whether it is the target as it stands, here: all speed-ups are over it."""
        return self == EAGER

    @property
    def bakes_weights(self) -> bool:
        """Whether new weights cost something: they are constants of what was compiled."""
        return self.freezing or dict(self.options).get("weights") == "baked"

    @property
    def caution(self) -> str:
        """What a program must not do while it uses the setting and nothing checks; mostly empty."""
        if not self.bakes_weights:
            return ""
        return (
            "the weights are constants of the compiled code: it sees new ones, but not what is "
            "written through `.data`, as some merges of adapters and averages do: write under "
            "torch.no_grad() instead"
        )

    @property
    def wrapping(self) -> str:
        """How ranks train the model together where that is not as usual, as a call; mostly empty."""
        if of_ddp := _arguments(DDP[self.ddp]):
            return f"DistributedDataParallel(model{of_ddp})"
        of_fsdp = _arguments(FSDP[self.fsdp])
        return f"fully_shard(module{of_fsdp})" if of_fsdp else ""

    @property
    def eager_reference(self) -> CompileConfig:
        """Eager mode with what this setting changes of the numbers by intention."""
        return CompileConfig(
            "eager", **{d.name: v for d, v in self.changed() if d.by_name}
        )

    @property
    def of_optimizer(self) -> CompileConfig:
        """What of a setting of a library's own updates is about their optimizers."""
        # torch.compile passes over a fused step.
        backend = "eager" if self.optimizer == "fused" else self.backend
        return replace(
            self,
            backend=backend,
            memory_format="default",
            scope="model",
            autocast="none",
        )

    def of_optimizer_in(self, phase: str) -> CompileConfig:
        """What of a phase's setting is about its optimizers: how each steps."""
        if phase_of(phase).is_update:
            return self.of_optimizer
        if phase == OPTIMIZER_STEP:
            return self
        backend = "inductor" if self.optimizer == "compiled" else "eager"
        # Of all that the step does.
        process = self.process if self.scope != "step" else {}
        return CompileConfig(backend, optimizer=self.optimizer, **process)

    def to_dict(self) -> dict[str, Any]:
        """The setting as JSON, every key always present (``report.json``, schema 1)."""
        return {d.name: getattr(self, d.name) for d in DIMENSIONS} | {
            "options": dict(self.options)
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], phase: str = "") -> CompileConfig:
        """Read what :meth:`to_dict` wrote in a phase; missing keys have their defaults."""
        # Of older files: the whole step, where there is one.
        if data.get("scope") == "full":
            data = {**data, "scope": "step" if phase_of(phase).whole else "model"}
        if (guards := data.get("guards", "all")) != "all":
            raise UsageError(
                f"the setting drops checks of compiled code (guards {guards!r})",
                "this version of autocompile does not",
                hint="tune again",
            )
        data = {name: value for name, value in data.items() if name != "guards"}
        try:
            if unknown := set(data) - set(cls.__dataclass_fields__):
                raise UsageError(f"a compile setting has no key {min(unknown)!r}")
            return cls(**data)
        except UsageError as error:
            raise UsageError(error.what, *error.details, hint=NEWER) from None

    def compile_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for ``torch.compile``: the backend, and what is not torch's default."""
        kwargs = {
            "backend": self.backend,
            **{d.name: v for d, v in self.changed("argument")},
        }
        return kwargs | ({"options": dict(self.options)} if self.options else {})

    def label(self) -> str:
        """A short name for screens: ``inductor max-autotune · fullgraph · dynamic``."""
        if self == DEFAULT_INDUCTOR:
            return "plain torch.compile()"
        head = self.backend if self.mode == "default" else f"{self.backend} {self.mode}"
        named = (
            d.label(v) for d, v in self.changed() if d.name not in ("backend", "mode")
        )
        return " · ".join((head, *named))

    def changes(self) -> int:
        """How many fields differ from plain ``torch.compile()``, each option being one."""
        return len(self.changed()) + len(self.options) - bool(self.options)

    @property
    def trains(self) -> bool:
        """Whether gradients can be computed through what it compiles."""
        return not self.freezing and self.entry.trains

    @property
    def process(self) -> dict[str, Any]:
        """What torch has one of for the whole process, and this sets while it runs."""
        return {d.name: value for d, value in self.changed("process")}

    @property
    def has_cuda_graphs(self) -> bool:
        inductor = self.backend == "inductor" and _GRAPHS in self.turned_on
        return inductor or self.backend == "cudagraphs"

    @property
    def turned_on(self) -> tuple[tuple[str, OptionValue], ...]:
        """Options of the backend, those that the mode stands for included."""
        by_mode = _OF_MODES.get(
            self.mode, (("mode", self.mode),) * (self.mode != "default")
        )
        return (*by_mode, *self.options)

    @functools.cached_property
    def families(self) -> frozenset[str]:
        """What changes all of its compiled code, by name: a search looks at each once.

        Options that tune a part of the code belong to the family without them.
        """
        if self.is_eager:
            return frozenset()
        coarse = {f"{name}={v}" for name, v in self.turned_on if name in _COARSE}
        if self.mode not in ("default", *_OF_MODES):
            coarse.add(f"mode={self.mode}")
        coarse |= {
            f"{n}={getattr(self, n)}" for n in ("scope", "freezing")
        } - _PLAIN_FAMILIES
        if self.dynamic is not None:
            coarse.add(f"dynamic={self.dynamic}")
        return frozenset(f"{self.backend} {name}".strip() for name in (coarse or {""}))

    @property
    def needs_own_process(self) -> bool:
        """Whether no other setting can run in its process.

        It sets something for the whole process, or its backend does; or eager mode, which it is
        compared with, is another one there.
        """
        return bool(
            self.process
            or self.entry.changes_process
            or self.eager_reference != EAGER
            or self.environment != "default"
        )

    @property
    def programs(self) -> int:
        """How many programs it compiles for one function, about: torch's own choice is two."""
        if self.dynamic is False:
            return (self.recompile_limit or 8) // 2
        return 1 if self.dynamic else 2

    @functools.cached_property
    def features(self) -> frozenset[str]:
        """What may change its speed, by name; plain eager has nothing."""
        kind = "eager" if self.is_eager else "compiled"
        names = set() if self.is_eager else {self.backend}
        for d, value in self.changed():
            if d.effect != "none":
                names.add(f"{d.name}={value}" + f" {kind}" * (d.effect == "per kind"))
        return frozenset(
            names | {f"{self.backend} {name}={v}" for name, v in self.turned_on}
        )


EAGER = CompileConfig(backend="eager")
DEFAULT_INDUCTOR = CompileConfig()


@dataclass(frozen=True)
class Setting:
    """A config at a batch size of a phase."""

    config: CompileConfig
    batch_size: int | None
    phase: str = FORWARD

    @classmethod
    def of(cls, record: Record) -> Setting:
        return cls(record.config, record.batch_size, record.phase)

    @property
    def cell(self) -> Cell:
        return self.phase, self.batch_size

    @property
    def plainer_twin(self) -> Setting | None:
        """The same without ``fullgraph``, whose result answers this one if there is one graph.

        With ``fullgraph`` torch does a few microseconds more at each call: it is never faster.
        ``dynamic=False`` is no such twin of ``None``: setting it at each call costs twice as much.
        """
        plain = replace(self.config, fullgraph=False)
        return replace(self, config=plain) if self.config.fullgraph else None

    def params(self) -> dict[str, Any]:
        """As Optuna stores it; ``None`` is spelled out, since dashboards drop it."""
        options = ",".join(f"{name}={value}" for name, value in self.config.options)
        every = {d.name: getattr(self.config, d.name) for d in DIMENSIONS}
        return {
            "phase": self.phase,
            **{
                k: v if isinstance(v, str) else str(v).lower() for k, v in every.items()
            },
            "options": options or "none",
            "batch_size": self.batch_size or 0,
        }


def choices(settings: Sequence[Setting]) -> dict[str, list[Any]]:
    """The values of each Optuna parameter, in the order in which they come first."""
    every = [s.params() for s in settings]
    return {name: list(dict.fromkeys(p[name] for p in every)) for name in every[0]}


def _arguments(given: Mapping[str, Any]) -> str:
    """As they stand in a call, after the first."""
    return "".join(f", {name}={value}" for name, value in given.items())
