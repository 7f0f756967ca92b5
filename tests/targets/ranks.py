"""A model for several ranks whose compiled form lies, or whose process fails, as LIE says.

What lies is the DistributedDataParallel that wraps a compiled model: eager mode has the right one.
"""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import parallel

LIE = os.environ.get("TEST_LIE", "")
RANK = int(os.environ.get("RANK", "0"))


class Net(nn.Module):
    """Six tensors with gradients, and a buffer that follows the batches."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 4)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


def get_model():
    return Net()


def get_inputs(batch_size):
    return torch.randn(batch_size, 8)


def get_loss(output, inputs):
    return output.square().mean()


def get_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _done(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def _average(tensor, divisor):
    dist.all_reduce(tensor)
    return _done(tensor / divisor)


_Honest = parallel.DistributedDataParallel


class _Liar(_Honest):
    def __init__(self, module, **given):
        super().__init__(module, **{"bucket_cap_mb": 0.0005, **given})
        self.before = {}
        self.register_comm_hook(self, _Liar.average)

    def average(self, bucket):
        """What is done with each bucket of gradients."""
        mine, count = bucket.buffer(), dist.get_world_size()
        if not self.lies():
            return _average(mine, count)
        if LIE == "no_average" or (LIE == "left_out" and bucket.index() == 0):
            return _done(mine)
        if LIE == "wrong_number":
            return _average(mine, count + 1)
        if LIE == "of_before":
            before = self.before.get(mine.shape, mine)
            self.before[mine.shape] = mine.clone()
            return _average((before if RANK == 1 else mine).clone(), count)
        return _average(mine, count)

    def lies(self):
        return vars(self.module).get("_compiled_call_impl") is not None

    def forward(self, x):
        if self.lies():
            self.broadcast_buffers = LIE != "own_buffers"
            if LIE == "others_data":
                x = x.clone()
                dist.broadcast(x, 0)
            if RANK == 1:
                _fail()
        return super().forward(x)


def _fail():
    if LIE == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if LIE == "exits":
        os._exit(0)
    if LIE == "raises":
        raise ValueError("this rank cannot do it")
    if LIE == "no_memory":
        raise torch.OutOfMemoryError("this rank has no memory left")
    if LIE == "hangs":
        time.sleep(1000)


if LIE:
    parallel.DistributedDataParallel = _Liar
