"""What the process can tell about itself: when the device is done, and what Dynamo did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

__all__ = [
    "DynamoFacts",
    "compilations",
    "dynamo_facts",
    "reset_dynamo",
    "synchronizer",
]


def synchronizer(device: torch.device) -> Callable[[], None]:
    """A function that waits until the device has done its work."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


@dataclass(frozen=True)
class DynamoFacts:
    """What Dynamo has counted since the last reset.

    Attributes:
        graphs: graphs handed to the backend.
        graph_breaks: places where a graph had to end.
        skipped_frames: functions that Dynamo began and gave up as a whole, as it does where a graph
            breaks inside a loop; it counts no graph break then.
        recompiles: compilations of code that had been compiled before.
        break_reasons: torch's own words, most frequent first, at most five.
        skip_reasons: likewise, of what Dynamo met where it gave up a function.
        recompile_reasons: likewise, in the order of their coming.
        cudagraph_skips: how often Inductor gave up CUDA graphs.
    """

    graphs: int
    graph_breaks: int
    skipped_frames: int
    recompiles: int
    break_reasons: tuple[str, ...]
    skip_reasons: tuple[str, ...]
    recompile_reasons: tuple[str, ...]
    cudagraph_skips: int


def reset_dynamo(backend: str) -> None:
    """Start counting from nothing; a graph that falls back to eager becomes an error.

    Imports what the backend needs of torch, so that compile time is compile time: an import is
    paid once in a process, whatever is compiled.
    """
    import torch._dynamo

    if backend == "inductor":
        import torch._inductor.compile_fx

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    # Past the recompile limit, and with suppress_errors where a backend fails, torch would go on in
    # eager without a word that a program can see. It refuses to have both set.
    torch._dynamo.config.suppress_errors = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def _first_line(text: object) -> str:
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


def compilations() -> int:
    """Counts up whenever Dynamo compiles something; what the number is means nothing.

    With ``fullgraph=True`` Dynamo counts no frames, and a frame that ends in no graph is no graph.
    """
    from torch._dynamo.utils import counters

    return int(counters["frames"]["total"] + counters["stats"]["unique_graphs"])


def dynamo_facts() -> DynamoFacts:
    """Read Dynamo's counters and compilation metrics."""
    import torch._dynamo

    counters = torch._dynamo.utils.counters
    breaks = counters["graph_break"]
    met = {why: n for why, n in counters["unimplemented"].items() if why not in breaks}
    skipped = int(counters["frames"]["total"] - counters["frames"]["ok"])
    reasons = [
        _first_line(m.recompile_reason)
        for m in torch._dynamo.utils.get_compilation_metrics()
        if getattr(m, "recompile_reason", None)
    ]
    return DynamoFacts(
        graphs=int(counters["stats"]["unique_graphs"]),
        graph_breaks=sum(breaks.values()),
        skipped_frames=skipped,
        recompiles=len(reasons),
        break_reasons=_most_frequent(breaks),
        # A function that was given up as a whole counts as no break.
        skip_reasons=_most_frequent(met) if skipped else (),
        recompile_reasons=tuple(reasons[:5]),
        cudagraph_skips=int(counters["inductor"]["cudagraph_skips"]),
    )


def _most_frequent(reasons: Mapping[str, int]) -> tuple[str, ...]:
    ordered = sorted(reasons, key=lambda reason: -reasons[reason])
    return tuple(dict.fromkeys(map(_first_line, ordered)))[:5]
