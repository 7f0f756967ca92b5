"""Setting: one point of the space, a config at a batch size of a phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import DIMENSIONS
from autocompile.settings.phases import FORWARD

if TYPE_CHECKING:
    from autocompile.store.record import Record

__all__ = ["Cell", "Setting", "choices"]

Cell = tuple[str, int | None]  # phase and batch size, within which speeds are compared


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
            **{k: v if isinstance(v, str) else str(v).lower() for k, v in every.items()},
            "options": options or "none",
            "fullgraph": self.config.fullgraph,  # as in databases of earlier versions
            "batch_size": self.batch_size or 0,
        }


def choices(settings: Sequence[Setting]) -> dict[str, list[Any]]:
    """The values of each Optuna parameter, in the order in which they come first."""
    every = [s.params() for s in settings]
    return {name: list(dict.fromkeys(p[name] for p in every)) for name in every[0]}
