"""The encoder of Whisper-base as it is served: four recordings of 30 seconds, bfloat16."""

import os

import torch
from transformers import WhisperConfig, WhisperModel

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
LAYERS = 2 if IS_SMALL else 6
WIDTH = 64 if IS_SMALL else 512
BATCH = 1 if IS_SMALL else 4


class Net(torch.nn.Module):
    """What is trained or served."""

    def __init__(self):
        super().__init__()
        config = WhisperConfig(
            d_model=WIDTH,
            encoder_layers=LAYERS,
            decoder_layers=1,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=4 * WIDTH,
            decoder_ffn_dim=4 * WIDTH,
        )
        self.encoder = WhisperModel(config).encoder

    def forward(self, features):
        return self.encoder(features).last_hidden_state


def get_model():
    return Net().to(torch.bfloat16).eval()


def get_inputs():
    return (torch.randn(BATCH, 80, 3000, dtype=torch.bfloat16),)
