"""Models of installed libraries as targets: made from a name, without weights or a network.

Inputs are random, in the shapes that the library itself says of a model.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch

from autocompile.errors import TargetError, first_words
from autocompile.settings import phases
from autocompile.store.targets import library_model
from autocompile.trial.model.target import Target, sum_of_floats

# Of an input the number of values of whole numbers, else 0, and the shape of one sample.
_Shape = tuple[int, tuple[int, ...]]
# Where a library says nothing.
_TOKENS, _SAMPLES, _PIXELS, _LATENTS = 128, 16_000, 224, 32
_FRAMES = 16  # of torchvision's models of videos
_WORDS = 77  # of a prompt, as CLIP's text model gives them
_WIDTHS = (
    "encoder_hid_dim",
    "joint_attention_dim",
    "caption_channels",
    "cross_attention_dim",
)
_PRIVATE = re.compile(r"\b_|pretrained|weights|checkpoint_path")
_GET = {"transformers": "'transformers>=4.56'"}


@dataclass
class _Made:
    """A model, with what it is called with."""

    model: Any
    shapes: dict[str, _Shape]
    labels: Mapping[str, _Shape] = field(default_factory=dict)  # in training only
    flags: Mapping[str, Any] = field(default_factory=dict)  # in training only
    by_name: bool = True

    def inputs(self, batch_size: int | None, trains: bool = False) -> Any:
        """Random inputs, by name or in order; in training also labels and flags."""
        shapes = {**self.shapes, **self.labels} if trains else self.shapes
        made: dict[str, Any] = {}
        for name, (values, shape) in shapes.items():
            size = (batch_size or 1, *shape)
            made[name] = torch.randint(values, size) if values else torch.randn(size)
        if not self.by_name:
            return tuple(made.values())
        return {**made, **self.flags} if trains else made


def import_library(spec: str) -> ModuleType:
    """A module in the place of a target's file; ``library`` in it is kept off the network."""
    name, _, _ = library_model(spec) or ("", "", {})
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    # A fork server has imported it already, and what is read at that time is too late to set.
    if hub := sys.modules.get("huggingface_hub.constants"):
        vars(hub)["HF_HUB_OFFLINE"] = True
    module = ModuleType(name)
    try:
        vars(module)["library"] = importlib.import_module(name)
    except Exception as error:
        raise _not_loaded(name, error) from error
    return module


def build_library(spec: str, library: Any) -> Target:
    """The target of a spec as :func:`library_model` splits it."""
    name, model, texts = library_model(spec) or ("", "", {})
    options = {key: _value(text) for key, text in texts.items()}
    # The spec may be others', who must not have this machine read a file or download one.
    if private := [key for key in options if _PRIVATE.search(key)]:
        what = f"{spec}: {private[0]} is about files or weights, and a model by name has none"
        raise TargetError(
            what, hint=f"leave {private[0]} out, or write a file with get_model()"
        )
    try:
        made = _MAKERS[name](spec, library, model, options)
    except Exception as error:
        what = "cannot be made from its name, without weights and without a network"
        raise _explained(spec, what, error) from error
    target = Target(name, made.model, made.inputs)
    what = "does not run with the inputs that its config tells"
    target.explain = lambda error: _explained(spec, what, error)
    version = getattr(library, "__version__", "of no known version")
    shown = ", ".join(f"{n} {list(shape)}" for n, (_, shape) in made.shapes.items())
    target.choices["model"] = f"{name} {version}, with random weights"
    target.sha256 = hashlib.sha256(target.choices["model"].encode()).hexdigest()
    inputs = f"random, as {name} says of the model: {shown} in each sample"
    target.choices["inputs"] = inputs
    if made.labels or made.flags:
        in_training = functools.partial(made.inputs, trains=True)
        target.phase_inputs[phases.TRAIN_STEP] = in_training
        target.loss = _own_loss
        target.choices["loss"] = (
            "the model's own where a call has labels, which are random"
        )
    return target


def _explained(spec: str, what: str, error: Exception) -> Exception:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, TargetError)):
        return error
    seen = first_words(error)
    if seen.endswith(":") and error.__cause__:  # as where a config checks itself
        seen += f" {first_words(error.__cause__)}"
    return _by_hand(spec, what, seen)


def _by_hand(spec: str, what: str, seen: str) -> TargetError:
    """What is wrong with a model, and the file that it needs."""
    library, model, _ = library_model(spec) or ("", "", {})
    maker = {
        "timm": f'timm.create_model("{model}")',
        "torchvision": f'torchvision.models.get_model("{model}")',
        "transformers": f"transformers.{model}(transformers.{model}.config_class())",
    }.get(library, f"{library}.{model}()")
    if model.islower() and library == "transformers":  # a type of models
        maker = f'transformers.AutoModel.from_config(transformers.AutoConfig.for_model("{model}"))'
    lines = (
        f"    import torch, {library}",
        f"    def get_model(): return {maker}",
        "    def get_inputs(batch_size):",
        '        return {"NAME OF AN INPUT": torch.randn(batch_size, 3, 224, 224)}',
    )
    details = (seen, "a file model.py of these lines, filled in, is a target:", *lines)
    return TargetError(f"{spec} {what}", *details, hint="autocompile check model.py")


def _own_loss(output: Any, inputs: Any) -> torch.Tensor:
    loss = getattr(output, "loss", None)
    return loss if isinstance(loss, torch.Tensor) else sum_of_floats(output, inputs)


def _value(text: str) -> Any:
    """A number, a truth value or a text; a list of them for ``32,64``."""
    if "," in text:
        return [_value(each) for each in text.split(",") if each]
    try:
        return json.loads(
            {"True": "true", "False": "false", "None": "null"}.get(text, text)
        )
    except ValueError:
        return text


def _pair(side: Any) -> tuple[int, int]:
    """Height and width, of one number, or one or two in a list."""
    sides = side if isinstance(side, (list, tuple)) else (side,)
    return sides[0], sides[-1]


def _as_listed(usual: Any, value: Any) -> Any:
    is_one = isinstance(usual, (list, tuple)) and not isinstance(value, list)
    return [value] if is_one else value


def _not_loaded(library: str, error: BaseException) -> TargetError:
    root = error  # such as a missing package, which a library wraps in words of its own
    while root.__cause__:
        root = root.__cause__
    missing = (
        (root.name or "").partition(".")[0]
        if isinstance(root, ModuleNotFoundError)
        else ""
    )
    is_missing = missing == library
    details = [] if is_missing else [first_words(root)]
    hint = f"python -c 'import {library}'"
    if missing:
        hint = f"pip install {_GET.get(missing, missing)}"
    if "torchvision" in f"{library} {root}":
        both = f"torch here is {torch.__version__}: torchvision has to be from the same index"
        details.append(f"{both}, since PyPI's does not fit other builds of torch")
        index = torch.__version__.partition("+")[2]
        place = (
            f" --index-url https://download.pytorch.org/whl/{index}" if index else ""
        )
        hint = f"pip install torch torchvision{place}"
    what = f"is not installed for {sys.executable}" if is_missing else "does not load"
    return TargetError(f"{library} {what}", *details, hint=hint)


def _unknown(what: str, word: str, names: Iterable[str], spec: str) -> TargetError:
    """The error about a model or a key that names the nearest, and the spec with one of them."""
    every = {name.lower(): name for name in sorted(names, reverse=True)}
    near = difflib.get_close_matches(word.lower(), every, 3, 0.5) or sorted(every)[:6]
    near = [every[each] for each in near]
    head, mark, options = spec.partition("?")
    if f"{word}=" in options:
        options = options.replace(f"{word}=", f"{near[0]}=")
    else:
        head = f"{head.partition(':')[0]}:{near[0]}"
    details = f"the nearest of {len(every)} are: {', '.join(near)}"
    hint = shlex.join(["autocompile", "check", f"{head}{mark}{options}"])
    return TargetError(f"{what} {word!r}", details, hint=hint)


def _class_of(library: Any, model: str) -> Any:
    """A class that makes models, of a library that imports its parts at their first use."""
    try:
        found = getattr(library, model, None)
    except Exception as error:
        raise _not_loaded(library.__name__, error) from error
    is_model = inspect.isclass(found) and issubclass(found, torch.nn.Module)
    return found if is_model and hasattr(found, "from_pretrained") else None


def _timm(spec: str, timm: Any, model: str, options: dict[str, Any]) -> _Made:
    names = timm.list_models()
    # After a dot: which weights, whose inputs are taken.
    if model.split(".")[0] not in names:
        raise _unknown("timm has no model", model, names, spec)
    made = timm.create_model(model, pretrained=False, **options)
    channels, *sides = made.default_cfg["input_size"]
    shape = (options.get("in_chans", channels), *_pair(options.get("img_size", sides)))
    return _Made(made, {"x": (0, shape)}, by_name=False)


def _torchvision(spec: str, _: Any, model: str, options: dict[str, Any]) -> _Made:
    models: Any = importlib.import_module("torchvision.models")
    if model not in (names := models.list_models()):
        raise _unknown("torchvision has no model", model, names, spec)
    builder = models.get_model_builder(model)
    if ".detection." in builder.__module__:
        seen = "a detection model takes lists of images, and in training targets beside them"
        raise _by_hand(spec, "is not supported by its name", seen)
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None  # else they are downloaded
    made = models.get_model(model, weights=None, **options)
    try:
        crop = models.get_model_weights(model).DEFAULT.transforms().crop_size
    except (AttributeError, ValueError):  # there are no weights, or they take any size
        crop = _PIXELS
    frames = (_FRAMES,) if ".video." in builder.__module__ else ()
    shape = (3, *frames, *_pair(options.get("image_size", crop)))
    return _Made(made, {"x": (0, shape)}, by_name=False)


def _transformers(
    spec: str, library: Any, model: str, options: dict[str, Any]
) -> _Made:
    known = importlib.import_module("transformers.models.auto.configuration_auto")
    if model in known.CONFIG_MAPPING_NAMES:
        kind, make = known.CONFIG_MAPPING[model], library.AutoModel.from_config
    elif make := _class_of(library, model):
        kind = make.config_class
    else:
        tables = vars(importlib.import_module("transformers.models.auto.modeling_auto"))
        names = {*known.CONFIG_MAPPING_NAMES}
        for title, table in tables.items():
            if title.endswith("_MAPPING_NAMES"):
                # A value may be a tuple of several classes, which are no one name.
                names |= {name for name in table.values() if type(name) is str}
        raise _unknown("transformers has no model", model, names, spec)
    length = options.pop("length", 0)
    config = _config(spec, kind, options)
    return _fed(spec, make(config), config, length)


_OF_A_PART = re.compile(
    r"(\w+_)?(en|de)coder_(num_hidden_)?layers|num_(en|de)coder_layers"
)


def _counts_of_layers(config: Any) -> list[str]:
    known = config.to_dict() if hasattr(config, "to_dict") else {}
    numbers = [name for name, value in known.items() if isinstance(value, int)]
    found = [name for name in numbers if _OF_A_PART.fullmatch(name)]
    # ProphetNet's raises where this one is set, and it has those of its parts.
    if "num_encoder_layers" not in found and hasattr(config, "num_hidden_layers"):
        return ["num_hidden_layers", *found]
    return found


def _config(spec: str, kind: Any, options: dict[str, Any]) -> Any:
    """A config with options of it or of its parts, as ``text_config.hidden_size``.

    ``layers`` is the number of layers of its encoder and its decoder, and where the whole has no
    number of its own that of each part.
    """
    usual, given = kind(), dict(options)
    if "layers" in given:
        layers = given.pop("layers")
        if stages := getattr(usual, "depths", None):
            what = f"{kind.__name__} has its layers in stages: {','.join(map(str, stages))}"
            raise TargetError(what, hint=f"?depths={','.join('1' * len(stages))}")
        every = _counts_of_layers(usual)
        for part in usual.sub_configs if "num_hidden_layers" not in every else ():
            every += [
                f"{part}.{n}" for n in _counts_of_layers(getattr(usual, part, None))
            ]
        given = {**dict.fromkeys(every or ["layers"], layers), **given}
    if hasattr(usual, "use_cache"):
        given.setdefault("use_cache", False)  # a call alone has no use for a cache
    arguments: dict[str, Any] = {}
    for path, value in given.items():
        part, _, key = path.rpartition(".")
        place: Any = getattr(usual, part, None) if part else usual
        if not hasattr(place, key):
            names = (*usual.to_dict(), *usual.attribute_map, "layers", "length")
            raise _unknown(f"{kind.__name__} has no attribute", path, names, spec)
        value = given[path] = _as_listed(getattr(place, key), value)
        kept = {"model_type": place.model_type} if part else {}
        inner = arguments.setdefault(part, kept) if part else arguments
        inner[place.attribute_map.get(key, key)] = value
    config = kind(**arguments)
    for path, value in given.items():
        part, _, key = path.rpartition(".")
        now = getattr(getattr(config, part) if part else config, key)
        if (list(now) if isinstance(now, tuple) else now) != value:
            raise TargetError(
                f"{kind.__name__} computes {path} itself: {now}, not {value}"
            )
    return config


@dataclass(frozen=True)
class _Sizes:
    """What a config of transformers says of the sizes of one sample.

    Attributes:
        vocabulary: how many words it has; 0 if it is of no text.
        samples: of a sound.
        pixels: the shape of an image, or of a video.
    """

    vocabulary: int
    tokens: int
    samples: int
    sides: tuple[int, int]
    pixels: tuple[int, ...]
    classes: int

    @classmethod
    def of(cls, spec: str, config: Any, length: int) -> _Sizes:
        """Of a config; raises a TargetError if it takes fewer tokens than ``length``."""
        text, sights = config.get_text_config(), _config_of_images(config)
        most = getattr(text, "max_position_embeddings", 0) or 0
        # XLNet's is -1, for no limit.
        if 0 < most < length:
            what = f"{spec}: the model takes {most} tokens at most, not {length}"
            raise TargetError(what, hint=f"?length={most}")
        usual = min(_TOKENS, most) if most > 0 else _TOKENS
        sides = _pair(getattr(sights, "image_size", _PIXELS))
        frames = (config.num_frames,) if hasattr(config, "num_frames") else ()
        return cls(
            vocabulary=getattr(text, "vocab_size", 0) or 0,
            tokens=length or usual,
            samples=length or _SAMPLES,
            sides=sides,
            pixels=(*frames, getattr(sights, "num_channels", 3), *sides),
            classes=getattr(config, "num_labels", 2),
        )


def _config_of_images(config: Any) -> Any:
    return getattr(config, "vision_config", config)


def _fed(spec: str, model: Any, config: Any, length: int) -> _Made:
    """A model of transformers with inputs and labels, by its main input and its config."""
    parameters = inspect.signature(model.forward).parameters
    main, name = model.main_input_name, type(model).__name__
    sizes = _Sizes.of(spec, config, length)
    known = _known_inputs(model, config, sizes)
    if main not in known:
        seen = f"its main input is {main}"
        raise _by_hand(spec, "takes what its config does not tell", seen)
    shapes = {main: known[main]}
    if "pixel_values" in parameters and _takes_images_beside(config):
        shapes["pixel_values"] = known["pixel_values"]
    if config.is_encoder_decoder and "decoder_input_ids" in parameters:
        # The labels are as long as what the decoder makes.
        most = getattr(config, "max_target_positions", None) or sizes.tokens
        sizes = replace(sizes, tokens=min(sizes.tokens, most))
        shapes["decoder_input_ids"] = sizes.vocabulary, (sizes.tokens,)
    if name.endswith("ForMultipleChoice"):
        # Of two choices each.
        shapes = {n: (values, (2, *shape)) for n, (values, shape) in shapes.items()}
    every = _labels_of(name, sizes)
    labels = {n: shape for n, shape in every.items() if n in parameters}
    flags = {"return_loss": True} if "return_loss" in parameters else {}
    return _Made(model, shapes, labels, flags)


def _known_inputs(model: Any, config: Any, sizes: _Sizes) -> dict[str, _Shape]:
    """Inputs that a config says the shape of, and others as the model's own examples are."""
    known: dict[str, _Shape] = {
        "pixel_values": (0, sizes.pixels),
        "input_values": (0, (sizes.samples,)),
    }
    if sizes.vocabulary:
        known["input_ids"] = sizes.vocabulary, (sizes.tokens,)
    mels = getattr(config, "num_mel_bins", 0)
    if mels and hasattr(config, "max_source_positions"):
        frames = 2 * config.max_source_positions  # Whisper's convolutions halve them
        known["input_features"] = 0, (mels, frames)
    for name, example in model.dummy_inputs.items():
        values = 0 if example.is_floating_point() else int(example.max()) + 1
        known.setdefault(name, (values, tuple(example.shape[1:])))
    return known


def _takes_images_beside(config: Any) -> bool:
    """Whether a model takes an image beside its main input, and runs without words for it."""
    # Such tokens stand for the image in the text, and random words hold none.
    of_images = ("image_token_id", "image_token_index")
    if any(hasattr(config, name) for name in of_images):
        return False
    return _config_of_images(config) is not config


def _labels_of(name: str, sizes: _Sizes) -> dict[str, _Shape]:
    """What a class compares its outputs with, which its name tells."""
    words: _Shape = sizes.vocabulary, (sizes.tokens,)
    place: _Shape = sizes.tokens, ()
    classes, yes_or_no = sizes.classes, 2
    # The first end that fits counts: of two of them, the longer goes before.
    ends: dict[str, dict[str, _Shape]] = {
        "ForQuestionAnswering": {"start_positions": place, "end_positions": place},
        "ForMultipleChoice": {"labels": (2, ())},
        "ForNextSentencePrediction": {"labels": (yes_or_no, ())},
        "ForTokenClassification": {"labels": (classes, (sizes.tokens,))},
        "ForSemanticSegmentation": {"labels": (classes, sizes.sides)},
        "Classification": {"labels": (classes, ())},
        "ElectraForPreTraining": {"labels": (yes_or_no, (sizes.tokens,))},
        "ForPreTraining": {
            "labels": words,
            "next_sentence_label": (yes_or_no, ()),
            "sentence_order_label": (yes_or_no, ()),
        },
        "ForMaskedLM": {"labels": words},
        "ForCausalLM": {"labels": words},
        "LMHeadModel": {"labels": words},
        "ForConditionalGeneration": {"labels": words},
    }
    return next((labels for end, labels in ends.items() if name.endswith(end)), {})


def _diffusers(spec: str, library: Any, model: str, options: dict[str, Any]) -> _Made:
    if (cls := _class_of(library, model)) is None:
        names = getattr(library, "_import_structure", {}).get("models") or dir(library)
        raise _unknown("diffusers has no model", model, names, spec)
    size = options.pop("size", 0)
    made = cls(**_arguments_of(spec, cls, size, options))
    config = dict(made.config)
    height, width = _pair(size or config.get("sample_size") or _LATENTS)
    sides = (height,) if "1D" in model else (height, width)
    known = _known_to_diffusers(config, sides)
    takes = inspect.signature(made.forward).parameters
    # A shape with None or 0 is of an input that this model has not.
    shapes = {n: known[n] for n in takes if n in known and all(known[n][1])}
    return _Made(made, shapes)


def _arguments_of(
    spec: str, cls: Any, size: Any, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a class of diffusers; raises a TargetError about one that it has not."""
    usual = inspect.signature(cls).parameters
    given = dict(options)
    if size and "sample_size" in usual:
        given["sample_size"] = size
    for key, value in given.items():
        if key not in usual:
            what = f"{cls.__name__} has no argument"
            raise _unknown(what, key, (*usual, "size"), spec)
        value = _as_listed(usual[key].default, value)
        given[key] = tuple(value) if isinstance(value, list) else value
    return given


def _known_to_diffusers(
    config: Mapping[str, Any], sides: tuple[int, ...]
) -> dict[str, tuple[int, tuple[Any, ...]]]:
    """Inputs that a config of diffusers says the shape of; None where it has no such number."""
    sample = 0, (config.get("in_channels"), *sides)
    # One width, or one for each block: then the first block's.
    widths = next((config[name] for name in _WIDTHS if config.get(name)), 0)
    width = widths if isinstance(widths, int) else widths[0]
    classes = config.get("num_class_embeds") or config.get("num_embeds_ada_norm") or 0
    # A ControlNet makes latents of the image that it follows: each stage but one halves it.
    stages = config.get("conditioning_embedding_out_channels") or ()
    halvings = max(len(stages) - 1, 0)
    image = config.get("conditioning_channels"), *(x << halvings for x in sides)
    return {
        "sample": sample,
        "hidden_states": sample,
        "timestep": (config.get("num_train_timesteps") or 1000, ()),
        "encoder_hidden_states": (0, (_WORDS, width)),
        "pooled_projections": (0, (config.get("pooled_projection_dim"),)),
        "class_labels": (classes, () if classes else (0,)),
        "controlnet_cond": (0, image),
    }


_MAKERS: Mapping[str, Callable[[str, Any, str, dict[str, Any]], _Made]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
    "diffusers": _diffusers,
}
