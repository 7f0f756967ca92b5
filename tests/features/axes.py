"""The features that meet in the matrix, and the pairs of them that cannot meet, with the reason."""

from __future__ import annotations

from pairs import Impossible

FORWARDS = ("forward", "inference_step", "forward_exploration")
TRAINING = ("train_step", "step", "learner_update")
IN_RLLIB = ("forward_exploration", "learner_update")
OWN = ("step", "inference_step")

AXES = {
    "phase": (
        "forward",
        "train_step",
        "optimizer_step",
        "step",
        "inference_step",
        "forward_exploration",
        "learner_update",
    ),
    "calls": ("one", "get_calls", "recorded"),
    "scope": ("model", "regional", "step"),
    "numbers": ("float32", "precision", "autocast"),
    "optimizer": ("default", "fused", "tensor_lr", "compiled"),
    "memory": ("default", "channels_last"),
    "weights": ("live", "frozen", "baked"),
    "sampler": ("portfolio", "random"),
    # The setting that wins keeps the latency, and the other side does not; nothing that compiles
    # keeps the compile time.
    "limit": ("none", "latency", "compile"),
    "horizon": ("none", "long", "short"),
    "resume": ("no", "yes"),
    "export": ("apply", "lines", "rllib"),
    "suite": ("no", "yes"),
    # Everything was tried; few of many settings were; what was tried is slower than eager mode.
    "ending": ("all", "few", "slower"),
}

IMPOSSIBLE = (
    Impossible(
        "numbers", ("autocast",), "weights", ("baked",),
        "ONNX Runtime multiplies no matrices in bfloat16 on a CPU",
    ),
    Impossible(
        "phase", IN_RLLIB, "calls", ("get_calls", "recorded"),
        "RLlib's configurations say themselves what a module is called with",
    ),
    Impossible(
        "phase", ("forward", "optimizer_step", *IN_RLLIB), "scope", ("step",),
        "the phase has no step around the model",
    ),
    Impossible(
        "phase", ("optimizer_step",), "scope", ("regional",), "an optimizer has no blocks",
    ),
    Impossible(
        "phase", ("optimizer_step",), "numbers", ("precision", "autocast"),
        "an optimizer's step multiplies no matrices",
    ),
    Impossible(
        "phase", FORWARDS, "optimizer", ("fused", "tensor_lr", "compiled"),
        "nothing steps in the phase",
    ),
    Impossible(
        "phase", ("optimizer_step",), "optimizer", ("compiled",),
        "compiling the optimizer is all that this phase does",
    ),
    Impossible(
        "phase", ("learner_update",), "optimizer", ("compiled",),
        "RLlib's own Learner steps, outside of what is compiled",
    ),
    Impossible(
        "optimizer", ("compiled",), "export", ("rllib",), "RLlib's own Learner steps",
    ),
    Impossible(
        "phase", ("optimizer_step",), "optimizer", ("fused",),
        "Dynamo leaves a fused step in eager mode, so that nothing is compiled",
    ),
    Impossible(
        "phase", ("optimizer_step",), "memory", ("channels_last",),
        "an optimizer's step has no convolutions",
    ),
    Impossible(
        "phase", (*TRAINING, "optimizer_step"), "weights", ("frozen", "baked"),
        "weights that are trained are no constants",
    ),
    Impossible(
        "optimizer", ("fused", "tensor_lr", "compiled"), "weights", ("frozen", "baked"),
        "what has an optimizer trains its weights",
    ),
    Impossible(
        "scope", ("step",), "optimizer", ("compiled",), "the whole step holds the optimizer's",
    ),
    Impossible(
        "scope", ("regional", "step"), "weights", ("frozen",),
        "frozen weights are those of a whole model",
    ),
    Impossible(
        "memory", ("channels_last",), "weights", ("baked",),
        "onnxrt lays weights out as it likes",
    ),
    Impossible(
        "phase", ("forward", "train_step", "optimizer_step", *OWN), "export", ("rllib",),
        "it is no part of an algorithm of RLlib",
    ),
    Impossible(
        "phase", ("learner_update",), "export", ("apply", "lines"),
        "an update is done by RLlib's own Learner only",
    ),
    Impossible(
        "calls", ("get_calls", "recorded"), "export", ("rllib",),
        "RLlib's configurations say themselves what a module is called with",
    ),
    Impossible(
        "scope", ("step",), "export", ("rllib",), "no phase of RLlib has a step around the model",
    ),
    Impossible(
        "weights", ("frozen", "baked"), "ending", ("slower",),
        "the backend that is slower on purpose takes no constants",
    ),
    Impossible(
        "suite", ("yes",), "calls", ("recorded",), "a suite has no --calls",
    ),
    Impossible(
        "suite", ("yes",), "sampler", ("random",), "a suite has no --sampler",
    ),
    Impossible(
        "suite", ("yes",), "limit", ("latency", "compile"), "a suite has no limits",
    ),
    Impossible(
        "suite", ("yes",), "horizon", ("long", "short"), "a suite has no --horizon",
    ),
    Impossible(
        "suite", ("yes",), "ending", ("few",), "a suite has no --trials",
    ),
)  # fmt: skip
