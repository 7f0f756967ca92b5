"""Runs the task of a request and sends its result."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autocompile.protocol import requests
from autocompile.rllib.in_algorithm import compare_target
from autocompile.store.record import Outcome, Step, TaskResult
from autocompile.store.targets import split_spec
from autocompile.trial import failures
from autocompile.trial.channel import Channel
from autocompile.trial.tasks.probing import probe
from autocompile.trial.tasks.saving import save
from autocompile.trial.tasks.trial import new_result, trial

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
) -> None:
    """Do what ``folder/request.json`` asks and send how it ended; for the rest see Channel."""
    home = place = Path(folder).resolve()  # found now: the target may change directory
    channel = Channel(descriptor, nonce, control, place, fork_server)
    result: TaskResult = TaskResult()
    request = None
    try:
        request = requests.read_request(place)
        home = Path(split_spec(request.header.target)[0]).resolve().parent
        task, made = _TASKS[type(request)]
        result = made(request)
        task(request, channel, result)
        result.outcome = Outcome.OK
        channel.current = Step.EXIT
    except (
        BaseException
    ) as error:  # SystemExit and KeyboardInterrupt of the user's code as well
        traceback.print_exc()
        failures.note_failure(result, error, channel.current, home)
        if request is None:
            result.outcome = Outcome.INFRASTRUCTURE
    channel.result(result)
    # The result is final: tearing the interpreter down costs a second.
    if descriptor is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
