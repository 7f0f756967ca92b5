"""What the lives share: a small ConvNet, its data, the stages, and how two lives are compared.

A life is a generator that is run twice: with settings, and in eager mode without autocompile. After
each stage it yields the weights, or what the stage computed, and both must be equal within rounding.
"""

from __future__ import annotations

import contextlib
import copy
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autocompile.runtime.machine import describe
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Choice, Tuned, TunedSet

TRAINED = "trained with accumulation and clipping"
SAVED = "saved"
RESUMED = "loaded in a fresh process, gone on"
EVALUATED = "evaluated, the last batch smaller"
GONE_ON = "gone on after the evaluation"
UNTUNED = "state_dict in an untuned program"
DEEPCOPIED = "deepcopied"
PICKLED = "pickled"
CONVERTED = "converted by .to(dtype)"
FROZEN = "some parameters frozen"
UNFROZEN = "unfrozen"
ADDED = "a parameter added"
STAGES = (
    TRAINED, SAVED, RESUMED, EVALUATED, GONE_ON, UNTUNED, DEEPCOPIED, PICKLED, CONVERTED, FROZEN,
    UNFROZEN, ADDED,
)  # fmt: skip

STEPS, ACCUMULATED, CLIP, BATCH = 20, 4, 0.5, 4
# What decides on steps of Adam must be larger than rounding: see assert_equal_lives.
ADAM: Mapping[str, Any] = {"lr": 1e-2, "eps": 1e-3}

Values = dict[str, torch.Tensor]
Life = Iterator[tuple[str, Values]]

CONFIG = CompileConfig(
    "aot_eager", memory_format="channels_last", optimizer="fused", scope="model"
)


class Net(nn.Module):
    """Convolutions, whose weights channels_last lays out anew, a norm with buffers, and a head.

    Attributes:
        uncompiled: how many calls ran as they are written.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.Tanh(),
            nn.Conv2d(8, 4, 3),
        )
        self.head = nn.Linear(4 * 4 * 4, 2)
        self.added: nn.Module | None = None
        self.uncompiled = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.uncompiled += 1
        y = self.body(x).flatten(1)
        return self.head(y) + (0 if self.added is None else self.added(y))

    def add(self) -> nn.Module:
        """Another head beside the first."""
        torch.manual_seed(1)
        self.added = nn.Linear(4 * 4 * 4, 2)
        return self.added


def batch(number: int, size: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and labels of a micro-batch, the same in every process."""
    drawn = torch.Generator().manual_seed(number)
    x = torch.randn(size, 3, 8, 8, generator=drawn)
    return x, torch.randint(2, (size,), generator=drawn)


def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels)


EVALUATION = (BATCH, BATCH, BATCH - 1)
"""The sizes of its batches."""


def values(model: nn.Module) -> Values:
    """A copy of the weights and buffers."""
    return {
        name: x.detach().clone(memory_format=torch.contiguous_format)
        for name, x in model.state_dict().items()
        if x.is_floating_point()
    }


def settings(folder: Path, **phases: CompileConfig) -> Path:
    """A file of settings as ``autocompile export -o`` writes it."""
    here = describe(torch.device("cpu"))
    known = {k: here[k] for k in ("torch", "device", "threads")}
    speedup = {"value": 1.5, "low": 1.4, "high": 1.6}
    sizes = {"optimizer_step": None}
    found = {
        name: (Choice(config, sizes.get(name, BATCH), speedup, 3),)
        for name, config in phases.items()
    }
    path = folder / "tuned.json"
    path.write_text(TunedSet((Tuned(found, known, "model.py"),)).to_json())
    return path


def assert_equal_lives(eager: Life, tuned: Life, ratio: float = 1e-4) -> list[str]:
    """Compare two lives stage by stage, run one after the other; returns the names of the stages.

    Weights may differ by ``ratio`` of how far the life has moved them. Rounding in float32 is 6e-8
    of a value; over a life of about 100 steps of a small net it comes to 1e-6 to 2e-5 of the movement
    (Adam's ``eps`` is far above the rounding of gradients, or it would take that for a direction).
    A moment applied to another weight, or a step that is left out, moves them by a step: 1e-2.
    """
    begin: Values = {}
    stages = []
    for (stage, want), (same, got) in zip(list(eager), tuned, strict=True):
        assert stage == same and want.keys() == got.keys()
        stages.append(stage)
        for name, right in want.items():
            ours = got[name].double()
            first = begin.setdefault(name, torch.zeros_like(right)).double()
            moved = float((right.double() - first).abs().max())
            apart = float((ours - right.double()).abs().max())
            assert apart <= ratio * moved, (
                f"{stage}: {name} is {apart:.1e} from eager mode's, moved by {moved:.1e}"
            )
            if stage == BEGUN:
                begin[name] = right
    return stages


@contextlib.contextmanager
def thread_beside(model: nn.Module) -> Iterator[None]:
    """A thread evaluates a copy of the model, which is not compiled, over and over."""
    served, ended = copy.deepcopy(model).eval(), threading.Event()
    outputs, failed = list[torch.Tensor](), list[BaseException]()

    def serve() -> None:
        try:
            while not (ended.is_set() and outputs):
                with torch.no_grad():
                    outputs.append(served(batch(0)[0]))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not failed, failed
    assert all(torch.equal(outputs[0], each) for each in outputs)


BEGUN = "begun"


def in_fresh_process(function: Callable[..., None], *args: str) -> None:
    """Call a function of a test file, with texts, in a new interpreter."""
    code = function.__code__
    folder = Path(code.co_filename).parent
    lines = f"import sys; sys.path[:0] = {[str(folder), str(folder.parent)]}"
    call = f"from {Path(code.co_filename).stem} import {function.__name__} as f; f(*{args!r})"
    done = subprocess.run(
        [sys.executable, "-c", f"{lines}; {call}"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
