"""``autocompile export -o tuned.json --with-cache``: settings with their compiled code beside."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path

from autocompile.commands.bench import bench, end_of
from autocompile.errors import ExportError, UsageError
from autocompile.protocol.requests import SaveRequest
from autocompile.protocol.results import SaveResult
from autocompile.settings.tuned import Tuned
from autocompile.settings.tuned_set import TunedSet
from autocompile.space.plan import Plan
from autocompile.store.record import Outcome

__all__ = ["export_with_cache"]


def export_with_cache(settings: Tuned, path: Path, timeout_s: float) -> list[str]:
    """Compile settings once more in a process of their own, and keep what torch made.

    The code is beside the settings, as ``NAME.cache``. Returns lines that say what was written and
    what is not in it.

    Raises:
        ExportError: the settings can no longer be compiled.
        UsageError: the files cannot be written.
    """
    cache = path.with_suffix(".cache")
    plan = Plan(settings.target, device=settings.fingerprint.get("device"))
    with bench(plan, timeout_s, "spawn") as jobs:
        made = (jobs.folder / cache.name).absolute()
        ending = jobs.run(SaveRequest, settings=settings, file=str(made))
        if ending.outcome is not Outcome.OK:
            raise ExportError(
                f"the settings of {settings.target} cannot be compiled for a cache: "
                f"{ending.outcome.value}: {ending.message}",
                *end_of(jobs.log),
                hint="the same command without --with-cache",
            )
        said = SaveResult.read(ending.payload)
        told = [f"not in the cache: {why}" for why in said.left_out]
        if not made.exists():
            _write(path, settings)
            return [f"wrote {path}, and no cache: there is nothing to keep", *told]
        sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
        try:
            shutil.move(made, cache)
        except OSError as error:
            raise UsageError(f"cannot write {cache}: {error.strerror}") from error
    _write(path, dataclasses.replace(settings, cache={"file": cache.name, "sha256": sha256}))
    size = f"{cache.stat().st_size / 2**20:.1f} MiB"
    return [f"wrote {path} and {cache} ({size}: {said.graphs} graphs)", *told]


def _write(path: Path, settings: Tuned) -> None:
    try:
        path.write_text(TunedSet((settings,)).to_json(), "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
