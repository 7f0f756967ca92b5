"""Records as a run leaves them, made without one: for tests of what is concluded from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fakes import measured

from autocompile.execute.executor import Ending
from autocompile.search.records import to_record
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig, Setting
from autocompile.store import run as store
from autocompile.store.record import Checks, Record

__all__ = ["CHANNELS_LAST", "LITE", "MAX", "Run"]

LITE = CompileConfig(mode="lite")
MAX = CompileConfig(mode="max-autotune")
CHANNELS_LAST = CompileConfig(memory_format="channels_last")


class Run:
    """The records of one phase and batch size: eager is trial 0."""

    def __init__(self, phase: str = "forward", batch_size: int | None = 4) -> None:
        self.phase, self.batch_size = phase, batch_size
        self.records: list[Record] = []
        self.search(EAGER, 1.0)

    def search(self, config: CompileConfig, speedup: float, **more: Any) -> int:
        """A trial of the search that worked; its number."""
        fields = {k: more.pop(k) for k in ("duplicate_of", "wall_s") if k in more}
        return self.add(config, measured(speedup, **more), **fields)

    def race(
        self, trial: int, *speedups: float, together: bool = True, **more: Any
    ) -> None:
        """One side of as many sets as there are speed-ups; the sides of a set share a process."""
        config = self.records[trial].config
        for number, speedup in enumerate(speedups, 1):
            shared = {"raced_in": 1000 + number} if together else {}
            self.side(
                trial, measured(speedup, **{**shared, **more}), config, race=number
            )

    def side(
        self,
        trial: int,
        ending: Ending,
        config: CompileConfig | None = None,
        race: int = 1,
    ) -> None:
        """One side of a race, however it ended."""
        config = config or self.records[trial].config
        self.add(config, ending, role="confirm", repeats=trial, race=race)

    def add(self, config: CompileConfig, ending: Ending, **fields: Any) -> int:
        """A record of an ending; its number."""
        number = len(self.records)
        record = to_record(number, Setting(config, self.batch_size, self.phase), ending)
        shared = ending.payload.get("raced_in")
        fields.setdefault("checks", Checks(ending.payload.get("checks", "all")))
        self.records.append(dataclasses.replace(record, raced_in=shared, **fields))
        return number

    def plain(self, speedup: float, **more: Any) -> int:
        """A trial of plain ``torch.compile()``."""
        return self.search(DEFAULT_INDUCTOR, speedup, **more)


def run_of(about: Mapping[str, Any]) -> store.Run:
    """What ``run.json`` holds of a run that has ended, of as much of it as matters."""
    return store.Run.from_dict({"interrupted": False, **about})
