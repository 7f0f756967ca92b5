"""What a driver and its stations say to each other: one JSON object a line, nothing pickled."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from autocompile.execute.executor import Job


class Do(StrEnum):
    """What a station is told, and in brackets what else the line holds."""

    OPEN = "open"  # begin (files, place, isolation, jobs, memory_limit_bytes)
    START = "start"  # run a job (job, request, kept, alone)
    CANCEL = "cancel"  # kill a job (number)
    CLOSE = "close"  # end everything


class Say(StrEnum):
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
    """A job as JSON; folder and interpreter are paths that say nothing there."""
    data = {**vars(job), "toolchain": job.toolchain is not None}
    return {
        name: value for name, value in data.items() if name not in ("folder", "python")
    }
