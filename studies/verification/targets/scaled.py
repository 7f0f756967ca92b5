"""A step of a ViT under autocast: it accumulates twice, clips, steps and returns a number."""

import torch
from vit import get_inputs, get_loss, get_model, get_optimizer

__all__ = ["get_inputs", "get_model", "get_optimizer", "get_step"]


def get_step(model, optimizer):
    def step(inputs):
        optimizer.zero_grad()
        total = 0.0
        for part in inputs[0].chunk(2):
            with torch.autocast(part.device.type, dtype=torch.bfloat16):
                loss = get_loss(model(part), (part,)) / 2
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    return step
