"""A recommender: 26 tables, two stacks of layers and their products, float32, Adam, 2,048 rows."""

import itertools

import torch

ROWS, ENTRIES = 2048, 100_000
TABLES, WIDTH, NUMBERS = 26, 64, 13


def stack(*widths):
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Net(torch.nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        self.tables = torch.nn.ModuleList(
            torch.nn.Embedding(ENTRIES, WIDTH) for _ in range(TABLES)
        )
        self.bottom = stack(NUMBERS, 512, 256, WIDTH)
        pairs = TABLES * (TABLES + 1) // 2
        self.top = stack(WIDTH + pairs, 512, 256, 1)
        first, second = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, numbers, entries):
        dense = self.bottom(numbers)
        rows = [dense, *(t(entries[:, i]) for i, t in enumerate(self.tables))]
        vectors = torch.stack(rows, dim=1)
        products = vectors @ vectors.transpose(1, 2)
        chosen = products[:, self.first, self.second]
        return self.top(torch.cat([dense, chosen], dim=1))[:, 0]


def get_model():
    return Net()


def get_inputs():
    return (
        torch.randn(ROWS, NUMBERS),
        torch.randint(ENTRIES, (ROWS, TABLES)),
    )


def get_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def get_loss(scores, inputs):
    clicked = (inputs[0][:, 0] > 0).float()
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, clicked)
