"""Models whose compiled form differs from eager only in ways that a user has to accept."""

import dataclasses

import torch
import torch._dynamo
from torch import nn

torch.set_num_threads(1)


def get_inputs(batch_size):
    return (torch.randn(batch_size, 6, 16),)


def get_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)
        )
        self.net.bfloat16()

    def forward(self, x):
        return self.net(x.bfloat16())


class Softmaxes(nn.Module):
    """Softmax over softmax, of large logits: small differences become large ones."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 64)

    def forward(self, x):
        first = (self.linear(x) * 30).softmax(-1)
        return (first * 50).softmax(1), (self.linear(x) * 30).log_softmax(-1)


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 4)
        )

    def forward(self, x):
        return self.net(x)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(6, 12, 3, bias=False)
        self.norm = nn.BatchNorm1d(12)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 12, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        hidden, (last, cell) = self.lstm(x.tanh())
        return self.head(hidden), last, cell


class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(16, 12)

    def forward(self, x):
        state = x.new_zeros(x.shape[0], 12), x.new_zeros(x.shape[0], 12)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0], {"state": state}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (4, 4)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, x):
        ids = (x * 10).long().abs() % 50
        logits = self.head(self.table(ids).mean(2))
        return logits, logits.argmax(-1)


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    extras: dict
    nothing: None = None


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, x):
        y = self.linear(x)
        extras = {
            "pair": (y.exp(), [y.sum(-1), None]),
            "deep": {"name": "words", "count": 3},
        }
        return Answer(y, extras)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        x.mul_(0.5).clamp_(-1, 1)
        x[:, 0] = 0
        return self.linear(x), x


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x):
        x = x.tanh()
        if x.sum() > 0:
            return self.left(x)
        return self.right(x) * 3


class PassesThrough(nn.Module):
    """Its outputs are a buffer that each call changes, a parameter, and a view of the input."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x * self.scale * self.calls, self.calls, self.scale, x[:, 0]


def half():
    return Half()


def softmaxes():
    return Softmaxes()


class Cache:
    """What it holds is known to nobody; it equals itself only."""

    def __init__(self, keys):
        self.keys = keys


class Caching(torch.nn.Module):
    """Returns an object that no library has registered, as language models do."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(16, 8)

    def forward(self, x):
        keys = self.inner(x)
        return keys.softmax(-1), Cache(keys)


class Choosing(torch.nn.Module):
    """Returns a distribution, as policies do."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(16, 4)

    def forward(self, x):
        return torch.distributions.Categorical(
            logits=self.inner(x), validate_args=False
        )


def dropping():
    return Dropping()


def normed():
    return Normed()


def recurrent():
    torch._dynamo.config.allow_rnn = True  # else Dynamo leaves it in eager
    return Recurrent()


def recurrent_in_eager():
    return Recurrent().lstm  # torch 2.15 compiles what is around it


def unrolled():
    return Unrolled()


def attention():
    return Attention()


def words():
    return Words()


def structured():
    return Structured()


def in_place():
    return InPlace()


def branching():
    return Branching()


def passes_through():
    return PassesThrough()


def caching():
    return Caching()


def choosing():
    return Choosing()
