"""The encoder of Whisper-large (635 M parameters) as it is served: two recordings of 30 seconds."""

import os

import torch
from transformers import WhisperConfig, WhisperModel

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
LAYERS = 2 if IS_SMALL else 32
WIDTH = 64 if IS_SMALL else 1280
BATCH = 1 if IS_SMALL else 2
HEADS = 8 if IS_SMALL else 20
BANDS = 128  # of the spectrogram


class Net(torch.nn.Module):
    """What is trained or served."""

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
