"""The target that a fork server has built, for the trials that are forked from it.

A fork shares the pages of its origin: a model that is there costs a trial nothing on a CPU, as long
as it is not written to, and one copy to the device on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autocompile.protocol.requests import Header
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.target import Target, seed_everything

_OPENMP = re.compile(r"/\S*/lib(?:gomp|omp|iomp5)\b[^/\s]*\.so\S*")


@dataclass(frozen=True)
class Built:
    """A target on the CPU, and what a process would have done that has built it itself.

    Attributes:
        made_of: of the requests that may take it.
        printed: what the user's code has printed.
        folder: that it was left in.
        variables: of the environment that it has changed; None for those that it has removed.
        threads: that it has asked torch for; None: for no number.
        resume_draws: has random numbers go on where they were when it had been built.
    """

    made_of: str
    target: Target
    printed: bytes
    folder: str
    variables: dict[str, str | None]
    threads: int | None
    resume_draws: Callable[[], None]


target: Built | None = None


def build_once(
    header: Header, is_imported: Callable[[], None], printed: Callable[[], bytes]
) -> None:
    """Build the target for all processes that are forked from this one.

    ``is_imported`` is called between the import and the build. Raises whatever the user's code does.
    """
    global target
    before = dict(os.environ)
    with _on_one_thread() as asked:
        seed_everything(header.seed)
        module = import_target(header.target)
        is_imported()
        made = build(header.target, module, header.calls)
    names = before.keys() | os.environ.keys()
    variables = {
        name: os.environ.get(name)
        for name in names
        if before.get(name) != os.environ.get(name)
    }
    made_of, here = header.made_of, os.getcwd()
    target = Built(made_of, made, printed(), here, variables, asked(), _draws())


def built_for(header: Header) -> Target | None:
    """The target where this process has it from its fork server, as if built just now."""
    if target is None or target.made_of != header.made_of:
        return None
    sys.stdout.flush()
    left = target.printed
    while left:
        left = left[os.write(1, left) :]
    for name, value in target.variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.chdir(target.folder)
    if target.threads is not None:
        torch.set_num_threads(target.threads)
    target.resume_draws()
    return target.target


def _draws() -> Callable[[], None]:
    """Gives back the random state of now."""
    python, numpy, torchs = (
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
    )

    def resume() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torchs)

    return resume


@contextlib.contextmanager
def _on_one_thread() -> Iterator[Callable[[], int | None]]:
    """Have torch start no threads, which a fork would lose; yields for how many it is asked.

    ``torch.set_num_threads`` starts some, and leaves MKL in another state than that of a process in
    which nobody has called it. So OpenMP is told, and who has asked for a number gets it later.
    """
    usual, get_threads, set_threads = (
        torch.get_num_threads(),
        torch.get_num_threads,
        torch.set_num_threads,
    )
    runtimes = [ctypes.CDLL(path) for path in _openmp()]
    asked: int | None = None
    is_building = True

    def limit(number: int) -> None:
        for runtime in runtimes:
            runtime.omp_set_num_threads(number)

    def note(number: int) -> None:
        nonlocal asked
        if is_building and type(number) is int and number > 0:
            asked = number
        else:  # also for its error
            set_threads(number)

    def tell() -> int:
        return (asked or usual) if is_building else get_threads()

    limit(1)
    # The user's code may keep them: they work as torch's own once it is built.
    torch.set_num_threads, torch.get_num_threads = note, tell  # type: ignore[assignment]
    try:
        yield lambda: asked
    finally:
        is_building = False
        torch.set_num_threads, torch.get_num_threads = set_threads, get_threads
        limit(usual)


def _openmp() -> set[str]:
    """The files of the OpenMP runtimes in this process."""
    found: set[Any] = set(_OPENMP.findall(Path("/proc/self/maps").read_text()))
    return found
