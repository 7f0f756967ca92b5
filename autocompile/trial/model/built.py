"""The target that a fork server has built, for the trials that are forked from it.

A fork shares the pages of its origin: a model that is there costs a trial nothing on a CPU, as long
as it is not written to, and one copy to the device on a GPU.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autocompile.protocol.requests import Header, read_request
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.target import Target, seed_everything


@dataclass(frozen=True)
class Built:
    """A target on the CPU, and what a process would have done that has built it itself.

    Attributes:
        header: of the requests that may take it.
        printed: what the user's code has printed.
        resume_draws: has random numbers go on where they were when it had been built.
    """

    header: Header
    target: Target
    printed: str
    resume_draws: Callable[[], None]


target: Built | None = None


def build_once(folder: str) -> None:
    """Build the target of a request for all processes that are forked from this one.

    Raises whatever the user's code does.
    """
    global target
    header = read_request(Path(folder)).header
    with _printed() as printed, _on_one_thread():
        seed_everything(header.seed)
        made = build(header.target, import_target(header.target), header.calls)
        target = Built(header, made, printed(), _draws())


def built_for(header: Header) -> Target | None:
    """The target where this process has it from its fork server, as if built just now."""
    if target is None or _identity(target.header) != _identity(header):
        return None
    sys.stdout.write(target.printed)
    target.resume_draws()
    return target.target


def _identity(header: Header) -> tuple[Any, ...]:
    """All that a target on the CPU depends on."""
    return header.target, header.seed, header.calls


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
def _printed() -> Iterator[Callable[[], str]]:
    """Catch what this process and those that it starts print."""
    with tempfile.TemporaryFile() as file:
        kept = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield lambda: _text_of(file.fileno())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in zip((1, 2), kept, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)


def _text_of(descriptor: int) -> str:
    sys.stdout.flush()
    sys.stderr.flush()
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode("utf-8", "replace")


@contextlib.contextmanager
def _on_one_thread() -> Iterator[None]:
    """Have torch start no threads, which a fork would lose; what the user's code asks for holds."""
    usual, set_threads = torch.get_num_threads(), torch.set_num_threads
    torch.set_num_threads(1)
    asked = usual

    def note(number: int) -> None:
        nonlocal asked
        asked = number

    torch.set_num_threads = note  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.set_num_threads = set_threads
        set_threads(asked)
