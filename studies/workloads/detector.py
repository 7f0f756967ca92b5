"""A detector of objects on images of three sizes: a convolutional backbone, heads at two scales.

Plain torch, random weights. ``get_calls`` gives 36 batches, which stand for all.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

PHASE, CALLS = "forward", 36
# Share of batches by height and width of their images.
SIZES = {(128, 128): 5, (128, 192): 3, (192, 192): 1}
USUAL = (128, 128)
ROWS, CLASSES, ANCHORS = 2, 20, 3


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


class Detector(nn.Module):
    """Boxes, as centre and size, and scores of each class, of all places at both scales.

    Which are best is left to the program: where two are nearly equal, rounding orders them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(3, 16, 2), block(16, 32, 2), block(32, 32))
        self.middle = nn.Sequential(block(32, 64, 2), block(64, 64))
        self.deep = nn.Sequential(block(64, 128, 2), block(128, 128))
        self.side = nn.Conv2d(128, 64, 1)
        self.heads = nn.ModuleList(
            nn.Conv2d(n, ANCHORS * (4 + CLASSES), 1) for n in (64, 128)
        )

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fine = self.middle(self.stem(images))
        coarse = self.deep(fine)
        up = nn.functional.interpolate(self.side(coarse), size=fine.shape[-2:])
        found = [
            self._decoded(head(x))
            for head, x in zip(self.heads, (fine + up, coarse), strict=True)
        ]
        boxes, scores = zip(*found, strict=True)
        return torch.cat(boxes, 1), torch.cat(scores, 1)

    @staticmethod
    def _decoded(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, _, height, width = raw.shape
        raw = raw.view(rows, ANCHORS, 4 + CLASSES, height, width).permute(0, 1, 3, 4, 2)
        y = torch.arange(height, device=raw.device).view(1, 1, -1, 1)
        x = torch.arange(width, device=raw.device).view(1, 1, 1, -1)
        centre_x, centre_y = raw[..., 0].sigmoid() + x, raw[..., 1].sigmoid() + y
        size = raw[..., 2:4].clamp(max=4.0).exp()
        boxes = torch.stack((centre_x, centre_y, size[..., 0], size[..., 1]), -1)
        return boxes.reshape(rows, -1, 4), raw[..., 4:].sigmoid().reshape(
            rows, -1, CLASSES
        )


def get_model() -> nn.Module:
    return Detector()


def sizes(count: int, seed: int) -> list[tuple[int, int]]:
    """Sizes of the images of each batch, drawn by their shares."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.tensor([*SIZES.values()], dtype=torch.float)
    drawn = torch.multinomial(shares, count, replacement=True, generator=generator)
    return [[*SIZES][number] for number in drawn.tolist()]


def batch(size: tuple[int, int]) -> torch.Tensor:
    return torch.rand(ROWS, 3, *size)


def get_calls() -> Iterator[torch.Tensor]:
    for size in sizes(CALLS, seed=1):
        yield batch(size)
