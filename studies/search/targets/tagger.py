"""A recurrent tagger of short sentences: an embedding, a GRU in both directions, a linear layer."""

import torch
from torch import nn

# Without it Dynamo breaks the graph at the recurrent layer.
torch._dynamo.config.allow_rnn = True

WORDS, LENGTH, TAGS = 1000, 6, 16


class Tagger(nn.Module):
    """Tokens of shape (batch, 6) to logits of a tag for each."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 64)
        self.memory = nn.GRU(64, 64, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, TAGS)

    def forward(self, tokens):
        features, _ = self.memory(self.embedding(tokens))
        return self.head(features)


def get_model():
    return Tagger()


def get_inputs(batch_size):
    return (torch.randint(WORDS, (batch_size, LENGTH)),)
