"""Source of functions that an exported plain torch program needs."""

from __future__ import annotations

__all__ = ["OWN_STATE", "TRAIN_STEP"]

TRAIN_STEP = '''def train_step(inputs):
    """Replace the sum of all floating outputs by your own loss."""
    optimizer.zero_grad(set_to_none=True)
    if hasattr(model, "forward_train"):  # an RLModule of RLlib
        output = model.forward_train(inputs)
    elif isinstance(inputs, dict):
        output = model(**inputs)
    else:
        output = model(*inputs) if isinstance(inputs, (list, tuple)) else model(inputs)
    leaves = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor)]
    loss = sum(x.float().sum() for x in leaves if x.requires_grad)
    loss.backward()
    optimizer.step()
    return loss.detach()
'''

OWN_STATE = '''DEFAULTS = torch.get_num_threads(), torch.get_float32_matmul_precision()


def in_own_state(function, threads, precision):
    """The function with the threads and the precision that it was measured with. Both are global
    in torch, and the phases differ. Other code runs with those of the last call.
    """

    def call(*args, **kwargs):
        torch.set_num_threads(threads or DEFAULTS[0])
        torch.set_float32_matmul_precision(precision or DEFAULTS[1])
        return function(*args, **kwargs)

    return call
'''
