"""What is exported, run with the real libraries: does it take effect, as fast as was said?

    python studies/exports/exports.py tune examples/cnn.py      # and examples/adam.py
    python studies/exports/exports.py run

``tune`` makes a run of the forward pass at batch size 16 and of the optimizer step, with
Inductor's default mode alone: stacks that train refuse what computes no gradients. ``run`` starts
a process for each model and export, which executes the text as a user's program would, behind lines
that make the model; compares outputs with eager mode; counts graphs by torch's own counters; looks
at the settings; and times forward pass and step beside eager mode, block by block. What is found is
written to ``exports.json``; ``table`` prints it.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUNS, RECORD = Path(os.path.relpath(HERE / "runs")), HERE / "exports.json"
FORMATS = ("python", "apply", "accelerate", "transformers", "lightning")
BATCH, ROUNDS, BLOCK_S = 16, 24, 0.03
# As a run's own note advises: else eager mode may get its memory from the kernel in each call.
KEEP = {"MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_MMAP_THRESHOLD_": "33554432"}
APPLY = """import autocompile
autocompile.apply(model, "tuned.json", "forward", batch_size={batch})
autocompile.apply(model, "tuned.json", "optimizer_step", optimizer=optimizer)
"""


def tune(path: str, budget_s: str = "75") -> None:
    import autocompile

    name = Path(path).stem
    autocompile.tune(
        path,
        phases=("forward", "optimizer_step"),
        space=autocompile.SearchSpace(
            backends=("inductor",),
            modes=("default",),
            batch_sizes=(BATCH,),
            freezing=(False,),
            threads=(None,),
        ),
        effort="quick",
        budget_s=float(budget_s),
        run_dir=RUNS / name,
    )


def run() -> None:
    import autocompile

    found: dict[str, Any] = {"confirmed": {}, "rows": []}
    for folder in sorted(RUNS.iterdir()):
        result = autocompile.load(folder)
        report = result.to_dict()
        spec, environment = report["target"]["spec"], report["environment"]
        found["machine"] = f"{environment['device_name']}, {environment['cores']} cores"
        found["torch"] = environment["torch"]
        answers = {name: phase["answer"] for name, phase in report["phases"].items()}
        found["confirmed"][spec] = {
            name: _numbers(answer["best"]["speedup"])
            for name, answer in answers.items()
            if answer["verdict"] == "faster"
        }
        for to in FORMATS:
            work = folder / to
            work.mkdir(exist_ok=True)
            text = APPLY.format(batch=BATCH) if to == "apply" else result.export(to)
            (work / "text.py").write_text(text, "utf-8")
            (work / "tuned.json").write_text(result.export("json"), "utf-8")
            row = _in_a_process(str(Path(spec).resolve()), to, work)
            found["rows"].append({"target": spec, "to": to, **row})
            print(to, row.get("error", ""), flush=True)
    RECORD.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    table()


def _in_a_process(target: str, to: str, work: Path) -> dict[str, Any]:
    """What the process of an export says, or how it failed."""
    command = [sys.executable, str(Path(__file__).resolve()), "child", target, to]
    environment = {**os.environ, **KEEP}
    done = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, timeout=200
    )
    if done.returncode:
        return {"error": done.stderr[-1500:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _numbers(interval: dict[str, float]) -> list[float]:
    return [round(interval[name], 4) for name in ("value", "low", "high")]


def child(target: str, to: str) -> None:
    import torch
    from torch._dynamo.utils import counters

    sys.path.insert(0, str(Path(target).parent))
    module = importlib.import_module(Path(target).stem)
    torch.manual_seed(0)
    eager = module.get_model()
    torch.manual_seed(0)
    names: dict[str, Any] = {"torch": torch, "model": module.get_model()}
    make = getattr(module, "get_optimizer", lambda m: torch.optim.Adam(m.parameters()))
    names["optimizer"] = make(names["model"])
    usual = torch.get_num_threads()
    torch.manual_seed(0)
    exec(compile(Path("text.py").read_text("utf-8"), "text.py", "exec"), names)
    torch.set_num_threads(usual)
    model, optimizer = HOW.get(to, _plain)(names)
    inputs = module.get_inputs(BATCH)
    found: dict[str, Any] = {}
    for each in (eager, model):
        each.eval()
    counters.clear()
    with torch.no_grad():
        same = torch.allclose(eager(*inputs), model(*inputs), rtol=1e-3, atol=1e-4)
        forward = _times(lambda: eager(*inputs), lambda: model(*inputs))
    found["forward"] = {
        "graphs": counters["stats"]["unique_graphs"],
        "same": same,
        **forward,
    }
    inner = getattr(optimizer, "optimizer", optimizer)
    lr = inner.param_groups[0]["lr"]
    beside = type(inner)(eager.parameters(), lr=float(lr))
    for each in (eager, model):
        generator = torch.Generator().manual_seed(0)
        for p in each.parameters():
            noise = torch.randn(p.shape, generator=generator) * 1e-2
            p.grad = torch.empty_like(p).copy_(
                noise
            )  # laid out as backward would leave it
    counters.clear()
    step = names.get("step", optimizer.step)
    before = [p.detach().clone() for p in eager.parameters()]
    beside.step(), step()
    pairs = list(zip(eager.parameters(), model.parameters(), before, strict=True))
    same = all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b, _ in pairs)
    moved = any(not torch.equal(a, old) for a, _, old in pairs)
    steps = _times(beside.step, step)
    found["optimizer_step"] = {
        "graphs": counters["stats"]["unique_graphs"],
        "same": bool(same and moved),
        **steps,
    }
    group = inner.param_groups[0]
    last = torch.channels_last
    found["settings"] = {
        "optimizer": type(inner).__name__,
        "lr": float(lr),
        "fused": group.get("fused"),
        "channels_last": any(
            p.dim() == 4
            and p.is_contiguous(memory_format=last)
            and not p.is_contiguous()
            for p in model.parameters()
        ),
    }
    print(json.dumps(found))


def _plain(names: dict[str, Any]) -> tuple[Any, Any]:
    return names["model"], names["optimizer"]


def _of_the_trainer(names: dict[str, Any]) -> tuple[Any, Any]:
    """As ``train()`` makes them."""
    from transformers import Trainer

    trainer = names.get("trainer") or Trainer(names["model"], names["args"])
    trainer.create_optimizer()
    return trainer.accelerator.prepare(trainer.model, trainer.optimizer)  # type: ignore[no-any-return]


def _of_lightning(names: dict[str, Any]) -> tuple[Any, Any]:
    """After one step of ``fit``, whose optimizer goes on."""
    import pytorch_lightning
    import torch

    class Lit(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = names["model"]
            self.automatic_optimization = False

        def training_step(self, batch: Any, _: int) -> None:
            return None

        def configure_optimizers(self) -> Any:
            own = names.get("configure_optimizers")
            return own(self) if own else names["optimizer"]

    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pytorch_lightning.Trainer(
        max_epochs=1, accelerator="cpu", enable_checkpointing=False, **quiet
    )
    lit = Lit()
    trainer.fit(lit, torch.utils.data.DataLoader([0.0]))
    return names["model"], trainer.optimizers[0]


HOW: dict[str, Callable[[dict[str, Any]], tuple[Any, Any]]] = {
    "transformers": _of_the_trainer,
    "lightning": _of_lightning,
}


def _times(eager: Callable[[], Any], other: Callable[[], Any]) -> dict[str, Any]:
    """Blocks of both in turns, and how many times faster the other one is."""
    from autocompile.estimate.intervals import speedup

    for call in (eager, other) * 3:
        call()
    calls = [_calls(call) for call in (eager, other)]
    eager_s, other_s = [], []
    for number in range(ROUNDS):
        pairs = [(eager, calls[0], eager_s), (other, calls[1], other_s)]
        for call, count, into in pairs if number % 2 else reversed(pairs):
            for _ in range(count):  # what the other one left in the caches
                call()
            into.append(_block(call, count))
    return {
        "speedup": _numbers(speedup(eager_s, other_s).to_dict()),
        "eager_ms": round(1e3 * statistics.median(eager_s), 4),
        "own_ms": round(1e3 * statistics.median(other_s), 4),
    }


def _calls(call: Callable[[], Any]) -> int:
    return max(2, int(BLOCK_S / _block(call, 3)))


def _block(call: Callable[[], Any], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def table() -> None:
    data = json.loads(RECORD.read_text("utf-8"))
    head = ("model", "export", "forward", "step", "settings seen")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in data["rows"]:
        cells = [row["target"], row["to"]]
        for phase in ("forward", "optimizer_step") if "error" not in row else ():
            found = row[phase]
            assert found["same"], row
            ms, times = found["own_ms"], found["speedup"][0]
            cells.append(f"{found['graphs']}, {ms:.3g} ms, {times:.2f}x")
        seen = row.get("settings", {"error": row.get("error")}).items()
        print(f"| {' | '.join(cells)} | {', '.join(f'{k} {v}' for k, v in seen)} |")
    print("confirmed in the run:", json.dumps(data["confirmed"]))


if __name__ == "__main__":
    {"tune": tune, "run": run, "child": child, "table": table}[sys.argv[1]](
        *sys.argv[2:]
    )
