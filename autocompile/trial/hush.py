"""Inductor's own benchmarks ask for quiet too: a kernel chosen beside a busy neighbour is a guess.

Every timing that Inductor does (templates under max-autotune, Triton configurations, coordinate
descent) goes through the benchmarker classes of ``torch._inductor.runtime.benchmarking``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from autocompile.trial.channel import Channel

__all__ = ["compile_offline", "hush_autotuning"]


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


def compile_offline(channel: Channel) -> None:
    """Let Inductor compile beside a neighbour that is timed, for the rest of this process.

    From the graph's arrival at ``compile_fx`` until its code is loaded nothing runs on the device
    but benchmarks, and those ask for quiet.
    """
    from torch._inductor import compile_fx as module

    inner = module.compile_fx

    @functools.wraps(inner)
    def compile_fx(*args: Any, **kwargs: Any) -> Any:
        with channel.offline():
            return inner(*args, **kwargs)

    module.compile_fx = compile_fx


def _in_quiet(method: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with channel.quiet():
            return method(*args, **kwargs)

    return timed
