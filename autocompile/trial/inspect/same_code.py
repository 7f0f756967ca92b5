"""What the compiler has written: settings that end in the same code run alike."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch

from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import DIMENSIONS

__all__ = ["same_code_key"]

# On a CPU these change nothing once the code is there. On a GPU they decide how it is launched.
_AT_RUN_TIME = ("triton.", "coordinate_descent_tuning", "max_autotune")

# All that these do is in the source; another may be a flag of the C++ compiler.
_OPTIONS_SHOWN = frozenset({"layout_optimization", "conv_1x1_as_mm", "combo_kernels"})


def same_code_key(config: CompileConfig, device: torch.device) -> str:
    """Equal for two settings of one phase whose calls launch the same code in the same way.

    Inductor's modules hold the source of every kernel and the calls of libraries between them.
    Empty where nothing is known: another backend, or code from a cache.
    """
    if config.backend != "inductor":
        return ""
    from torch._inductor import list_mode_options
    from torch._inductor.codecache import PyCodeCache

    home = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")).resolve()
    texts = []
    for module in PyCodeCache.modules:
        file = Path(getattr(module, "__file__", None) or "").resolve()
        if home in file.parents:  # the fork server's own are elsewhere
            texts.append(file.read_text("utf-8", "replace").replace(str(home), ""))
    if not texts:
        return ""
    options = {**list_mode_options().get(config.mode, {}), **dict(config.options)}
    launch = {
        k: v for k, v in options.items() if device.type != "cpu" and k.startswith(_AT_RUN_TIME)
    }
    around = {d.name: getattr(config, d.name) for d in DIMENSIONS if not d.in_source}
    around["options"] = [o for o in config.options if o[0] not in _OPTIONS_SHOWN | launch.keys()]
    # Else torch sets it at each call, which takes a while.
    around["dynamic"] = config.dynamic is None
    text = repr((sorted(texts), sorted(launch.items()), sorted(around.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
