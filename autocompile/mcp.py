"""An MCP server over stdio: ``python -m autocompile.mcp``, in the folder of the runs.

A tool for each command, which answers with what the command prints with ``--json``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import functools
import inspect
import io
import json
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

try:
    from anyio import from_thread
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from pydantic import Field, ValidationError
except ImportError as error:
    raise SystemExit(f"error: {error}\n  try: pip install 'mcp>=2'") from None

from autocompile import __version__, api
from autocompile.commands import diagnose, listing
from autocompile.commands import verify as verifying
from autocompile.errors import AutocompileError
from autocompile.report.live import PlainProgress
from autocompile.request import SAMPLERS, Request
from autocompile.settings.tuned import TunedSet
from autocompile.store import runs
from autocompile.store.targets import target_spec


class _Server(MCPServer):  # type: ignore[misc]
    """A server whose tools refuse what they do not know, in words of ours."""

    async def call_tool(self, name: str, arguments: Any, context: Any = None) -> Any:
        """Call a tool, by arguments that it has."""
        tool = next((t for t in await self.list_tools() if t.name == name), None)
        known = list(tool.input_schema["properties"]) if tool else []
        unknown = [one for one in arguments if one not in known]
        if tool and unknown:
            raise ToolError(_no_argument(name, unknown[0], known))
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(_no_value(name, error.__cause__)) from None
            raise


def _no_argument(tool: str, given: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(given, known, 1)
    hint = f"{near[0]}" if near else ", ".join(known)
    return f"the tool {tool} has no argument {given!r}\n  try: {hint}"


def _no_value(tool: str, error: ValidationError) -> str:
    """What pydantic has against the first value, without its type codes and addresses."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"the tool {tool} needs the argument {where}"
    said = first["msg"][:1].lower() + first["msg"][1:]
    return (
        f"the argument {where} of the tool {tool} cannot be {first['input']!r}: {said}"
    )


server = _Server("autocompile", version=__version__)
"""Tools run in threads: a call that takes minutes leaves the server able to answer."""

Requirement = Literal["speedup", "max-graphs", "max-recompiles", "max-compile-time"]


def _answering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mistakes and cancelled calls are answers; else the client would not see the words."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> str:
        try:
            answer = function(*args, **kwargs)
        except AutocompileError as error:
            raise ToolError(error.text()) from error
        except KeyboardInterrupt:  # see _cancellable
            raise ToolError("the call was cancelled") from None
        return answer if isinstance(answer, str) else json.dumps(answer, indent=1)

    return run


def _cancellable(call: Callable[..., Any], *args: Any) -> None:
    """Call from a tool's thread; if the client has cancelled, it is as if Ctrl-C were pressed."""
    try:
        call(*args)
    except (asyncio.CancelledError, futures.CancelledError):
        raise KeyboardInterrupt from None


class _Progress(PlainProgress):
    """The lines of ``--progress plain`` as notifications, with the seconds since the start."""

    def __init__(self, context: Context) -> None:
        super().__init__(io.StringIO())
        self._context = context

    def _line(self, line: str) -> None:
        spent_s = self._clock() - self._began
        _cancellable(
            from_thread.run, self._context.report_progress, spent_s, None, line.strip()
        )

    def tick(self) -> None:
        _cancellable(from_thread.check_cancelled)


def tune(target: str, context: Context, **options: Any) -> Any:
    """Find the fastest torch.compile settings of a model that keep it right, on this machine.

    Takes 90 s (quick), 5 min (normal, the default), as long as every setting needs (full), or
    budget_s.
    target: model.py, PATH:NAME or package.module:NAME; an nn.Module, an RLlib AlgorithmConfig, or a
    file with get_model() and get_inputs(batch_size); or without a file timm:NAME,
    torchvision:NAME, transformers:CLASS or diffusers:CLASS. Returns the report:
    phases.NAME.answer says what to use, and the export tool gives the code.
    """
    request = Request.of(target_spec(target), options)
    return api.tune_with(request, api.Parts(progress=_Progress(context))).to_dict()


def _with_options(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Give a tool a parameter for each option of a Request that is about this machine."""
    hints = get_type_hints(Request)
    taken = [
        p
        for p in inspect.signature(tool, eval_str=True).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    for each in dataclasses.fields(Request):
        said = each.metadata.get("option")
        if said is None or not said.panel or said.is_typed_only:
            continue
        kind, about = hints[each.name], said.help
        if dataclasses.is_dataclass(each.default_factory):
            names = (part.name for part in dataclasses.fields(each.default_factory))
            kind = dict[str, Any]
            about = f"what to keep or try, by {', '.join(names)}"
        elif each.name in ("calls", "run_dir"):
            kind = str
        elif each.name == "sampler":
            kind = Literal[SAMPLERS]
        taken.append(
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind | None, Field(description=about)],
            )
        )
    changed: Any = tool
    changed.__signature__ = inspect.Signature(taken)
    return tool


_with_options(tune)


def show(run: str = "last") -> Any:
    """The report of a run: a folder, its name under ./runs, or last."""
    return api.load(run).to_dict()


def list_runs(run_dir: str | None = None) -> Any:
    """The runs in a folder, ./runs if left out, with target, state and results; the newest last."""
    return listing.listed(Path(run_dir) if run_dir else runs.under)


def doctor(backend: str | None = None, device: str | None = None) -> Any:
    """Which backends and modes of torch.compile work on this machine, and what the others need."""
    return diagnose.doctor(backend, device, wait=False)


def export(run: str = "last", to: str = "python") -> str:
    """The best settings of a run as text.

    to: python, rllib, accelerate, transformers or lightning for code; json for the content
    of tuned.json, which autocompile.apply, the callbacks and the verify tool read.
    """
    return api.load(run).export(to)


def verify(
    context: Context,
    settings: str = "last",
    target: str | None = None,
    require: dict[Requirement, float] | None = None,
    budget_s: float = 120.0,
    device: str | None = None,
    calls: str | None = None,
) -> Any:
    """Measure settings again beside eager mode: whether they are still right and the fastest.

    settings: a tuned.json, or a run. target: where the model is now, if it has moved. require: the
    least speedup, and the most graphs, recompiles and seconds of compiling; what is not met is
    listed under unmet. calls: a file of autocompile record in place of the calls in the settings.
    """
    given = {"budget_s": budget_s, "device": device, "calls": calls}
    return verifying.verify(
        TunedSet.read(settings if settings.endswith(".json") else api.load(settings)),
        target,
        {str(name): bound for name, bound in (require or {}).items()},
        given,
        _Progress(context),
    )


for _tool in (tune, show, list_runs, doctor, export, verify):
    _name = _tool.__name__.removesuffix("_runs")
    server.add_tool(_answering(_tool), name=_name, structured_output=False)

if __name__ == "__main__":
    server.run("stdio")
