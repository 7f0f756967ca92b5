"""What a run tells while it goes on; a screen is one that listens."""

from __future__ import annotations

from typing import Protocol

from autocompile.config import CompileConfig
from autocompile.record import Record, Step

__all__ = ["Observer"]


class Observer(Protocol):
    """Watches a run."""

    def phase(self, name: str, space: str, settings: int) -> None:
        """A phase begins."""

    def noise_floor(self, value: float) -> None:
        """Eager has been measured against itself."""

    def started(
        self, number: int, config: CompileConfig, batch_size: int | None, role: str
    ) -> None:
        """A trial begins."""

    def step(self, number: int, step: Step) -> None:
        """A trial has come to a step."""

    def ended(self, record: Record, left: int) -> None:
        """A trial is over, or was answered without a process."""

    def confirming(self, processes: int) -> None:
        """The best are about to be measured again, in so many processes."""

    def warning(self, text: str) -> None:
        """Something that a user should know at once."""

    def tick(self) -> None:
        """About once a second."""
