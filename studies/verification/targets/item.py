"""A training step of GPT-2 as people write it, which returns its loss as a Python number."""

from gpt2 import get_inputs, get_loss, get_model, get_optimizer

__all__ = ["get_inputs", "get_model", "get_optimizer", "get_step"]


def get_step(model, optimizer):
    def step(inputs):
        optimizer.zero_grad()
        loss = get_loss(model(*inputs), inputs)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
