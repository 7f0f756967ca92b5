"""From a request to a job on disk: the trial's folder, cache, environment and deadlines."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autocompile.errors import RunError
from autocompile.execute.exclusive import take
from autocompile.execute.executor import Job
from autocompile.protocol.requests import Header, ProbeRequest, Request, TrialRequest
from autocompile.store.files import make_folder, not_for_all, write_json
from autocompile.store.record import RunFolder

_LEAST_FREE_BYTES = 256 * 2**20  # of disk: less, and the next compile may not fit
_ENOUGH_SEEN = 3
_TOTAL = 3.0  # times the longest stay in one step
_ENVIRONMENT = {
    # One thread compiles in the process itself: no pool that outlives the compile.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def adaptive_timeout_s(cap_s: float, seen_s: Sequence[float]) -> float:
    """The longest that a compile may take, given what others of its kind took.

    Three times the 90th percentile, at least a minute, at most what the user allows; the cap while
    fewer than three have been seen.
    """
    if len(seen_s) < _ENOUGH_SEEN:
        return cap_s
    nearly_longest = sorted(seen_s)[int(0.9 * (len(seen_s) - 1) + 0.5)]
    return min(cap_s, max(60.0, 3 * nearly_longest))


@dataclass
class JobFactory:
    """Makes jobs for one run."""

    folder: RunFolder
    header: Header
    timeout_s: float  # of one step; three times that for all steps together
    memory_limit_bytes: int | None  # of one trial; None: no limit
    # of a trial that runs alone; None: no other limit
    memory_alone_bytes: int | None = None
    # Of environments but the tuner's own.
    pythons: Mapping[str, str] = field(default_factory=dict)
    _next: int | None = None

    def next_number(self) -> int:
        """The number of a new trial; each call gives another."""
        if self._next is None:
            self._next = max(self.folder.numbers(), default=-1) + 1
        self._next += 1
        return self._next - 1

    def job(
        self,
        request: Request,
        compile_timeout_s: float | None = None,
        fresh: bool = False,
        alone: bool = False,
        environment: str = "default",
    ) -> Job:
        """Write ``request.json`` and prepare the compiler's cache.

        It is empty but for the probe of the machine's vector instructions, so that compile time is
        that of a first compile. With ``alone`` no other trial runs beside it.
        """
        path, cache = self.folder.trial(request.number), self.cache_of(request.number)
        sides = len(request.sides) if isinstance(request, TrialRequest) else 1
        make_folder(path)
        self._demand_space()
        write_json(path / "request.json", request.to_dict())
        self._seed(cache, self._toolchain(environment))
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }
        return Job(
            request.number,
            path,
            self.timeout_s,
            compile_timeout_s,
            total_timeout_s=(_TOTAL + sides - 1) * self.timeout_s,
            memory_limit_bytes=(alone and self.memory_alone_bytes)
            or self.memory_limit_bytes,
            environment=caches | _ENVIRONMENT,
            fresh=fresh,
            python=self.pythons.get(environment),
            made_of=request.header.made_of,
        )

    def again(self, job: Job) -> Job:
        """The job of a second try: alone, in a fresh interpreter, with an empty cache again.

        Its compile may take as long as any step: what others took may have been why it failed.
        """
        names = {path: name for name, path in self.pythons.items()}
        environment = names.get(job.python or "", "default")
        self._seed(self.cache_of(job.number), self._toolchain(environment))
        return dataclasses.replace(
            job,
            fresh=True,
            compile_timeout_s=None,
            memory_limit_bytes=self.memory_alone_bytes or self.memory_limit_bytes,
        )

    def probe_job(
        self, request: ProbeRequest, compiles: bool, environment: str = "default"
    ) -> Job:
        """The job that looks at machine, torch and target before the first trial.

        With ``compiles`` it also prepares what all of Inductor's caches start with.
        """
        path = self.folder.path / _of("probe", environment)
        make_folder(path)
        folder = self._toolchain(environment).absolute() if compiles else None
        request = dataclasses.replace(
            request, toolchain=str(folder) if folder else None
        )
        write_json(path / "request.json", request.to_dict())
        return Job(
            request.number,
            path,
            self.timeout_s,
            memory_limit_bytes=self.memory_alone_bytes or self.memory_limit_bytes,
            environment=_ENVIRONMENT,
            python=self.pythons.get(environment),
            toolchain=folder,
            made_of=request.header.made_of,
            builds=bool(request.header.target),
        )

    def cache_of(self, number: int) -> Path:
        return (self.folder.cache / f"{number:04d}").absolute()

    def has_cache(self, number: int) -> bool:
        return self.cache_of(number).is_dir()

    def drop_cache(self, number: int | None = None) -> None:
        """Remove one trial's compiler cache, or all of them; nothing may be compiling there."""
        gone = self.folder.cache if number is None else self.cache_of(number)
        shutil.rmtree(gone, ignore_errors=True)

    def keep_caches(self, numbers: Collection[int]) -> None:
        """Remove the compiler caches of all trials but these."""
        for path in self.folder.cache.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) not in numbers:
                shutil.rmtree(path, ignore_errors=True)

    def _toolchain(self, environment: str) -> Path:
        """What all caches of an environment start with, as its probe has left it."""
        return self.folder.cache / _of("toolchain", environment)

    def _demand_space(self) -> None:
        free = shutil.disk_usage(self.folder.path).free
        if free < _LEAST_FREE_BYTES:
            raise RunError(
                f"only {free / 2**20:.0f} MiB are free on the disk of {self.folder.path}",
                "compiler caches need some; finished trials are safe",
                hint="free some space, then the same command with --resume",
            )

    def _seed(self, cache: Path, toolchain: Path) -> None:
        try:
            shutil.rmtree(cache, ignore_errors=True)
            if toolchain.is_dir():
                shutil.copytree(toolchain, cache)
            else:
                # Each by itself: the mode is not that of parents.
                for folder in (cache.parent, cache):
                    folder.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"cannot write the compiler cache {cache}: {error.strerror or error}",
                "finished trials are safe",
                hint="make it writable or free some space, then the same command with --resume",
            ) from error


def _of(name: str, environment: str) -> str:
    return name if environment == "default" else f"{name}-{environment}"


def is_held(folder: RunFolder) -> bool:
    """Whether a tuner is at work on the run."""
    try:
        with open(folder.path / "lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no such file, or it cannot be read
        return False
    return False


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Hold the run for this process."""
    try:
        file = open(folder.path / "lock", "wb", opener=not_for_all)  # noqa: SIM115
    except OSError as error:
        raise RunError(
            f"cannot write in {folder.path}: {error.strerror or error}",
            hint="--run-dir with a folder that you can write to",
        ) from error
    with file:
        is_free = True  # as far as a disk without locks can tell
        with contextlib.suppress(OSError):
            is_free = take(file)
        if not is_free:
            raise RunError(
                f"another autocompile is at work in {folder.path}",
                hint="wait for it, or give --run-dir another folder",
            )
        yield
