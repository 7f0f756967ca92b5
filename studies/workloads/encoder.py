"""A text encoder whose batches have the lengths of a corpus: the target of this study.

``get_calls`` gives 40 batches, which stand for all.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

# Share of batches by the longest of their sentences, in tokens: most are short, few are long.
HISTOGRAM = {16: 8, 24: 14, 32: 20, 40: 17, 48: 13, 64: 12, 96: 8, 128: 5, 192: 2, 256: 1}
ROWS, WORDS, WIDTH, LAYERS = 4, 2000, 128, 4
PHASE, USUAL = "forward", 32


class Encoder(nn.Module):
    """Four layers over the embeddings of words, and the mean of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Means over the tokens, ``[rows, width]``; ``mask`` is true where there is a token."""
        hidden = self.layers(self.words(ids), src_key_padding_mask=~mask)
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)


def get_model() -> nn.Module:
    return Encoder()


def sizes(count: int, seed: int) -> list[int]:
    """Lengths of batches as of a corpus: a bin of the histogram, and a place within it."""
    generator = torch.Generator().manual_seed(seed)
    bins = [*HISTOGRAM]
    weights = torch.tensor([*HISTOGRAM.values()], dtype=torch.float)
    drawn = torch.multinomial(weights, count, replacement=True, generator=generator)
    found = []
    for number in drawn.tolist():
        low, high = (bins[number - 1] if number else 8), bins[number]
        found.append(int(torch.randint(low + 1, high + 1, (1,), generator=generator)))
    return found


def batch(length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, WORDS, (ROWS, length))
    return {"ids": ids, "mask": torch.ones(ROWS, length, dtype=torch.bool)}


def get_calls() -> Iterator[dict[str, torch.Tensor]]:
    for length in sizes(40, seed=1):
        yield batch(length)


def bucket(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs with tokens up to a power of two, of which the new ones are masked."""
    length = inputs["ids"].shape[1]
    more = (1 << (length - 1).bit_length()) - length
    return {name: nn.functional.pad(x, (0, more)) for name, x in inputs.items()}
