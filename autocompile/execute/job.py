"""From a request to a job on disk: the trial's folder, its cache, its environment."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autocompile.errors import RunError
from autocompile.execute.executor import Job
from autocompile.record import SCHEMA, RunFolder, write_json

try:
    import fcntl
except ImportError:  # Windows: two tuners on one run are not noticed there
    fcntl = None  # type: ignore[assignment]

__all__ = ["Workshop", "locked"]


@dataclass(frozen=True)
class Workshop:
    """Makes jobs for one run.

    Attributes:
        folder: the run.
        base: what every request of the run has in common: target, device, seed.
        timeout_s: the longest stay in one step.
        memory_limit_bytes: the most memory of one trial; None: no limit.
    """

    folder: RunFolder
    base: Mapping[str, Any]
    timeout_s: float
    memory_limit_bytes: int | None

    def next_number(self) -> int:
        """The number that the next trial of the run gets."""
        numbers = self.folder.numbers()
        return numbers[-1] + 1 if numbers else 0

    def job(self, number: int, request: Mapping[str, Any], cache_of: int | None = None) -> Job:
        """Write ``request.json`` and prepare the compiler's cache.

        Args:
            number: of the trial.
            request: what to do, on top of what the run has in common.
            cache_of: run on the cache of that trial (warm); None for an empty one (cold), in
                which only the probe of the machine's vector instructions is known.
        """
        path = self.folder.trial(number)
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "request.json", {**self.base, **request, "number": number})
        cache = self.folder.cache / f"{number if cache_of is None else cache_of:04d}"
        if cache_of is None:
            shutil.rmtree(cache, ignore_errors=True)
            with contextlib.suppress(OSError):
                shutil.copytree(self.toolchain, cache)
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            # One thread compiles in the process itself: no pool that outlives the compile.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        return Job(number, path, self.timeout_s, self.memory_limit_bytes, environment)

    @property
    def toolchain(self) -> Any:
        """Where the probe leaves what all caches start with."""
        return self.folder.cache / "toolchain"

    def has_cache(self, number: int) -> bool:
        """Whether the compiler cache of a trial is still there."""
        return (self.folder.cache / f"{number:04d}").is_dir()

    def drop_cache(self, number: int | None = None) -> None:
        """Remove one trial's compiler cache, or all of them; nothing may be compiling there."""
        gone = self.folder.cache if number is None else self.folder.cache / f"{number:04d}"
        shutil.rmtree(gone, ignore_errors=True)

    def probe_job(self, request: Mapping[str, Any], toolchain: bool) -> Job:
        """The job that looks at machine, torch and target before the first trial.

        Args:
            request: what to look at.
            toolchain: also prepare what all of Inductor's caches start with.
        """
        path = self.folder.path / "probe"
        path.mkdir(parents=True, exist_ok=True)
        folder = str(self.toolchain) if toolchain else None
        body = {"kind": "probe", "schema": SCHEMA, "toolchain": folder}
        write_json(path / "request.json", {**self.base, **request, **body})
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        return Job(-1, path, self.timeout_s, self.memory_limit_bytes, environment)


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Hold the run for this process.

    Raises:
        RunError: another tuner holds it.
    """
    if fcntl is None:
        yield
        return
    with open(folder.path / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"another autocompile is at work in {folder.path}",
                hint="wait for it, or give --run-dir another folder",
            ) from None
        yield
