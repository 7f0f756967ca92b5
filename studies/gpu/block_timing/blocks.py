"""What a step on a GPU seems to take, by how a block of steps is timed.

    python studies/gpu/block_timing/blocks.py --to studies/gpu/block_timing/encoder.json

Truth is a loop of 60 steps between two synchronizations. Beside it, in turns: blocks of a few
steps, each between two synchronizations, or between two events of the stream with some untimed
steps before the first; the sides of each form in random order. Eager mode, plain
``torch.compile()`` and the whole step as one CUDA graph in bfloat16, all of AdamW.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

BATCH, WIDTH, CLASSES = 32, 512, 100
TURNS, BLOCKS, LONG, WARM = 6, 4, 60, 12
APART = ((0, 1), (0, 2), (0, 3), (0, 5), (0, 10), (2, 3))  # untimed steps, timed ones
BY_EVENTS = ((0, 3), (1, 1), (1, 3), (2, 1), (2, 3), (3, 5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    torch.manual_seed(0)
    sides = {kind: step_of(kind) for kind in ("eager", "plain", "graph of the step")}
    times: dict[str, dict[str, list[float]]] = {kind: {} for kind in sides}
    for _ in range(TURNS):
        for kind, step in sides.items():
            times[kind].setdefault("loop", []).append(apart(step, 2, LONG))
        for timed, forms in ((apart, APART), (by_events, BY_EVENTS)):
            for lead, calls in forms:
                form = f"{timed.__name__}, {lead} untimed, {calls} timed"
                for _ in range(BLOCKS):
                    for kind in random.sample([*sides], len(sides)):
                        took_s = timed(sides[kind], lead, calls)
                        times[kind].setdefault(form, []).append(took_s)
    ms: dict[str, dict[str, float]] = {kind: {} for kind in sides}
    for kind, by_form in times.items():
        for form, found in by_form.items():
            ms[kind][form] = round(statistics.median(found) * 1e3, 4)
    for form in ms["eager"]:
        print(f"{form:32}", *(f"{by_form[form]:9.3f}" for by_form in ms.values()))
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    asked.to.write_text(json.dumps({**machine, "ms": ms}, indent=1) + "\n")


class Encoder(nn.Module):
    """A transformer that classifies sequences; its head reads the mean over the sequence."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean(1))


def step_of(kind: str) -> Callable[[], Any]:
    """A training step on one batch, after some."""
    model = Encoder().cuda().train()
    x = torch.randn(BATCH, 128, WIDTH).cuda()
    y = torch.arange(BATCH).cuda() % CLASSES
    given = torch.compile(model) if kind == "plain" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if kind == "graph of the step":
        step = graph_of(model, x, y)
    else:

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(given(x), y).backward()
            optimizer.step()

    for _ in range(WARM):
        step()
    return step


def graph_of(model: Any, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """A step in bfloat16, recorded by hand."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, fused=True, capturable=True
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        graph.replay()

    replay.reads = model, x, y, optimizer  # type: ignore[attr-defined]
    return replay


def apart(step: Callable[[], Any], lead: int, calls: int) -> float:
    """Seconds of a step of a block between two synchronizations."""
    for _ in range(lead):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls


def by_events(step: Callable[[], Any], lead: int, calls: int) -> float:
    """The same between two events, from the end of the untimed steps to that of the timed ones."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    for _ in range(lead):
        step()
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls


if __name__ == "__main__":
    main()
