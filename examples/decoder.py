"""A Transformers decoder with a static cache: a prompt, then one token at a time.

autocompile tune examples/decoder.py
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

PROMPTS, TOKENS = (24, 57, 33), 16  # lengths of prompts, and tokens that follow each
ROOM = 128  # of the cache


def get_model():
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
    )


def get_calls():
    for length in PROMPTS:
        yield torch.randint(1000, (1, length))
        for _ in range(TOKENS):
            yield torch.randint(1000, (1, 1))


def get_step(model):
    config = model.config
    cache = StaticCache(config=config, max_cache_len=ROOM)
    size = config.hidden_size // config.num_attention_heads
    place = next(model.parameters())
    cache.early_initialization(
        1, config.num_key_value_heads, size, place.dtype, place.device
    )

    def step(tokens):
        if tokens.shape[1] > 1:  # a prompt begins anew, so that calls can be repeated
            cache.reset()
        return model(input_ids=tokens, past_key_values=cache).logits[:, -1]

    return step
