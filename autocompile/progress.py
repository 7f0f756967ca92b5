"""Progress: what a run tells while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autocompile.settings.config import Setting
from autocompile.store.record import Record, Step


class Progress:
    """Is told what happens during a run; this one ignores it."""

    def header(
        self, target: Mapping[str, Any], environment: Mapping[str, Any], run_dir: str
    ) -> None:
        """The run begins; the mappings are those of ``report.json``."""

    def searching(self, spaces: Mapping[str, str], budget: Any) -> None:
        """The search begins: the space of each phase in words, and ``total_s`` and ``spent_s``."""

    def started(self, number: int, setting: Setting) -> None:
        """A trial's process starts."""

    def step(self, number: int, step: Step) -> None:
        """A running trial enters a step."""

    def over(self, number: int) -> None:
        """A process of several trials has ended, each of which is told by itself."""

    def ended(self, record: Record, left: int) -> None:
        """A trial is over, with or without a process; ``left`` settings are still to try."""

    def racing(
        self, phase: str, batch_size: int | None, sides: int, number: int
    ) -> None:
        """Set ``number`` of a race begins, of so many settings beside eager."""

    def warning(self, text: str) -> None:
        """Something that a user should know at once."""

    def tick(self) -> None:
        """About a second has passed."""

    def close(self) -> None:
        """The run is over or interrupted; may be called twice."""
