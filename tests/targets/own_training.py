"""A dictionary of inputs with an optimizer and a loss of the user's own."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 1)

    def forward(self, x, *, weight):
        return {"prediction": self.linear(x) * weight, "extra": x.sum()}


def get_model():
    return Net()


def get_inputs(batch_size):
    return {"x": torch.randn(batch_size, 6), "weight": torch.rand(batch_size, 1)}


def get_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.5)


def get_loss(output, inputs):
    return (output["prediction"] * inputs["weight"]).square().mean()
