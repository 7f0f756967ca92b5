"""The table of backends: what torch cannot tell of each.

A new one is an entry in :data:`BACKENDS`; one of our own also a file in ``runtime/backends`` and an
entry point.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

OptionValue = bool | int | float | str | None


@dataclass(frozen=True)
class Variant:
    """Options that are tried beside none, in place of a mode: torch takes either."""

    options: Mapping[str, OptionValue]  # as torch.compile takes them
    device: str | None = None  # the type of device that they are about; None for all
    of_convolutions: bool = False  # they are about convolutions


@dataclass(frozen=True)
class Backend:
    """What torch does not tell of a backend: the defaults are those of one that is not listed."""

    trains: bool = True  # computes gradients, or leaves them to torch
    has_modes: bool = False  # takes Inductor's modes
    # Inductor compiles its graphs, freezes weights, draws numbers
    by_inductor: bool = False
    lays_out: bool = False  # weights as it likes, whatever torch's memory format is
    variants: tuple[Variant, ...] = ()
    ours: bool = False  # comes with autocompile
    registered_by: str = ""  # the package that has to be imported before torch knows it
    # Of the environment, which that package reads.
    variables: tuple[tuple[str, str], ...] = ()
    package: str = ""  # another one that it does not work without
    needs: str = ""  # in words, where the name of a package does not say it
    avx512: bool = False  # does nothing on a CPU without AVX-512
    # ``module:function`` that is asked, with a torch.device, why it cannot compile for that
    asks: str = ""
    changes_process: bool = False  # for whatever is compiled later
    device: str | None = None  # the only type of device that it is for
    todo: str = ""  # what to do where it does not work


_GRAPHS: Mapping[str, OptionValue] = {"triton.cudagraphs": True}
# Of Inductor's several hundred options those that change speed and nothing else, and that no mode
# gives by themselves. A name that the installed torch does not know is passed over.
_INDUCTOR = (
    Variant({"cpp_wrapper": True}, "cpu"),
    Variant({"cpp.simdlen": 256}, "cpu"),
    Variant({**_GRAPHS, "coordinate_descent_tuning": True}, "cuda"),
    Variant({**_GRAPHS, "max_autotune_pointwise": True}, "cuda"),
    Variant({**_GRAPHS, "combo_kernels": True}, "cuda"),
    Variant({**_GRAPHS, "layout_optimization": False}, "cuda", of_convolutions=True),
    Variant({**_GRAPHS, "conv_1x1_as_mm": True}, "cuda", of_convolutions=True),
    Variant({"cpp_wrapper": True}, "cuda"),
)
_onnx = functools.partial(
    Backend,
    trains=False,
    lays_out=True,
    variants=(Variant({"weights": "baked"}),),
    ours=True,
)
_GET_OPENVINO = "pip install 'openvino>=2026.0'"

BACKENDS: Mapping[str, Backend] = {
    "inductor": Backend(
        has_modes=True,
        by_inductor=True,
        variants=_INDUCTOR,
        asks="autocompile.runtime.compiling:missing_compiler",
        todo="install g++, or set CXX; on a GPU also triton",
    ),
    "cudagraphs": Backend(
        device="cuda",
        todo="run where there is an NVIDIA GPU",
    ),
    "onnxrt": _onnx(
        asks="autocompile.runtime.backends.onnxrt:missing_provider",
        todo="pip install onnxruntime onnx onnxscript (onnxruntime-gpu for a GPU)",
    ),
    "openvino_onnx": _onnx(package="openvino", device="cpu", todo=_GET_OPENVINO),
    "ipex": Backend(
        registered_by="intel_extension_for_pytorch",
        needs="torch 2.8.* with intel-extension-for-pytorch 2.8.*",
        todo="in an environment of its own: pip install numpy 'torch==2.8.*' "
        "'intel-extension-for-pytorch==2.8.*', then --python PATH",
    ),
    "openvino": Backend(
        trains=False, lays_out=True, package="openvino", todo=_GET_OPENVINO
    ),
    "zentorch": Backend(
        by_inductor=True,
        registered_by="zentorch",
        # It knows weights by their address, and so computes with those that were there before.
        variables=(("ZENDNNL_MATMUL_WEIGHT_CACHE", "0"),),
        needs="zentorch of torch's own minor version",
        avx512=True,
        changes_process=True,
        device="cpu",
        todo="with torch 2.13: pip install 'zentorch==2.13.*'",
    ),
}
"""Those that are tried when nobody names others, usable or not; others can be named too."""

DENIED: Mapping[str, str] = {
    "freezing": "as an option it does nothing for a module's parameters: --freezing true",
    "compile_threads": "trials compile on one thread each",
    "fx_graph_cache": "a trial's compile time is that of an empty cache",
    "force_disable_caches": "a trial's compile time is that of an empty cache",
    "fallback_random": "it is for comparing a phase that draws random numbers with eager",
}
"""Options of Inductor that are not taken, and why."""


def options_of(backend: str) -> set[str]:
    """The names of the options of a backend other than Inductor, which lists its options itself."""
    known = BACKENDS.get(backend, Backend())
    return (
        set()
        if known.has_modes
        else {name for v in known.variants for name in v.options}
    )
