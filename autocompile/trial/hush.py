"""Inductor's own benchmarks ask for quiet too: a kernel chosen beside a busy neighbour is a guess.

Every timing that Inductor does (templates under max-autotune, Triton configurations, coordinate
descent) goes through the benchmarker classes of ``torch._inductor.runtime.benchmarking``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from autocompile.trial.channel import Channel

__all__ = ["hush_autotuning"]


def hush_autotuning(channel: Channel) -> int:
    """Wrap every ``benchmark*`` method of Inductor's benchmarkers for the rest of this process.

    Returns:
        How many methods were wrapped; 0 where this torch has none of them.
    """
    try:
        from torch._inductor.runtime import benchmarking
    except ImportError:
        return 0
    wrapped = 0
    for owner in vars(benchmarking).values():
        if not isinstance(owner, type) or owner.__module__ != benchmarking.__name__:
            continue
        for name, method in list(vars(owner).items()):
            if name.startswith("benchmark") and callable(method):
                setattr(owner, name, _in_quiet(method, channel))
                wrapped += 1
    return wrapped


def _in_quiet(method: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with channel.quiet():
            return method(*args, **kwargs)

    return timed
