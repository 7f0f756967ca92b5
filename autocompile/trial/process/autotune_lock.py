"""Inductor's own benchmarks run alone too: a kernel chosen beside another trial is a guess.

Every timing that Inductor does (templates under max-autotune, Triton configurations, coordinate
descent) goes through the benchmarker classes of ``torch._inductor.runtime.benchmarking``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from autocompile.trial.process.channel import Channel

__all__ = ["make_autotuning_exclusive"]


def make_autotuning_exclusive(channel: Channel) -> int:
    """Wrap every ``benchmark*`` method of Inductor's benchmarkers for the rest of this process.

    Returns:
        How many methods were wrapped; 0 where this torch has none of them.
    """
    try:
        from torch._inductor.runtime import benchmarking
    except ImportError:
        return 0
    owners = [o for o in vars(benchmarking).values() if isinstance(o, type)]
    wrapped = 0
    for owner in (o for o in owners if o.__module__ == benchmarking.__name__):
        wrapped += _wrap(owner, "benchmark", channel)
    # A whole table of candidates in one go: each request stops the other trials once.
    with contextlib.suppress(ImportError, AttributeError):
        from torch._inductor.select_algorithm import AlgorithmSelectorCache

        wrapped += _wrap(AlgorithmSelectorCache, "benchmark_in_current_process", channel)
    with contextlib.suppress(ImportError, AttributeError):
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        wrapped += _wrap(CachingAutotuner, "benchmark_all_configs", channel)
    return wrapped


def _wrap(owner: type, prefix: str, channel: Channel) -> int:
    methods = {n: m for n, m in vars(owner).items() if n.startswith(prefix)}
    for name, method in methods.items():
        if callable(method):
            setattr(owner, name, _exclusively(method, channel))
        elif isinstance(method, classmethod):
            setattr(owner, name, classmethod(_exclusively(method.__func__, channel)))
    return len(methods)


def _exclusively(method: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with channel.exclusive():
            return method(*args, **kwargs)

    return timed
