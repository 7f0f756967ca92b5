"""What a driver and its stations say to each other: one JSON object a line, nothing pickled."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from autocompile.execute.executor import Ending, Job
from autocompile.store.record import Outcome, Step


class Do(str, Enum):
    """What a station is told, and in brackets what else the line holds."""

    OPEN = "open"  # begin (files, place, isolation, jobs, memory_limit_bytes)
    START = "start"  # run a job (job, request, kept, alone)
    CANCEL = "cancel"  # kill a job (number)
    CLOSE = "close"  # end everything


class Say(str, Enum):
    """What a station says."""

    HELLO = "hello"  # it is there (autocompile, slots)
    STEPPED = "stepped"  # a job has begun a step (number, step)
    ENDED = "ended"  # a job has ended (number, ending, files, slots)
    TOLD = "told"  # for the user (text)
    FAILED = "failed"  # it cannot go on (text)
    CLOSED = "closed"  # nothing of it is alive


def encode(kind: Do | Say, **fields: Any) -> str:
    """One message as a line, without its end."""
    name = "do" if isinstance(kind, Do) else "say"
    return json.dumps({name: kind.value, **fields})


def decode(line: str | bytes) -> dict[str, Any]:
    """A message, whose kind is under ``do`` or ``say``; a ValueError where it is none."""
    message = json.loads(line)
    if not isinstance(message, dict) or not {"do", "say"} & message.keys():
        raise ValueError(f"no message: {line[:80]!r}")
    for name, kinds in (("do", Do), ("say", Say)):
        if name in message:
            message[name] = kinds(message[name])
    return message


def sent_job(job: Job) -> dict[str, Any]:
    """A job as JSON; the folder is the station's own business."""
    data = dataclasses.asdict(job)
    del data["folder"], data["python"]  # a path here says nothing there
    data["toolchain"] = job.toolchain is not None
    return data


def job_of(data: Mapping[str, Any], folder: Path, **own: Any) -> Job:
    """The job that was sent, in a folder of this machine, with what is this machine's ``own``."""
    return Job(**{**data, "folder": folder, **own})


def sent_ending(ending: Ending) -> dict[str, Any]:
    """An ending as JSON."""
    data = dataclasses.asdict(ending)
    return {**data, "outcome": ending.outcome.value, "step": ending.step.value}


def ending_of(data: Mapping[str, Any]) -> Ending:
    """The ending that was sent; a KeyError, TypeError or ValueError where it is none."""
    own = {**data, "outcome": Outcome(data["outcome"]), "step": Step(data["step"])}
    own["spans"] = tuple((str(s), float(a), float(b)) for s, a, b in data["spans"])
    own["pauses"] = tuple((float(a), float(b)) for a, b in data["pauses"])
    return Ending(**own)
