"""A robot's policy (20 M parameters): camera features and joints become a chunk of actions."""

import torch
from torch import nn

LAYERS, WIDTH = 5, 512
BATCH, CAMERAS, PATCHES, JOINTS, CHUNK = 8, 2, 49, 14, 50


class Policy(nn.Module):
    """An encoder of what is seen, and a head that reads one query for each action."""

    def __init__(self):
        super().__init__()
        self.seen, self.joints = nn.Linear(512, WIDTH), nn.Linear(JOINTS, WIDTH)
        self.places = nn.Parameter(torch.randn(CAMERAS * PATCHES + 1, WIDTH) * 0.02)
        self.queries = nn.Parameter(torch.randn(CHUNK, WIDTH) * 0.02)
        self.encoder = nn.ModuleList(
            _layer(nn.TransformerEncoderLayer) for _ in range(LAYERS)
        )
        self.head = _layer(nn.TransformerDecoderLayer)
        self.action = nn.Linear(WIDTH, JOINTS)

    def forward(self, patches, joints):
        with torch.autocast(patches.device.type, dtype=torch.bfloat16):
            tokens = [self.seen(patches), self.joints(joints).unsqueeze(1)]
            x = torch.cat(tokens, 1) + self.places
            for layer in self.encoder:
                x = layer(x)
            queries = self.queries.expand(len(x), -1, -1)
            return self.action(self.head(queries, x))


def _layer(kind):
    return kind(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)


def get_model():
    return Policy()


def get_inputs():
    return torch.randn(BATCH, CAMERAS * PATCHES, 512), torch.randn(BATCH, JOINTS)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)


def get_loss(actions, inputs):
    """Against joints that move on as they are: it needs no data."""
    wanted = inputs[1].unsqueeze(1).expand_as(actions)
    return (actions.float() - wanted).abs().mean()
