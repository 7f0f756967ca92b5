"""The encoder of Whisper as it is served: recordings of 30 seconds, bfloat16.

Whisper-base and four of them; with ``STUDY_SIZE=large`` Whisper-large (635 M) and two.
"""

import os

import torch
from transformers import WhisperConfig, WhisperModel

SIZES = {"": (6, 512, 8, 80, 4), "large": (32, 1280, 20, 128, 2)}
LAYERS, WIDTH, HEADS, BANDS, BATCH = SIZES[os.environ.get("STUDY_SIZE", "")]


class Net(torch.nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        config = WhisperConfig(
            d_model=WIDTH,
            num_mel_bins=BANDS,
            encoder_layers=LAYERS,
            decoder_layers=1,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=4 * WIDTH,
            decoder_ffn_dim=4 * WIDTH,
        )
        self.encoder = WhisperModel(config).encoder

    def forward(self, features):
        return self.encoder(features).last_hidden_state


def get_model():
    return Net().to(torch.bfloat16).eval()


def get_inputs():
    return (torch.randn(BATCH, BANDS, 3000, dtype=torch.bfloat16),)
