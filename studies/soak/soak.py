"""Programs that use settings for 20 minutes: is memory flat, is anything compiled again, is it right.

    python studies/soak/soak.py rllib
    python studies/soak/soak.py trainer
    python studies/soak/soak.py server
    python studies/soak/soak.py frozen --minutes 5      # the server, with weights as constants
    python studies/soak/soak.py server --minutes 3 --name server_after
    python studies/soak/soak.py rllib --minutes 5 --eager    # the same program without settings
    python studies/soak/soak.py table                   # verdicts, from the JSON

Each applies a file of settings as a user does, runs with one thread of torch, and writes what it
sees every ten seconds to ``cpu/<program>.json``. Verdicts are made of that when they are read.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "truth"))

SEED, EVERY_S = 0, 10.0
# Rules of the verdicts.
WARM_UP_S = (
    180.0  # of a server none: it has called each batch size twice before it serves
)
FLAT_MB = 5.0  # in ten minutes, fitted to the last three quarters
PARTED = 0.01  # of how far the weights moved,
ROUNDED = 3.0  # or of what their last bits alone do
OFF = 1e-4  # of the largest output

BATCH_SIZES = (1, 2, 3, 4, 8, 16)
THREADS, PAUSE_S, CHECKED = 4, 0.002, 20  # one of so many calls is compared
REPLACED_S = {"server": 1.0, "frozen": 5.0}
STEPS_COMPARED = 20
LENGTHS, WORDS, WIDTH = (12, 20, 32), 61, 32


class Recorder:
    """What the process is like while a program runs."""

    def __init__(self, minutes: float) -> None:
        self.began, self.minutes = time.monotonic(), minutes
        self.samples: list[dict[str, Any]] = []
        self._next = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.began > 60 * self.minutes

    def look(self, steps: int, **more: Any) -> None:
        """Take a sample if the last is ten seconds old, and one at the end."""
        now = time.monotonic() - self.began
        if self.samples and now < self._next and not self.is_over:
            return
        self._next = now - now % EVERY_S + EVERY_S
        gc.collect()
        self.samples.append(
            {
                "s": round(now, 1),
                "steps": steps,
                "objects": len(gc.get_objects()),
                **memory(),
                **compiled(),
                **more,
            }
        )
        print(json.dumps(self.samples[-1]), file=sys.stderr, flush=True)


def memory() -> dict[str, float]:
    """Resident memory of this process and of those that it started, and its compiler's cache."""
    import psutil

    process = psutil.Process()
    children = 0
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            children += child.memory_info().rss
    cached = 0
    for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*"):
        with contextlib.suppress(OSError):  # a file of a compiler at work
            cached += path.stat().st_size
    return {
        "rss_mb": round(process.memory_info().rss / 2**20, 2),
        "children_mb": round(children / 2**20, 2),
        "cache_mb": round(cached / 2**20, 2),
    }


def compiled() -> dict[str, int]:
    """What torch has captured and compiled so far in this process."""
    from torch._dynamo import utils

    times = utils.compilation_time_metrics
    return {
        "graphs": int(utils.counters["stats"]["unique_graphs"]),
        "frames": int(utils.counters["frames"]["total"]),
        "inductor": len(times.get("compile_fx_inner", ())),
    }


def settings(folder: Path, **phases: Any) -> Path:
    """A file as ``autocompile export -o`` writes it: of each phase a config and a batch size."""
    import torch

    from autocompile.runtime.machine import describe
    from autocompile.settings.tuned import Choice, Tuned, TunedSet

    even = {"value": 1.0, "low": 1.0, "high": 1.0}
    choices = {name: (Choice(*given, even, 3),) for name, given in phases.items()}
    sizes = {name: size for name, (_, size) in phases.items() if size}
    tuned = Tuned(choices, describe(torch.device("cpu")), batch_sizes=sizes)
    path = folder / "tuned.json"
    path.write_text(TunedSet.read(tuned).to_json(), "utf-8")
    return path


def parted(start: Any, one: Any, other: Any) -> dict[str, float]:
    """How far two trainings from the same weights moved, and how far they are apart."""
    import torch

    def norm(a: dict[str, Any], b: dict[str, Any]) -> float:
        each = [(a[name].double() - b[name].double()).norm() for name in a]
        return float(torch.stack(each).norm())

    moved, apart = norm(start, other), norm(one, other)
    return {"moved": moved, "apart": apart, "ratio": apart / moved}


def rounded(module: Any) -> None:
    """Change each weight by its last bit: how far rounding alone takes a training."""
    import torch

    draw = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(
                1 + (torch.randint(0, 2, p.shape, generator=draw) * 2 - 1) * 2.0**-23
            )


def weights_of(module: Any) -> dict[str, Any]:
    return {name: x.detach().clone() for name, x in module.state_dict().items()}


# ---- RLlib


def rllib(recorder: Recorder, folder: Path, is_eager: bool) -> dict[str, Any]:
    """PPO on CartPole: env runner, learner and optimizer in this process."""
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

    from autocompile.rllib import tuned
    from autocompile.settings.config import CompileConfig

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    untuned = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16)
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=1024,
            minibatch_size=128,
            num_epochs=2,
            lr=0.0003,
        )
        .rl_module(model_config={"fcnet_hiddens": [32, 32]})
        .debugging(seed=SEED)
    )
    inductor = CompileConfig(threads=1)
    path = settings(
        folder,
        forward_exploration=(inductor, 16),
        forward_train=(inductor, 128),
        optimizer_step=(CompileConfig("eager", optimizer="fused"), None),
    )
    config = untuned if is_eager else tuned(untuned, path)
    algorithm = config.build_algo()
    steps, result = 0, {}
    while not recorder.is_over:
        result = algorithm.train()
        steps += 1
        mean = result["env_runners"].get("episode_return_mean", float("nan"))
        recorder.look(steps, episode_return=round(float(mean), 1))
    found = {
        "settings": json.loads(path.read_text("utf-8"))["phases"],
        "active": result.get("autocompile"),
    }
    if is_eager:
        return found

    # The state of the algorithm goes to untuned ones, and all get the same episodes.
    sides = {"tuned": algorithm}
    for name in ("eager", "rounded"):
        sides[name] = untuned.build_algo()
        sides[name].set_state(algorithm.get_state())
    learners = {name: side.learner_group._learner for name, side in sides.items()}
    for one in learners.values():  # which the state does not hold
        one.curr_kl_coeffs_per_module = copy.deepcopy(
            learners["tuned"].curr_kl_coeffs_per_module
        )
    modules = {name: one.module["default_policy"] for name, one in learners.items()}
    rows = torch.randn(128, 4, generator=torch.manual_seed(SEED))
    outputs = {}
    with torch.no_grad():
        for name, given in (
            ("forward_train", rows),
            ("forward_exploration", rows[:16]),
        ):
            got, want = (
                getattr(
                    modules[side]
                    if name == "forward_train"
                    else sides[side].env_runner.module,
                    name,
                )({"obs": given})["action_dist_inputs"]
                for side in ("tuned", "eager")
            )
            outputs[name] = float((got - want).abs().max() / want.abs().max())
    start = weights_of(modules["eager"])
    rounded(modules["rounded"])
    episodes = algorithm.env_runner.sample(num_timesteps=1024, random_actions=False)
    for one in learners.values():
        torch.manual_seed(SEED)
        one.update(
            episodes=copy.deepcopy(episodes),
            timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: steps * 1024},
            num_epochs=1,
            minibatch_size=128,
            shuffle_batch_per_epoch=False,
        )
    after = {name: weights_of(module) for name, module in modules.items()}
    return {
        **found,
        "outputs_off": outputs,
        "update": parted(start, after["tuned"], after["eager"]),
        "rounding": parted(start, after["rounded"], after["eager"]),
    }


# ---- Trainer of Transformers


def trainer(recorder: Recorder, folder: Path, is_eager: bool) -> dict[str, Any]:
    """A tiny GPT-2 whose batches have three lengths; the rate of learning changes at each step."""
    import transformers

    from autocompile.settings.config import CompileConfig
    from autocompile.transformers import TunedCallback

    inductor = CompileConfig(threads=1)
    path = settings(
        folder,
        forward=(inductor, 4),
        optimizer_step=(CompileConfig(optimizer="tensor_lr", threads=1), None),
    )
    used = [] if is_eager else [TunedCallback(path)]
    soaked = train(folder, recorder, None, [*used])
    losses = [r["loss"] for r in soaked.state.log_history if "loss" in r]
    found = {
        "settings": json.loads(path.read_text("utf-8"))["phases"],
        "losses": [losses[i] for i in range(0, len(losses), max(1, len(losses) // 20))],
    }
    if is_eager:
        return found
    model, optimizer = soaked.model, soaked.optimizer
    step = vars(getattr(optimizer, "optimizer", optimizer))["_autocompile_step"]
    calls = {
        "forward": model._compiled_call_impl.calls,
        "optimizer_step": step.compiled.calls,
    }

    class Rounded(transformers.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
            rounded(model)

    start, saved = weights_of(model), str(folder / "out" / checkpoint(folder))
    sides = {
        "tuned": [TunedCallback(path)],
        "eager": [],
        "rounded": [Rounded()],
    }
    after, final = {}, {}
    for name, callbacks in sides.items():
        done = train(folder, None, saved, callbacks)
        after[name] = weights_of(done.model)
        final[name] = [r["loss"] for r in done.state.log_history[-STEPS_COMPARED - 1 :]
                       if "loss" in r][-STEPS_COMPARED:]  # fmt: skip
    return {
        **found,
        "calls": calls,
        "update": parted(start, after["tuned"], after["eager"]),
        "rounding": parted(start, after["rounded"], after["eager"]),
        "update_that_shows": parted(
            *(that_show(each) for each in (start, after["tuned"], after["eager"]))
        ),
        "loss_off": max(
            abs(a - b) / abs(b)
            for a, b in zip(final["tuned"], final["eager"], strict=True)
        ),
        "losses_compared": len(final["eager"]),
    }


def that_show(weights: dict[str, Any]) -> dict[str, Any]:
    """Without the bias of attention's keys, which softmax takes away: Adam moves it by rounding."""
    import torch

    return {
        name: torch.cat([x[:WIDTH], x[2 * WIDTH :]])
        if name.endswith("c_attn.bias")
        else x
        for name, x in weights.items()
    }


def checkpoint(folder: Path) -> str:
    (name,) = [path.name for path in (folder / "out").glob("checkpoint-*")]
    return name


def train(
    folder: Path, recorder: Recorder | None, saved: str | None, callbacks: list[Any]
) -> Any:
    """Train until the time is over, and save; or from what was saved, twenty steps more."""
    import torch
    import transformers

    class Until(transformers.TrainerCallback):  # type: ignore[misc]
        first: int | None = None

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if recorder is not None:
                recorder.look(state.global_step)
                control.should_save = recorder.is_over
                control.should_training_stop = recorder.is_over
                return
            self.first = self.first or state.global_step
            control.should_log = True
            if state.global_step - self.first == STEPS_COMPARED - 1:
                control.should_training_stop = True

    torch.manual_seed(SEED)
    sizes = {"vocab_size": WORDS, "n_positions": 32, "n_embd": WIDTH, "n_layer": 2}
    # Compiled code draws other random numbers, so a comparison needs a model without dropout.
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "n_head": 4}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, **drop, **ends)
    )
    arguments = transformers.TrainingArguments(
        str(folder / "out"),
        max_steps=10**7,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        optim="adamw_torch",
        learning_rate=1e-3,
        lr_scheduler_type="inverse_sqrt",
        logging_steps=500,
        save_strategy="no",
        ignore_data_skip=True,
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
        seed=SEED,
    )
    made = transformers.Trainer(
        model,
        arguments,
        train_dataset=sentences(),
        data_collator=padded,
        callbacks=[*callbacks, Until()],
    )
    made.train(resume_from_checkpoint=saved)
    return made


def sentences() -> list[dict[str, Any]]:
    """Words of which each depends on the last, with noise, so that there is always more to learn."""
    import torch

    draw = torch.Generator().manual_seed(SEED)
    found = []
    for number in range(2048):
        length = LENGTHS[number % len(LENGTHS)]
        words = [int(torch.randint(WORDS, (), generator=draw))]
        noise = torch.randint(5, (length,), generator=draw)
        for each in noise[1:]:
            words.append((3 * words[-1] + int(each)) % WORDS)
        found.append({"input_ids": torch.tensor(words)})
    return found


def padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    def pad(kept: list[Any], value: int) -> Any:
        return torch.nn.utils.rnn.pad_sequence(kept, True, value)

    words = [row["input_ids"] for row in rows]
    return {
        "input_ids": pad(words, 0),
        "attention_mask": pad([torch.ones_like(x) for x in words], 0),
        "labels": pad(words, -100),
    }


# ---- A server


class Weights:
    """Calls go together; weights are replaced when none runs."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._calls, self._is_replaced = 0, False

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._is_replaced)
            self._calls += 1
        try:
            yield
        finally:
            with self._free:
                self._calls -= 1
                self._free.notify_all()

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        with self._free:
            self._is_replaced = True
            self._free.wait_for(lambda: not self._calls)
        try:
            yield
        finally:
            with self._free:
                self._is_replaced = False
                self._free.notify_all()


def network() -> Any:
    import torch

    layers = torch.nn
    return layers.Sequential(
        layers.Conv2d(3, 16, 3, padding=1),
        layers.BatchNorm2d(16),
        layers.ReLU(),
        layers.Conv2d(16, 32, 3, stride=2, padding=1),
        layers.BatchNorm2d(32),
        layers.ReLU(),
        layers.AdaptiveAvgPool2d(2),
        layers.Flatten(),
        layers.Linear(128, 10),
    ).eval()


def new_weights(seed: int) -> dict[str, Any]:
    """Of another training, so to speak: other in each value."""
    import torch

    draw = torch.Generator().manual_seed(seed)

    def drawn(name: str, x: Any) -> Any:
        if not x.is_floating_point():
            return x.clone()
        value = torch.randn(x.shape, generator=draw)
        if name.endswith("running_var"):
            return value.abs() + 0.5
        return value / max(1, x[0].numel() if x.dim() > 1 else 1) ** 0.5

    return {name: drawn(name, x) for name, x in network().state_dict().items()}


def server(
    recorder: Recorder, folder: Path, is_eager: bool, program: str = "server"
) -> dict[str, Any]:
    """Four threads call one model with six batch sizes while its weights are replaced."""
    import torch

    import autocompile
    from autocompile.settings.config import CompileConfig

    config = CompileConfig(
        threads=1, memory_format="channels_last", freezing=program == "frozen"
    )
    path = settings(folder, forward=(config, 8))
    model, reference = network(), network()
    reference.load_state_dict(model.state_dict())
    if not is_eager:
        autocompile.apply(model, path)
    # In one thread: of several that miss a program, each would compile it and count as one of eight.
    with torch.no_grad():
        for size in (*BATCH_SIZES, *BATCH_SIZES):
            model(torch.randn(size, 3, 32, 32))
    weights, over = Weights(), threading.Event()
    calls, checks, worst = [0] * THREADS, [0] * THREADS, [0.0] * THREADS
    errors: list[str] = []

    def serve(number: int) -> None:
        torch.set_num_threads(1)
        draw = torch.Generator().manual_seed(number)
        try:
            while not over.is_set():
                size = int(torch.randint(len(BATCH_SIZES), (), generator=draw))
                x = torch.randn(BATCH_SIZES[size], 3, 32, 32, generator=draw)
                with torch.no_grad(), weights.in_use():
                    got = model(x)
                    if calls[number] % CHECKED == 0:
                        want = reference(x)
                        off = float((got - want).abs().max() / want.abs().max())
                        worst[number] = max(worst[number], off)
                        checks[number] += 1
                calls[number] += 1
                time.sleep(PAUSE_S)
        except Exception as error:
            errors.append(f"thread {number}: {type(error).__name__}: {error}")
            over.set()

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    replaced = 0

    def look() -> None:
        recorder.look(
            sum(calls), replaced=replaced, checked=sum(checks), off=max(worst)
        )

    while not (recorder.is_over or over.is_set()):
        look()
        time.sleep(REPLACED_S[program])
        fresh = new_weights(replaced)
        with weights.replaced():
            for each in (model, reference):
                each.load_state_dict(fresh)
        replaced += 1
    over.set()
    for thread in threads:
        thread.join()
    look()
    return {
        "settings": json.loads(path.read_text("utf-8"))["phases"],
        "calls": calls,
        "checked": checks,
        "replaced": replaced,
        "outputs_off": worst,
        "errors": errors,
    }


def frozen(recorder: Recorder, folder: Path, is_eager: bool) -> dict[str, Any]:
    """The same with weights as constants, which Inductor compiles again when they are new."""
    return server(recorder, folder, is_eager, "frozen")


# ---- Verdicts


def slope(samples: list[dict[str, Any]], name: str) -> float:
    """By how much it rises in ten minutes, fitted to the last three quarters."""
    import numpy as np

    late = [x for x in samples if x["s"] >= samples[-1]["s"] / 4]
    return 600 * float(
        np.polyfit([x["s"] for x in late], [x[name] for x in late], 1)[0]
    )


def table() -> None:
    """Print what each program showed."""
    print(
        "| program | minutes | steps | memory at 1/4 and at the end | slope in 10 minutes | "
        "children | graphs after warm-up | as eager mode |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for path in sorted((HERE / "cpu").glob("*.json")):
        found = json.loads(path.read_text("utf-8"))
        samples, last = found["samples"], found["samples"][-1]
        quarter = next(x for x in samples if x["s"] >= last["s"] / 4)
        warm_up_s = 0.0 if found["program"] in REPLACED_S else WARM_UP_S
        warm = next((x for x in samples if x["s"] >= warm_up_s), last)
        rise, beside = slope(samples, "rss_mb"), slope(samples, "children_mb")
        flat = "flat" if rise <= FLAT_MB else "**rises**"
        more = last["graphs"] - warm["graphs"]
        again = f"{warm['graphs']}, then {more or 'none'} more"
        print(
            f"| {path.stem} | {last['s'] / 60:.0f} | {last['steps']:,} | "
            f"{quarter['rss_mb']:.1f}, {last['rss_mb']:.1f} MB | {rise:+.1f} MB: {flat} | "
            f"{beside:+.1f} MB | {again} | {likeness(found)} |"
        )


def likeness(found: dict[str, Any]) -> str:
    """How near results are to those of eager mode, and whether that is near enough."""
    if found["is_eager"]:
        return "is eager mode"
    done, words, is_right = found["found"], [], True
    if "outputs_off" in done:
        kept = done["outputs_off"]
        off = max(kept.values() if isinstance(kept, dict) else kept)
        words.append(f"outputs {off:.1e} off")
        is_right &= off <= OFF
    if "update" in done:
        ratio, bits = (done[name]["ratio"] for name in ("update", "rounding"))
        words.append(f"weights apart by {ratio:.1e} of their way")
        words.append(f"by their last bits alone {bits:.1e}")
        is_right &= ratio <= max(PARTED, ROUNDED * bits)
    if "update_that_shows" in done:
        ratio = done["update_that_shows"]["ratio"]
        words.append(f"those that outputs depend on by {ratio:.1e}")
        is_right &= ratio <= PARTED
    if "loss_off" in done:
        words.append(f"losses {done['loss_off']:.1e} off")
    is_right &= not done.get("errors")
    return f"{'yes' if is_right else '**no**'}: {', '.join(words)}"


PROGRAMS: dict[str, Callable[..., dict[str, Any]]] = {
    "rllib": rllib,
    "trainer": trainer,
    "server": server,
    "frozen": frozen,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("program", choices=[*PROGRAMS, "table"])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--eager", action="store_true", help="apply no settings")
    parser.add_argument("--name", help="of the JSON")
    asked = parser.parse_args()
    if asked.program == "table":
        table()
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        from store import commit, machine

        torch.set_num_threads(1)
        recorder = Recorder(asked.minutes)
        found = PROGRAMS[asked.program](recorder, folder, asked.eager)
        told = {
            "schema": 1,
            "program": asked.program,
            "is_eager": asked.eager,
            "machine": machine("cpu") | versions(),
            "commit": commit(),
            "samples": recorder.samples,
            "found": found,
        }
    text = json.dumps({k: v for k, v in told.items() if k != "samples"}, indent=1)
    rows = ",\n  ".join(json.dumps(x) for x in recorder.samples)
    name = asked.name or asked.program + "_eager" * asked.eager
    path = HERE / "cpu" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{text[:-2]},\n "samples": [\n  {rows}\n ]\n}}\n', "utf-8")
    table()


def versions() -> dict[str, str]:
    from importlib import metadata

    names = ("ray", "gymnasium", "transformers", "accelerate")
    return {name: metadata.version(name) for name in names}


if __name__ == "__main__":
    main()
