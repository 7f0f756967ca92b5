"""Figures of the studies on GPUs, of other tuners, suites and servers are those of their files."""

from __future__ import annotations

import json
import runpy
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest
from conftest import ROOT

STUDIES = ROOT / "studies"
GPU = STUDIES / "gpu"
BY_HAND = json.loads((GPU / "h100.json").read_text("utf-8"))
OF_ONE_HOST = json.loads((GPU / "ranks" / "two_h200.json").read_text("utf-8"))
IN_WORDS = {
    "reduce-overhead capturable": "whole step with graphs",
    "reduce-overhead compiled": "`reduce-overhead`, compiled optimizer",
    "reduce-overhead channels_last": "channels last and graphs",
    "frozen reduce-overhead": "frozen weights and graphs",
    "descent fused": "coordinate descent and graphs",
    "descent": "coordinate descent and graphs",
    "eager fused": "eager, fused",
}
SMALL = {
    "gpt2_step": "GPT-2, 6 layers, step",
    "bert_step": "BERT-base, step",
    "resnet_step": "ResNet-50, step",
    "vit_step": "ViT-B, step",
    "llama_prefill": "LLaMA-shaped, prompt of 256",
    "llama_decode": "the same, one token",
    "vit_forward": "ViT-B, 8 images",
    "convnext_forward": "ConvNeXt-tiny, 8 images",
    "whisper_encoder": "Whisper-base, encoder",
    "ppo_cnn": "PPO's network for Atari",
    "ppo_adam": "its Adam step",
}
LARGE = {
    "gpt2_medium_step": "GPT-2 medium step (355 M, dropout)",
    "recommender_step": "recommender step (167 M)",
    "t5_step": "T5-base step (dropout)",
    "vit_large_step": "ViT-L step",
    "whisper_large": "Whisper-large, encoder",
    "unet_large": "UNet of 820 M",
    "llama_1b_prompt": "LLaMA-shaped, 1.3 B, prompt of 512",
    "llama_1b_token": "the same, 1.4 B, one token",
}


def text_of(study: str) -> str:
    return (STUDIES / study / "README.md").read_text("utf-8")


def row_of(text: str, first: str) -> list[str]:
    """The other cells of the row of a table."""
    (line,) = [x for x in text.splitlines() if x.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.split("|")[2:-1]]


def three(value: float) -> str:
    """Three digits."""
    return f"{value:#.3g}".rstrip(".")


def times(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def by_hand(name: str) -> tuple[float, dict[str, float]]:
    """Eager mode of all processes, and each setting's fastest process, in milliseconds."""
    rows = BY_HAND[name]["rows"]
    eager = median(ms for row in rows for ms in row.get("eager_ms", ()))
    ms: dict[str, float] = {}
    for row in rows:
        if "compiled_ms" in row:
            own = median(row["compiled_ms"])
            ms[row["setting"]] = min(own, ms.get(row["setting"], own))
    return eager, ms


def found(ms: dict[str, float], *names: str) -> float | None:
    return next((ms[name] for name in names if name in ms), None)


@pytest.mark.parametrize("name", SMALL)
def test_settings_by_hand_are_those_of_their_file(name: str) -> None:
    eager, ms = by_hand(name)
    shown, plain, overhead, autotune, best, _ = row_of(text_of("gpu"), SMALL[name])
    assert shown == three(eager)
    for cell, names in (
        (plain, ("compile",)),
        (
            overhead,
            (
                "reduce-overhead",
                "reduce-overhead fused",
                "reduce-overhead capturable",
            ),
        ),
        (autotune, ("max-autotune", "max-autotune capturable")),
    ):
        own = found(ms, *names)
        if own is None:
            rows = BY_HAND[name]["rows"]
            late = [r["message"] for r in rows if "max-autotune" in r["setting"]]
            assert [cell] == (late or ["not tried"]), name
        else:
            assert cell == f"{three(own)} · {times(eager / own)}", (name, cell)
    fastest = min(ms, key=lambda setting: ms[setting])
    gain = times(eager / ms[fastest])
    assert best == f"{three(ms[fastest])} · **{gain}**, {IN_WORDS[fastest]}"


def test_graphs_are_near_the_best_as_often_as_it_says() -> None:
    near = 0
    for name in SMALL:
        _, ms = by_hand(name)
        own = found(ms, "reduce-overhead", "reduce-overhead fused")
        near += (own or ms["reduce-overhead capturable"]) <= 1.03 * min(ms.values())
    assert len(SMALL) == 11 and near == 6
    assert "within 3 % of the best setting written by hand for six of eleven" in (
        text_of("gpu").replace("\n", " ")
    )


def test_what_tune_picked_is_as_near_as_it_says() -> None:
    picks = json.loads((GPU / "picks.json").read_text())
    text, far = text_of("gpu"), []
    for name, pick in picks.items():
        assert pick["tune"]["word"] == "open" and pick["tune"]["effort"] == "normal"
        cell = row_of(text, SMALL[name])[-1]
        ms = pick.get("ms", {})
        own = ms.get("pick", 1e3 * pick["tune"]["call_s"])
        beside = [t for n, t in ms.items() if n not in ("pick", "eager", "compile")]
        if " and " in cell:
            assert cell.startswith(f"{three(own)} and {three(min(beside))}: "), name
            behind = own / min(beside) - 1
        else:  # against what was timed on another day
            behind = own / min(by_hand(name)[1].values()) - 1
        if "behind" in cell:
            assert f"{100 * behind:.1f} % behind" in cell, (name, behind)
        elif "ahead" in cell:
            assert behind < 0, (name, behind)
        if behind > 0.04:
            far.append(name)
    assert "within 4 % of that best for eight of nine" in text.replace("\n", " ")
    # ConvNeXt's was not timed beside it: the same setting by hand is near.
    ms = by_hand("convnext_forward")[1]
    assert ms["reduce-overhead"] <= 1.04 * min(ms.values())
    assert len(picks) == 9 and set(far) == {"llama_decode", "convnext_forward"}


def test_answers_for_large_networks_are_those_of_their_file() -> None:
    large = json.loads((GPU / "large.json").read_text("utf-8"))
    assert set(large) == set(LARGE)
    text, near = text_of("gpu"), 0
    told = [(LARGE[name], row["tune"]) for name, row in large.items()]
    told.append(("one token, default effort", large["llama_1b_token"]["tune_normal"]))
    for title, tune in told:
        after, answer, _ = row_of(text, title)
        gain, call = tune["speedup"], tune["call"].split(" · ")[0].split()
        shown = f"{gain['value']:.2f}× [{gain['low']:.2f}, {gain['high']:.2f}]"
        assert after == f"{tune['last_result_s']} s"
        assert f"{shown}, *{tune['word']}*, {call[1]} ms" in answer, title
    for name, row in large.items():
        best = min(row["ms"].values())
        cell = row_of(text, LARGE[name])[-1]
        assert three(best) in cell, (name, best)
        call = row["tune"]["call"].split()
        behind = float(call[1]) / best - 1
        near += "the same" in cell or (behind <= 0.15 and "missed" not in cell)
        if "behind" in cell:
            assert f"{100 * behind:.0f} % behind" in cell, (name, behind)
    assert near == 5 and "within 15 % for five of eight" in text
    after = [row["tune"]["last_result_s"] for row in large.values()]
    assert f"which take {min(after)} to {max(after)} s" in text


def test_the_report_of_the_readme_is_kept() -> None:
    report = json.loads((GPU / "gpt2_step_report.json").read_text("utf-8"))
    best = report["phases"]["train_step"]["answer"]["best"]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"{1e3 * best['call_s']:.1f} ms" in readme
    for name in ("default_call_s", "eager_call_s"):
        assert f"{1e3 * best[name]:.0f}" in readme


def test_the_networks_have_targets_and_their_recorded_settings() -> None:
    networks = runpy.run_path(str(GPU / "networks.py"))
    for model in networks["MODELS"].values():
        assert model.path.exists(), model.name
        specs = {spec.name: spec for spec in networks["settings"](model)}
        assert len(specs) == len(networks["settings"](model))
        if model.name in BY_HAND:
            for row in BY_HAND[model.name]["rows"]:
                spec = specs[row["setting"]].to_dict()
                assert spec.items() <= row["spec"].items(), (model.name, row["setting"])


def test_blocks_are_as_the_readme_says() -> None:
    forms = {
        "loop": "loop",
        "one step between synchronizations": "apart, 0 untimed, 1 timed",
        "five of them": "apart, 0 untimed, 5 timed",
        "one between events, after one untimed": "by_events, 1 untimed, 1 timed",
        "three, after two": "by_events, 2 untimed, 3 timed",
        "five, after three": "by_events, 3 untimed, 5 timed",
    }
    path = GPU / "block_timing" / "encoder.json"
    eager, plain, graph = json.loads(path.read_text())["ms"].values()
    for title, form in forms.items():
        shown = row_of(text_of("gpu/block_timing"), title)
        assert shown == [
            f"{eager[form]:.2f}",
            f"{plain[form]:.2f}",
            f"{eager[form] / plain[form]:.3f}",
            f"{graph[form]:.3f}",
        ]


def test_precisions_bring_what_the_readme_says() -> None:
    titles = {
        "bert_step": "BERT, 6 layers, 16 x 128",
        "gpt2_step": "GPT-2, 6 layers, 8 x 512",
        "vit_step": "ViT-S, 32 images",
    }
    recorded = json.loads((GPU / "precision" / "h200.json").read_text("utf-8"))
    alone, compiled, both = [], [], []
    for name, title in titles.items():
        rows = recorded[name]["rows"]
        ms = defaultdict(dict)
        for row in rows:
            ms[row["mode"]][row["precision"]] = median(row["ms"])
        cells = [
            ", ".join(f"{value:.1f}" for value in of_mode.values())
            for of_mode in ms.values()
        ]
        shown = row_of(text_of("gpu/precision"), title)
        assert [cell.replace("**", "") for cell in shown] == cells
        eager = ms["off"]["float32"]
        alone.append(eager / ms["off"]["bfloat16"])
        compiled += [
            eager / ms[mode]["float32"] for mode in ("default", "reduce-overhead")
        ]
        both.append(eager / ms["reduce-overhead"]["bfloat16"])
    text = text_of("gpu/precision").replace("\n", " ")
    assert f"brings {min(alone):.1f} to {max(alone):.1f} times" in text
    low, high = (100 * (value - 1) for value in (min(compiled), max(compiled)))
    assert f"a compiler alone {low:.0f} to {high:.0f} %" in text
    assert f"both together {min(both):.1f} to {max(both):.1f} times" in text


def test_two_gpus_take_what_the_readme_says() -> None:
    text = text_of("gpu/ranks")
    titles = {
        "robot_step": "robot's policy, 20 M, DDP",
        "gpt2_124m_step": "GPT-2, 124 M, DDP",
        "llama_350m_step": "LLaMA, 350 M, FSDP2",
    }
    columns = (
        "eager",
        "eager fused",
        "compile",
        "compile fused",
        "reduce-overhead fused",
    )
    hand = {
        name: {row["setting"]: median(row["ms"]) for row in rows}
        for name, rows in OF_ONE_HOST["by_hand"].items()
    }
    for name, title in titles.items():
        cells = row_of(text, title)
        for cell, column in zip(cells, columns, strict=False):
            own = hand[name].get(column)
            assert cell.replace("**", "") == (three(own) if own else ""), (name, column)
    assert f"{hand['gpt2_124m_step']['reduce-overhead fused, one bucket']:.1f}" in text
    llama = hand["llama_350m_step"]
    gathered = llama["compile fused, gathered"]
    assert f"gathered, fused **{gathered:.0f}**" in text
    assert f"{llama['compile fused'] / gathered:.2f} times" in text
    assert f"({llama['eager'] / llama['compile']:.2f})" in text
    hosts = [hand[name]["eager"] for name in hand if name.startswith("gpt2")]
    assert "{:.1f} and {:.1f}".format(*hosts) in text


def test_answers_for_two_gpus_are_those_of_their_file() -> None:
    text = text_of("gpu/ranks")
    for tune in OF_ONE_HOST["tuned"]:
        (told,) = [
            part
            for part in text.replace("|", ";").split(";")
            if f" {tune['budget_s']} s: " in part
        ]
        assert f"*{tune['word']}*" in told
        assert f"(eager {1e3 * tune['eager_call_s']:.0f})" in told
        call = 1e3 * tune["call_s"]
        assert (f"{call:.1f}" if call < 10 else f"{call:.0f}") in told
        if tune["word"] == "open":
            assert f"{tune['speedup']['value']:.2f}x" in told
    compiled = [
        trial["seconds"]
        for tune in OF_ONE_HOST["tuned"]
        for trial in tune["trials"]
        if trial["race"] is None and trial["config"].get("mode") == "reduce-overhead"
    ]
    assert f"a trial takes {round(median(compiled), -1):.0f} s" in text
    (gpt2,) = [t for t in OF_ONE_HOST["tuned"] if t["network"] == "gpt2_124m_step"]
    (plain, *_) = [t for t in gpt2["trials"] if t["config"]["backend"] == "inductor"]
    rows = OF_ONE_HOST["by_hand"]["gpt2_124m_step"]
    (by_hand_ms,) = [row["ms"] for row in rows if row["setting"] == "compile"]
    shown = f"{median(plain['ms']):.0f} in place of {median(by_hand_ms):.0f} ms"
    assert shown in text.replace("\n ", "")


def test_other_tuners_picks_and_figures_are_those_of_their_file() -> None:
    text = text_of("other_tuners")
    every = json.loads((STUDIES / "other_tuners" / "two_cores.json").read_text())
    cnn = every["small_cnn"]
    ms, given_back = cnn["memory kept"]["ms"], cnn["memory given back"]["ms"]
    eager = ms['"eager"']
    for tool, sign in (("autocompile", "{"), ("aitune", '"')):
        rows = [row for row in cnn["rows"] if row["tool"] == tool]
        for row in rows:
            key = json.dumps(row["pick"])
            assert key.startswith(sign) and f"{row['speedup']:.2f}" in text
            row["off"] = abs(row["speedup"] / (eager / ms[key]) - 1)
            assert f"{eager / ms[key]:.2f}" in text
        off = sorted(row["off"] for row in rows)
        if tool == "aitune":
            assert f"| {100 * off[0]:.0f} to {100 * off[-1]:.0f} % |" in text
        else:
            *right, low = off
            assert f"{100 * right[0]:.1f} to {100 * right[-1]:.1f} % off" in text
            assert f"| {100 * low:.0f} % |" in text
            words = [row["confidence"] for row in rows if row["off"] == low]
            assert words == ["low"]
    best = min(ms.values())
    assert f"| **{best:.2f}** |" in text and f"| {eager:.2f} |" in text
    plain, autotune = ms['"default"'], ms['"max-autotune"']
    assert f"| {plain:.2f}; {autotune:.2f} |" in text
    assert f"{100 * (plain / best - 1):.0f} % slower" in text
    back = given_back['"eager"']
    gains = [back / min(given_back.values()), back / given_back['"default"']]
    assert f"takes {back:.2f} ms, and the gains are {gains[0]:.2f} and" in text
    encoder = every["small_encoder"]["memory kept"]["ms"]
    slow, fast = encoder['"eager"'], encoder['"max-autotune"']
    assert f"(eager {slow:.2f} ms, max-autotune {fast:.2f})" in text
    assert slow / min(encoder.values()) < 1.04 and "more than 4 %" in text


def test_the_liars_are_as_the_readme_says() -> None:
    text = text_of("other_tuners")
    every = json.loads((STUDIES / "other_tuners" / "two_cores.json").read_text())
    liars = {(row["lie"], row["tool"]): row for row in every["liars"]}
    assert {
        row["pick"] for (_, tool), row in liars.items() if tool == "autocompile"
    } == {"eager"}
    assert f"recommended, {liars['zeros', 'aitune']['speedup']:.0f} times" in text
    assert liars["segfault", "aitune"]["ended"] == "exit -11"
    assert liars["hang", "aitune"]["ended"] == "not within 240 s"
    for lie in ("segfault", "hang"):
        assert f"keeps eager, {liars[lie, 'autocompile']['wall_s']:.0f} s" in text


def test_the_picks_of_a_suite_are_those_of_their_file() -> None:
    text = text_of("suite_picks")
    path = STUDIES / "suite_picks" / "two_cores.json"
    gains = []
    for target, model in json.loads(path.read_text())["models"].items():
        ms = dict(model["ms"])
        pick, best = ms.pop("pick"), min(ms.values())
        gains.append(100 * (1 - pick / best))
        (cells,) = [
            line.split("|")
            for line in text.splitlines()
            if f"| {three(pick)} |" in line
        ]
        assert target.partition(":")[2].startswith(cells[1].split()[0].rstrip(","))
        assert model["pick"]["backend"] in cells[2]
        assert cells[4:7] == [
            f" `{min(ms, key=lambda name: ms[name])}` ",
            f" {three(best)} ",
            f" −{gains[-1]:.0f} % ",
        ]
        if "ViT" in target:
            shown = f"takes {ms['eager']:.1f} ms and plain `torch.compile()` "
            assert shown + f"{ms['compile()']:.1f}" in text
    assert f"takes {min(gains):.0f} to {max(gains):.0f} % less time" in text


def test_the_servers_table_is_that_of_its_file() -> None:
    script = runpy.run_path(str(STUDIES / "threads_of_a_server" / "server.py"))
    runs = json.loads(Path(script["PATH"]).read_text("utf-8"))["runs"]
    for name, run in runs.items():
        assert script["line"](name, run) in text_of("threads_of_a_server"), name
    assert (
        runs["server"]["samples"][0]["graphs"]
        == (runs["server"]["samples"][-1]["graphs"])
    )
