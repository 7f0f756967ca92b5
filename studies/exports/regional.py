"""Full against regional compiling of twelve equal decoder blocks: compile seconds and speed.

python studies/exports/regional.py
python studies/exports/regional.py entry        # what entering a compiled block costs

LLaMA from transformers, as in Accelerate's benchmark (eval mode, random weights), small enough for
two cores. Each process is a fresh one: it compiles, and times eager and compiled in turns. What the
first compile of any program costs (imports, header, vector instructions) is paid before, by
something small. ``nested`` is ``torch.compiler.nested_compile_region`` around each block and one
compile of the whole. Arms take turns in random order. Each call adds two processes of each kind to
``regional.json``, and ``entry`` replaces what is said of that.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ARMS = ("full", "regional", "nested")
BATCH_SIZES, LAYERS, LENGTH, PROCESSES, SEED = (1, 4), 12, 128, 2, 0
BLOCKS, BLOCK_S = 15, 0.1  # of each side
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 2000,
    "use_cache": False,
}
# What torch times of a compile: parts of it, and what they are called there.
PARTS = {
    "dynamo_s": "bytecode_tracing",
    "codegen_s": "GraphLowering.codegen",
    "cpp_s": "PyCodeCache.load_by_key_path",
}
RECORD = HERE / "regional.json"


def child(arm: str, batch_size: int) -> None:
    """One process: prints a line of JSON."""
    import statistics

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import autocompile
    from autocompile.settings.config import CompileConfig
    from autocompile.settings.tuned import Choice, Tuned

    config = LlamaConfig(**SIZES)
    torch.manual_seed(SEED)
    eager, compiled = (LlamaForCausalLM(config).eval() for _ in range(2))
    compiled.load_state_dict(eager.state_dict())
    tokens = torch.randint(2000, (batch_size, LENGTH))
    torch.compile(lambda x: x.exp() + 1)(torch.zeros(64))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    times: dict[str, list[float]] = torch._dynamo.utils.compilation_time_metrics
    times.clear()
    if arm == "nested":
        block = type(compiled.model.layers[0])
        block.forward = torch.compiler.nested_compile_region(block.forward)
    setting = CompileConfig(scope="regional" if arm == "regional" else "model")
    even = {"value": 1.0, "low": 1.0, "high": 1.0}
    choices = {"forward": (Choice(setting, batch_size, even, 3),)}
    autocompile.apply(compiled, Tuned(choices, {"device": "cpu"}))
    with torch.no_grad():
        want = eager(input_ids=tokens).logits
        began = time.perf_counter()
        got = compiled(input_ids=tokens).logits
        first_s = time.perf_counter() - began
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
        parts = {k: round(sum(times.get(name, ())), 3) for k, name in PARTS.items()}
        sides: dict[str, list[float]] = {"eager": [], "compiled": []}
        models = {"eager": eager, "compiled": compiled}
        for model in models.values():
            for _ in range(5):
                model(input_ids=tokens)
        began = time.perf_counter()
        eager(input_ids=tokens)
        calls = max(1, round(BLOCK_S / (time.perf_counter() - began)))
        for number in range(BLOCKS):
            for name in sorted(models, reverse=number % 2 == 1):
                began = time.perf_counter()
                for _ in range(calls):
                    models[name](input_ids=tokens)
                sides[name].append((time.perf_counter() - began) / calls)
    ms = {name: 1e3 * statistics.median(taken) for name, taken in sides.items()}
    found = {
        "eager_ms": round(ms["eager"], 3),
        "compiled_ms": round(ms["compiled"], 3),
        "compile_s": round(first_s - ms["compiled"] / 1e3, 3),
        "graphs": int(torch._dynamo.utils.counters["stats"]["unique_graphs"]),
        **parts,
    }
    print(json.dumps(found), flush=True)


def entry() -> None:
    """What a call of a compiled block costs besides its graph, which does nothing here."""
    import statistics

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from autocompile.runtime.compiling import compile_blocks, repeated_blocks

    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    block = model.model.layers[3]
    given: dict[str, Any] = {}
    result: list[Any] = []

    def keep(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        given["args"], given["kwargs"] = args, kwargs
        result[:] = [output]

    def idle(graph: Any, inputs: Any, **_: Any) -> Any:
        return lambda *args: tuple(result)

    def us(call: Any) -> float:
        taken = []
        for _ in range(4000):
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
        return round(1e6 * statistics.median(taken), 1)

    with torch.no_grad():
        hook = block.register_forward_hook(keep, with_kwargs=True)
        model(input_ids=torch.zeros(1, LENGTH, dtype=torch.long))
        hook.remove()

        def call() -> Any:
            return block(*given["args"], **given["kwargs"])

        found = {"eager_block_us": us(call)}
        usual: dict[str, Any] = {}
        none = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        for name, options in (("all_guards_us", usual), ("no_guards_us", none)):
            torch._dynamo.reset()
            compile_blocks(
                repeated_blocks(model), {"backend": idle, "options": options}
            )
            found[name] = us(call)
        block._compiled_call_impl = lambda *args, **kwargs: result[0]
        found["module_call_us"] = us(call)
    record(entry=found)
    print(found)


def run(arm: str, batch_size: int, toolchain: Path) -> dict[str, Any]:
    """A fresh process with a cache that holds the machine's vector instructions and no more."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        shutil.copytree(toolchain, cache)
        for name in ("fxgraph", "aotautograd"):
            shutil.rmtree(cache / name, ignore_errors=True)
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
        command = [sys.executable, __file__, "child", arm, str(batch_size)]
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    return {
        "arm": arm,
        "batch_size": batch_size,
        **json.loads(done.stdout.splitlines()[-1]),
    }


def record(**more: Any) -> dict[str, Any]:
    """Add to the JSON, with a line for each process; what it holds then."""
    known = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    found: dict[str, Any] = {"entry": {}, "processes": [], **known, **more}
    lines = ",\n".join(f"  {json.dumps(row)}" for row in found.pop("processes"))
    text = json.dumps(found, indent=1).removesuffix("\n}")
    RECORD.write_text(f'{text},\n "processes": [\n{lines}\n ]\n}}\n', "utf-8")
    return json.loads(RECORD.read_text("utf-8"))  # type: ignore[no-any-return]


def main() -> None:
    import torch

    rows = record()["processes"]
    with tempfile.TemporaryDirectory() as folder:
        toolchain = Path(folder) / "toolchain"
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(toolchain)}
        small = "import torch; torch.compile(lambda x: x.exp() + 1)(torch.zeros(64))"
        subprocess.run([sys.executable, "-c", small], env=environment, check=True)
        order = [(a, b) for a in ARMS for b in BATCH_SIZES for _ in range(PROCESSES)]
        random.Random(SEED + len(rows)).shuffle(order)
        for arm, batch_size in order:
            rows.append(run(arm, batch_size, toolchain))
            print(rows[-1], file=sys.stderr, flush=True)
    table(record(torch=torch.__version__, processes=rows))


def table(found: dict[str, Any]) -> None:
    """Print medians over processes."""
    import statistics

    head = "| batch | | processes | compile | Dynamo | code | C++ | against eager | eager | compiled |"
    print(f"{head}\n{'|---' * 10}|")
    for batch_size in BATCH_SIZES:
        for arm in ARMS:
            rows = [
                {**row, "ratio": row["eager_ms"] / row["compiled_ms"]}
                for row in found["processes"]
                if (row["arm"], row["batch_size"]) == (arm, batch_size)
            ]
            if not rows:
                continue
            of = {
                name: statistics.median(row[name] for row in rows)
                for name in ("compile_s", *PARTS, "ratio", "eager_ms", "compiled_ms")
            }
            seconds = " | ".join(f"{of[name]:.2f} s" for name in ("compile_s", *PARTS))
            ms = f"{of['eager_ms']:.2f} ms | {of['compiled_ms']:.2f} ms"
            print(
                f"| {batch_size} | {arm} | {len(rows)} | {seconds} | {of['ratio']:.3f} | {ms} |"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] == ["entry"]:
        entry()
    elif sys.argv[1:2] == ["table"]:
        table(json.loads(RECORD.read_text("utf-8")))
    else:
        main()
