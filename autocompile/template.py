"""What ``autocompile init`` writes."""

__all__ = ["TEMPLATE"]

TEMPLATE = '''"""A model for autocompile: plain functions, nothing to import from autocompile."""

import torch


def get_model():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 8),
    )


def get_inputs(batch_size):
    # A tuple or list is called as model(*x), a dict as model(**x), anything else as model(x).
    return (torch.randn(batch_size, 64),)


# Optional; without it: torch.optim.Adam(model.parameters())
# def get_optimizer(model):
#     return torch.optim.SGD(model.parameters(), lr=0.1)


# Optional; without it: the sum of every floating output
# def get_loss(output, inputs):
#     return output.square().mean()
'''
