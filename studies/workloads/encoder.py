"""A text encoder whose batches have the lengths of a corpus: the target of this study.

``get_calls`` gives 40 batches, which stand for all.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

# Share of batches by the longest of their sentences, in tokens: most are short, few are long.
HISTOGRAM = {
    16: 8,
    24: 14,
    32: 20,
    40: 17,
    48: 13,
    64: 12,
    96: 8,
    128: 5,
    192: 2,
    256: 1,
}
ROWS, WORDS = 4, 2000
WIDTH, LAYERS = (768, 12) if torch.cuda.is_available() else (128, 4)
PHASE, USUAL = "forward", 32


class Layer(nn.Module):
    """Attention to the tokens that there are, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = (
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = hidden.shape
        parts = (
            self.qkv(self.before(hidden))
            .view(rows, tokens, 3, -1, 64)
            .permute(2, 0, 3, 1, 4)
        )
        seen = nn.functional.scaled_dot_product_attention(
            *parts.unbind(0), attn_mask=mask
        )
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(rows, tokens, width))
        return hidden + self.narrow(nn.functional.gelu(self.wide(self.after(hidden))))


class Encoder(nn.Module):
    """Layers over the embeddings of words, and the mean of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Means over the tokens, ``[rows, width]``; ``mask`` is true where there is a token."""
        hidden = self.words(ids)
        for layer in self.layers:
            hidden = layer(hidden, mask[:, None, None, :])
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
    """What one writes by hand: lengths up to the next power of two, the new tokens masked."""
    length = inputs["ids"].shape[1]
    more = (1 << (length - 1).bit_length()) - length
    return {name: nn.functional.pad(x, (0, more)) for name, x in inputs.items()}
