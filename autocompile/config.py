"""CompileConfig: one compile setting, in one canonical form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autocompile.errors import UsageError

__all__ = ["DEFAULT_INDUCTOR", "EAGER", "CompileConfig"]

OptionValue = bool | int | float | str | None


@dataclass(frozen=True)
class CompileConfig:
    """One setting of ``torch.compile``; equal settings compare and hash equal.

    Attributes:
        backend: a name that Dynamo knows, or ``"eager"`` for a model that is not compiled.
        mode: an Inductor mode; ``"default"`` for every backend that has no modes.
        options: Inductor options as sorted pairs; a mapping is accepted.
        fullgraph: whether a graph break is an error.
        dynamic: ``None`` lets torch decide after the first recompile.
        scope: ``"full"`` compiles the phase's function as one.
        environment: the name of the interpreter that the setting runs under.

    Raises:
        UsageError: a mode and options together (torch refuses the pair).
    """

    backend: str = "inductor"
    mode: str = "default"
    options: tuple[tuple[str, OptionValue], ...] = ()
    fullgraph: bool = False
    dynamic: bool | None = None
    scope: str = "full"
    environment: str = "default"

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
        if self.backend == "eager":  # nothing is compiled, so nothing else has a meaning
            for name, value in (("mode", "default"), ("options", ()), ("fullgraph", False)):
                object.__setattr__(self, name, value)
            object.__setattr__(self, "dynamic", None)
            object.__setattr__(self, "scope", "full")

    @property
    def is_eager(self) -> bool:
        """Whether the model runs uncompiled."""
        return self.backend == "eager"

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
        if self.is_eager:
            return "eager"
        if self == DEFAULT_INDUCTOR:
            return "torch.compile() as it comes"
        head = self.backend if self.mode == "default" else f"{self.backend} {self.mode}"
        parts = [head]
        parts += [f"{name}={value}" for name, value in self.options]
        if self.fullgraph:
            parts.append("fullgraph")
        if self.dynamic is not None:
            parts.append("dynamic" if self.dynamic else "static")
        if self.scope != "full":
            parts.append(self.scope)
        if self.environment != "default":
            parts.append(self.environment)
        return " · ".join(parts)

    def changes(self) -> int:
        """How many fields differ from ``torch.compile()`` as it comes."""
        mine, plain = self.to_dict(), DEFAULT_INDUCTOR.to_dict()
        return sum(mine[name] != plain[name] for name in plain)


EAGER = CompileConfig(backend="eager")
DEFAULT_INDUCTOR = CompileConfig()
