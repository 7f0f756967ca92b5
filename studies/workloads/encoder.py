"""A text encoder whose batches have the lengths of a corpus: the target of this study.

``get_calls`` gives 40 batches, which stand for all.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

# Share of batches by the longest of their sentences, in tokens: most are short, few are long.
BINS = (16, 24, 32, 40, 48, 64, 96, 128, 192, 256)
SHARES = (8, 14, 20, 17, 13, 12, 8, 5, 2, 1)
ROWS, WORDS = 4, 2000
WIDTH, LAYERS = (768, 12) if torch.cuda.is_available() else (128, 4)
PHASE, USUAL = "forward", 32


class Layer(nn.Module):
    """Attention to the tokens that there are, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = hidden.shape
        parts = self.qkv(self.before(hidden)).view(rows, tokens, 3, -1, 64)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        attend = nn.functional.scaled_dot_product_attention
        seen = attend(query, key, value, attn_mask=mask)
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
    shares = torch.tensor(SHARES, dtype=torch.float)
    drawn = torch.multinomial(shares, count, replacement=True, generator=generator)
    found = []
    for number in drawn.tolist():
        low, high = (BINS[number - 1] if number else 8), BINS[number]
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
