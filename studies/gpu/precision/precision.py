"""What TF32 and bfloat16 bring to a training step, in eager mode and compiled, on a GPU.

    python studies/gpu/precision/precision.py vit_step --to studies/gpu/precision/h200.json

One process builds nine sides of a network from scratch (eager mode, plain ``torch.compile()`` and
``reduce-overhead``, each in float32, with TF32 and under autocast with bfloat16; AdamW, fused),
in code that shares nothing with autocompile, and times them in turns: 20 rounds of at least 0.1 s
each. ``studies/search/learn.py`` reads the files.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROUNDS, ROUND_S, WARM = 20, 0.1, 8
MODES = ("off", "default", "reduce-overhead")
PRECISIONS = ("float32", "tf32", "bfloat16")


def of_timm(name: str, size: int) -> Callable[[], tuple[Any, Any]]:
    def made() -> tuple[Any, Any]:
        import timm

        return timm.create_model(name), torch.randn(size, 3, 224, 224)

    return made


def of_transformers(
    name: str, config: str, layers: dict[str, int], shape: tuple[int, int]
) -> Any:
    def made() -> tuple[Any, Any]:
        import transformers

        settings = getattr(transformers, config)(**layers)
        model = getattr(transformers, name)(settings)
        return model, torch.randint(0, settings.vocab_size, shape)

    return made


NETWORKS = {
    "vit_step": of_timm("vit_small_patch16_224", 32),
    "bert_step": of_transformers(
        "BertForMaskedLM", "BertConfig", {"num_hidden_layers": 6}, (16, 128)
    ),
    "gpt2_step": of_transformers(
        "GPT2LMHeadModel", "GPT2Config", {"n_layer": 6}, (8, 512)
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    torch._dynamo.config.recompile_limit = 1000  # the sides share the code of one class
    torch.manual_seed(0)
    model, x = NETWORKS[asked.network]()
    state, x = model.state_dict(), x.cuda()
    rows, steps = [], []
    for mode, precision in itertools.product(MODES, PRECISIONS):
        torch.manual_seed(0)
        model, _ = NETWORKS[asked.network]()
        model.load_state_dict(state)
        began = time.perf_counter()
        step = step_of(model.cuda().train(), x, mode, precision)
        for _ in range(WARM):
            step()
        torch.cuda.synchronize()
        taken = time.perf_counter() - began
        rows.append(
            {"mode": mode, "precision": precision, "first_calls_s": round(taken, 1)}
        )
        steps.append(step)
        print(rows[-1], flush=True)
    for row, values in zip(rows, in_turns(steps), strict=True):
        row["ms"] = [round(value, 4) for value in values]
        print(
            row["mode"],
            row["precision"],
            round(statistics.median(values), 3),
            flush=True,
        )
    found = {
        "network": asked.network,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": rows,
    }
    every = json.loads(asked.to.read_text()) if asked.to.exists() else {}
    every[asked.network] = found
    lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in every.items()]
    asked.to.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def step_of(model: Any, x: Any, mode: str, precision: str) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    given = model
    if mode != "off":
        given = torch.compile(model, mode=None if mode == "default" else mode)
    bf16 = precision == "bfloat16"

    def step() -> None:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = True  # as by default
        optimizer.zero_grad(set_to_none=True)
        context = (
            torch.autocast("cuda", torch.bfloat16) if bf16 else contextlib.nullcontext()
        )
        with context:
            output = given(x)
            logits = getattr(output, "logits", output)
            labels = torch.zeros(logits.shape[:-1], dtype=torch.long, device=x.device)
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, -2), labels.flatten()
            )
        loss.backward()
        optimizer.step()

    return step


def in_turns(steps: list[Callable[[], None]]) -> list[list[float]]:
    """Milliseconds of a step of each, of each round."""
    counts = []
    for step in steps:
        for _ in range(WARM):
            step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        counts.append(max(2, int(ROUND_S * 5 / (time.perf_counter() - began))))
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(ROUNDS):
        for step, count, values in zip(steps, counts, times, strict=True):
            step()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                step()
            torch.cuda.synchronize()
            values.append((time.perf_counter() - began) / count * 1e3)
    return times


if __name__ == "__main__":
    main()
