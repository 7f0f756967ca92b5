"""What a run tells while it goes on; a screen is one that listens."""

from __future__ import annotations

from typing import Protocol

from autocompile.space.space import Setting
from autocompile.store.record import Record, Step

__all__ = ["Observer"]


class Observer(Protocol):
    """Watches a run."""

    def started(self, number: int, setting: Setting, role: str) -> None:
        """A trial begins."""

    def step(self, number: int, step: Step) -> None:
        """A trial has come to a step."""

    def ended(self, record: Record, left: int) -> None:
        """A trial is over, or was answered without a process; ``left`` settings are untried."""

    def racing(self, phase: str, batch_size: int | None, sides: int, number: int) -> None:
        """Set ``number`` of a race begins, of so many settings beside eager."""

    def warning(self, text: str) -> None:
        """Something that a user should know at once."""

    def tick(self) -> None:
        """About once a second."""
