"""Runs the task of a request and sends its result."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from autocompile.protocol import requests
from autocompile.protocol.events import FAILED_RANK, MEETING, RANKS_ARE_OVER
from autocompile.rllib.in_algorithm import compare_target
from autocompile.runtime import ranks
from autocompile.store.reading import plain
from autocompile.store.record import Outcome, Step, TaskResult
from autocompile.store.targets import split_spec
from autocompile.trial import failures
from autocompile.trial.channel import Channel
from autocompile.trial.measure import environment
from autocompile.trial.supervisor import ranks_asked
from autocompile.trial.tasks.probing import probe
from autocompile.trial.tasks.saving import save
from autocompile.trial.tasks.trial import new_result, trial

_LATER_S = 0.3  # for the supervisor to end what only follows another rank's death
_Task = Callable[[Any, Channel, Any], None]
_TASKS: dict[type[requests.Request], tuple[_Task, Callable[[Any], TaskResult]]] = {
    requests.ProbeRequest: (probe, lambda _: requests.ProbeResult()),
    requests.TrialRequest: (trial, new_result),
    requests.SaveRequest: (save, lambda _: requests.SaveResult()),
    requests.AlgorithmRequest: (compare_target, lambda _: requests.AlgorithmResult()),
}


def run(
    folder: str,
    descriptor: int | None = None,
    nonce: str = "",
    control: int | None = None,
    fork_server: bool = False,
    rank: int = 0,
) -> None:
    """Do what ``folder/request.json`` asks and send how it ended; for the rest see Channel.

    Of several ranks only rank 0 speaks; what another prints goes to a log of its own.
    """
    home = place = Path(folder).resolve()  # found now: the target may change directory
    if rank:
        descriptor, control = _be_silent(place / f"rank{rank}.txt"), None
    channel = Channel(descriptor, nonce, control, place, fork_server)
    result: TaskResult = TaskResult()
    request = None
    try:
        request = requests.read_request(place)
        home = Path(split_spec(request.header.target)[0]).resolve().parent
        task, made = _TASKS[type(request)]
        result = made(request)
        if ranks_asked(place) > 1:
            _join_ranks(request.header, rank, place)
        task(request, channel, result)
        ranks.here().wait()  # all have done it, or none
        result.outcome = Outcome.OK
        channel.current = Step.EXIT
    except (
        BaseException
    ) as error:  # SystemExit and KeyboardInterrupt of the user's code as well
        traceback.print_exc()
        failures.note_failure(result, error, channel.current, home)
        if request is None:
            result.outcome = Outcome.INFRASTRUCTURE
        if ranks_asked(place) > 1:
            result.step = channel.current
            _end_all_ranks(result, place, rank)
    channel.result(result)
    if ranks.here().are_several:
        if not rank:
            (place / RANKS_ARE_OVER).touch()
        ranks.here().wait()
    # The result is final: tearing the interpreter down costs a second.
    if descriptor is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _be_silent(log: Path) -> int:
    """Let what this process prints go to a file, and what it would send to nobody."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    return os.open(os.devnull, os.O_WRONLY)


def _join_ranks(header: requests.Header, rank: int, place: Path) -> None:
    """Be one of the ranks of a training program, as a process that torchrun has started."""
    count = str(header.ranks)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    device = environment.pick_device(header.device)
    environment.demand_devices(device, header.ranks)
    ranks.join(place / MEETING, device.type)


def _end_all_ranks(result: TaskResult, place: Path, rank: int) -> NoReturn:
    """Leave the result of the first rank that failed, which ends all.

    What the others raise then, in a collective that nobody enters, comes too late.
    """
    own = place / f"{FAILED_RANK}.{rank}"
    own.write_text(json.dumps(plain(result), default=str))
    time.sleep(_LATER_S)
    with contextlib.suppress(FileExistsError):
        os.link(own, place / FAILED_RANK)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
