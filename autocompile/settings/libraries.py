"""What is said of a library that calls models in loops of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autocompile.settings.phases import phase_of


@dataclass(frozen=True)
class Library:
    """A library whose loops call a model's methods, and use its settings themselves.

    Attributes:
        name: in the table of phases, and of its format of export.
        title: as people write it.
        kinds: of its targets, as reports name them.
        module: what its models are, with an article.
        calls: what it calls in place of ``model.forward()``, as the end of a sentence.
        use: the lines of a program that hand it the file of settings: import, then call.
    """

    name: str
    title: str
    kinds: tuple[str, ...]
    module: str
    calls: str
    use: tuple[str, str]

    def has(self, target: Mapping[str, Any], phases: Iterable[str]) -> bool:
        """Whether a target, as a report describes it, is one of the library's."""
        return bool(
            target.get("algorithm")
            or target.get("kind") in self.kinds
            or any(_is_its_own(name, self.name) for name in phases)
        )


def _is_its_own(name: str, library: str) -> bool:
    phase = phase_of(name)
    return phase.library == library and (phase.method or phase.is_update)
