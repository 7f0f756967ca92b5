"""A decoder of Transformers with a static cache: prompts of three lengths, and tokens after each.

On a GPU it is of 12 layers in bfloat16, on a CPU of 4 in float32; its weights are random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

PROMPTS, TOKENS, WORDS, ROOM = (100, 37, 180), 15, 8000, 256
SIZES = {"cuda": (1024, 12, torch.bfloat16), "cpu": (256, 4, torch.float32)}


def get_model() -> Any:
    width, layers, dtype = SIZES["cuda" if torch.cuda.is_available() else "cpu"]
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def get_calls() -> Iterator[torch.Tensor]:
    for length in PROMPTS:
        yield torch.randint(WORDS, (1, length))
        for _ in range(TOKENS):
            yield torch.randint(WORDS, (1, 1))


def get_step(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    config, weight = model.config, next(model.parameters())
    cache = StaticCache(config=config, max_cache_len=ROOM)
    heads = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    cache.early_initialization(1, *heads, weight.dtype, weight.device)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        if tokens.shape[1] > 1:  # a prompt begins anew
            cache.reset()
        logits: torch.Tensor = model(input_ids=tokens, past_key_values=cache).logits
        return logits[:, -1]

    return step
