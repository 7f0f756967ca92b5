"""Training on a data set whose last batch is smaller: nine full batches, then one of a few rows.

``get_calls`` gives one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

PHASE = "train_step"
FULL, ROWS, LAST = 9, 32, 13
USUAL = ROWS
WIDTH, CLASSES = 32, 10


class Residual(nn.Module):
    """Two convolutions beside what they are added to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.first(x)).relu()
        return (x + self.norms[1](self.second(y))).relu()


class Classifier(nn.Module):
    """Three residual blocks on images of 16 by 16."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual() for _ in range(3)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The logits; ``labels`` are for the loss."""
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def get_model() -> nn.Module:
    return Classifier()


def get_loss(output: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(output, inputs["labels"])


def get_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def sizes(count: int, seed: int) -> list[int]:
    """Rows of each batch, epoch by epoch; nothing is drawn."""
    return [LAST if number % (FULL + 1) == FULL else ROWS for number in range(count)]


def batch(rows: int) -> dict[str, torch.Tensor]:
    return {
        "images": torch.rand(rows, 3, 16, 16),
        "labels": torch.randint(CLASSES, (rows,)),
    }


def get_calls() -> Iterator[dict[str, torch.Tensor]]:
    for rows in sizes(FULL + 1, seed=1):
        yield batch(rows)
