"""Models whose settings differ in more than backend and mode."""

import torch


def get_inputs(batch_size):
    return torch.randn(batch_size, 3, 12, 12)


class Convolving(torch.nn.Module):
    """Takes images channels last, as RLlib's encoders do."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 8, 3)
        self.head = torch.nn.Linear(8 * 64, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.second(x)).flatten(1))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(12, 24), torch.nn.Linear(24, 12)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Counting(Convolving):
    """Writes to a buffer whenever it is called."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return super().forward(x) + self.calls


def get_model():
    return Convolving()


def blocks():
    return torch.nn.Sequential(*(Block() for _ in range(4)))


def counting():
    return Counting()


class Loud(torch.nn.Module):
    """Fits into float32 and not into float16."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(12, 4)
        torch.nn.init.constant_(self.layer.weight, 1e4)

    def forward(self, x):
        return self.layer(x.abs().sum((1, 2)))


class Labels(torch.nn.Module):
    """Gives whole numbers, of which each change of precision changes some."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(432, 64)

    def forward(self, x):
        return (1000 * self.layer(x.flatten(1))).long()


class Looping(torch.nn.Module):
    """Breaks the graph inside a loop, which Dynamo gives up as a whole."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return x


def loud():
    return Loud()


def labels():
    return Labels()


def looping():
    return Looping()
