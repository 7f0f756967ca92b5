"""TunedSet: what a file of settings holds, an entry for each machine they were measured on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autocompile.errors import UsageError
from autocompile.settings.tuned import SCHEMA, Tuned, unlike

if TYPE_CHECKING:
    from autocompile.store.report import Report

__all__ = ["TunedSet"]


@dataclass(frozen=True)
class TunedSet:
    """The settings of one target on one machine or several.

    As JSON, one entry is written alone; several are a list of what each would be alone.
    """

    entries: tuple[Tuned, ...]  # at least one, the one to prefer among equals first

    def fitting(self, here: Mapping[str, Any]) -> Tuned:
        """The entry of a machine, or else of the one that is most like it.

        Args:
            here: as :func:`autocompile.runtime.machine.describe` gives it.
        """

        def distance(entry: Tuned) -> tuple[bool, bool, int]:
            found = unlike(entry.fingerprint, here)
            return "device" in found, "device_name" in found, len(found)

        chosen = min(self.entries, key=distance)
        if len(self.entries) == 1:  # it may be the chosen one of more
            return chosen
        others = (str(e.fingerprint.get("device_name")) for e in self.entries if e is not chosen)
        return replace(chosen, others=tuple(others))

    def to_dict(self) -> dict[str, Any]:
        entries = [entry.to_dict() for entry in self.entries]
        if len(entries) == 1:
            return entries[0]
        return {"autocompile_settings": SCHEMA, "machines": entries}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "the request") -> TunedSet:
        """Read what :meth:`to_dict` gave; ``where`` names it in errors."""
        if "machines" not in data or data.get("autocompile_settings") != SCHEMA:
            return cls((Tuned.from_dict(data, where),))
        found = data["machines"]
        if not isinstance(found, list) or not found:
            raise UsageError(
                f"{where} is damaged: it lists no machines",
                hint="autocompile export RUN RUN -o tuned.json",
            )
        return cls(
            tuple(
                Tuned.from_dict(
                    entry if isinstance(entry, Mapping) else {}, f"entry {number} of {where}"
                )
                for number, entry in enumerate(found, 1)
            )
        )

    @classmethod
    def from_reports(cls, reports: Mapping[str, Report]) -> TunedSet:
        """The settings of reports of one target, by name."""
        entries: dict[str, Tuned] = {}
        for name, report in reports.items():
            entry = Tuned.from_report(report)
            for other, earlier in entries.items():
                if earlier.fingerprint == entry.fingerprint:
                    raise UsageError(
                        f"{other} and {name} are of the same machine, and a file holds one entry "
                        f"for each: {entry.fingerprint['device_name']}",
                        hint=f"autocompile show {other} {name}   (shows which is faster)",
                    )
            entries[name] = entry
        return cls(tuple(entries.values()))

    @classmethod
    def read(cls, source: Any) -> TunedSet:
        """Settings of a file, a mapping as in such a file, a Result, or of settings."""
        if isinstance(source, TunedSet):
            return source
        if isinstance(source, Tuned):
            return cls((source,))
        if isinstance(source, Mapping):
            return cls.from_dict(source, "the mapping")
        if not isinstance(source, (str, os.PathLike)):
            return cls((Tuned.from_report(source.report),))
        path = Path(source)
        try:
            data = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise UsageError(
                f"cannot read {path}: {error.strerror}", hint=f"autocompile export last -o {path}"
            ) from None
        except ValueError as error:
            raise UsageError(f"{path} is no JSON: {error}") from None
        found = cls.from_dict(data if isinstance(data, Mapping) else {}, str(path))
        folder = str(path.resolve().parent)
        return cls(tuple(replace(entry, folder=folder) for entry in found.entries))
