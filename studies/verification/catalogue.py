"""What the study tries: the lies, by the target that tells them, and the honest models.

It imports no torch: ``verification.py`` reads it in the parent process, ``lies.py`` in each trial.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SIZES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Relative sizes of an error, of which the smallest that is found is looked for."""
CONTROL = "control"
"""The backend that tells no lie: it must not be refused."""
FLOAT32, TF32, BFLOAT16, AUTOCAST = "float32", "TF32", "bfloat16", "autocast"
PRECISIONS = (FLOAT32, TF32, BFLOAT16, AUTOCAST)
"""``bfloat16`` is a model in bfloat16, ``autocast`` one in float32 that computes in bfloat16."""


@dataclass(frozen=True)
class Liars:
    """The backends of one target in one phase, each with one lie.

    Attributes:
        lies: what each backend does wrong, in words, by its name.
        scans: kinds of errors that are told in each of ``SIZES``.
        has_products: whether TF32 and autocast change anything.
    """

    phase: str
    lies: Mapping[str, str]
    scans: Mapping[str, str] = field(default_factory=dict)
    has_products: bool = True

    def backends(self) -> tuple[str, ...]:
        sized = (f"{kind}_{size:g}" for kind in self.scans for size in SIZES)
        return (CONTROL, *self.lies, *sized)


LIARS: Mapping[str, Liars] = {
    "answers": Liars(
        "forward",
        {
            "row_zeroed": "one row of 2,300 is zero",
            "row_garbage": "one row of 2,300 is random",
            "position_garbage": "one position of 4 x 575 is random",
            "class_zeroed": "one of 100 classes is zero",
            "class_swapped": "two of 100 classes are exchanged",
            "label_flipped": "one label of 1,000 is another",
            "alias": "the output is memory that the next call overwrites",
            "stride": "an output has other strides",
            "write_dropped": "a write to an input tensor is dropped",
        },
        {
            "outputs_all": "all outputs too large",
            "outputs_row": "one row of 2,300 too large",
        },
    ),
    "cache": Liars(
        "forward",
        {
            "cache_write_dropped": "a write to a cache object that is an input is dropped"
        },
    ),
    "training": Liars(
        "train_step",
        {
            "gradient_1.01": "all gradients x 1.01",
            "gradient_1.02": "all gradients x 1.02",
            "gradient_1.05": "all gradients x 1.05",
            "gradient_zero": "all gradients are zero",
            "gradient_missing": "one parameter gets no gradient",
            "gradient_before": "gradients of the batch before",
            "masks_anew": "the gradients are of other dropout masks than the loss",
            "embedding_row_zeroed": "one row of an embedding's gradient is zero",
            "embedding_row_garbage": "one row of an embedding's gradient is random",
            "class_gradient_zeroed": "one class of the head's gradient is zero",
        },
        {
            "gradient_all": "all gradients too large",
            "gradient_one": "one parameter's gradient too large",
            "gradient_row": "one row of an embedding's gradient too large",
        },
    ),
    "stepping": Liars(
        "optimizer_step",
        {
            "rate_1.02": "learning rate x 1.02",
            "rate_1.1": "learning rate x 1.1",
            "rate_2": "learning rate x 2",
            "decay_dropped": "no weight decay",
            "decay_doubled": "weight decay x 2",
            "eps": "eps of 1e-4 in place of 1e-8",
            "step_count": "each step counts twice",
            "largest_skipped": "the largest tensor is not stepped",
            "smallest_skipped": "the smallest tensor is not stepped",
        },
        has_products=False,
    ),
}
"""By the name of the target in ``lies.py``."""


@dataclass(frozen=True)
class Honest:
    """A model of ``targets/``, and the phases in which settings of it are verified."""

    target: str
    words: str
    phases: tuple[str, ...]
    has_convolutions: bool = False


_BOTH = ("forward", "train_step")
HONEST: Mapping[str, Honest] = {
    "gpt2": Honest("gpt2.py", "GPT-2, AdamW", _BOTH),
    "bert": Honest("bert.py", "BERT with dropout, AdamW", _BOTH),
    "vit": Honest("vit.py", "ViT, AdamW", _BOTH),
    "t5": Honest("t5.py", "T5, AdamW", _BOTH),
    "resnet18": Honest("resnet.py", "ResNet-18, SGD with momentum", _BOTH, True),
    "resnet50": Honest("resnet.py:resnet50", "ResNet-50, the same", _BOTH, True),
    "unet": Honest("unet.py", "a UNet with attention, AdamW", _BOTH, True),
    "tokens": Honest("gpt2.py:tokens", "GPT-2 that returns its argmax", ("forward",)),
    "value": Honest("value.py", "a value head in bfloat16", _BOTH),
    "item": Honest("item.py", "a step that returns loss.item()", ("step",)),
    "scaled": Honest(
        "scaled.py",
        "a step under autocast that accumulates, clips and returns .item()",
        ("step",),
    ),
}


def honest_settings(
    model: Honest, phase: str, on_gpu: bool
) -> Iterator[dict[str, Any]]:
    """The compiled settings of a model in a phase, by what differs from plain torch.compile().

    TF32 exists on a GPU only, and so do CUDA graphs.
    """
    compilers: list[dict[str, Any]] = [{}]
    compilers += [{"mode": "reduce-overhead"}] if on_gpu else []
    ways: list[dict[str, Any]] = [{}, {"autocast": "bfloat16"}]
    ways += [{"precision": "high"}] if on_gpu else []
    shapes: list[dict[str, Any]] = [{}]
    if phase == "forward":
        compilers += [{"backend": "aot_eager"}]
        compilers += [{"backend": "cudagraphs"}] if on_gpu else []
        is_conv = model.has_convolutions
        shapes += [{"memory_format": "channels_last"} if is_conv else {"dynamic": True}]
    else:
        shapes += [{"scope": "step"}]
    optimizers: list[dict[str, Any]] = [{}]
    optimizers += [{"optimizer": "fused"}] if phase == "train_step" else []
    for parts in itertools.product(compilers, ways, shapes, optimizers):
        yield {name: value for part in parts for name, value in part.items()}
