"""The MCP server, asked over stdio by the client of the same package."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, ROOT
from recorded_runs import said, unpack

mcp = pytest.importorskip("mcp")

SERVER = ("-m", "autocompile.mcp")
# The same server, whose trials follow a script; slow ones end when they are cancelled.
SCRIPTED = """
import sys
import time

from autocompile import api
from autocompile.mcp import server
from fakes import FakeExecutor, measured

def script(request):
    return measured(1.0 if request["config"]["backend"] == "eager" else 1.4)

class Slow(FakeExecutor):
    stopped = False

    def wait(self, timeout_s):
        if self.requests and not self.stopped:
            return time.sleep(0.05) or []
        return super().wait(timeout_s)

    def cancel(self, number):
        self.stopped = True
        super().cancel(number)

api.LocalExecutor = lambda **_: (Slow if "slow" in sys.argv else FakeExecutor)(script)
server.run("stdio")
"""


def connected(*server: str) -> Any:
    """A client of a server of its own."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if k in ("XDG_CACHE_HOME", "AUTOCOMPILE_TESTS", "TMPDIR")
    }
    env = {**kept, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    return mcp.Client(
        mcp.StdioServerParameters(command=sys.executable, args=list(server), env=env)
    )


@pytest.fixture
def scripted(target: Path) -> Path:
    """``net.py`` and a server whose trials are scripted."""
    (target.parent / "server.py").write_text(SCRIPTED)
    (target.parent / "runs").mkdir()
    return target


def asked(
    *calls: tuple[str, dict[str, Any]], server: tuple[str, ...] = SERVER
) -> list[Any]:
    """The answer to each call, and the messages of its progress."""

    async def talk() -> list[Any]:
        found = []
        async with connected(*server) as client:
            for name, arguments in calls:
                lines: list[tuple[float, str]] = []

                async def told(
                    progress: float, _: Any, message: str, to: Any = lines
                ) -> None:
                    to.append((progress, message))

                answer = await client.call_tool(name, arguments, progress_callback=told)
                found.append((answer, lines))
        return found

    return asyncio.run(talk())


def text(answer: Any) -> str:
    (block,) = answer.content
    return str(block.text)


def test_tools_answer_with_what_json_prints_and_mistakes_in_words(work: Path) -> None:
    unpack("cpu")
    (shown, _), (listed, _), (exported, _), (missing, _), (unknown, _) = asked(
        ("show", {"run": "cpu"}),
        ("list", {}),
        ("export", {"run": "cpu", "to": "json"}),
        ("show", {"run": "other"}),
        ("verify", {"require": {"x": 1}}),
    )
    assert json.loads(text(shown)) == json.loads(said("show", "cpu", "--json"))
    assert json.loads(text(listed)) == json.loads(said("list", "--json"))
    assert json.loads(text(exported))["autocompile_settings"] == 1
    assert missing.is_error and "there is no run other" in text(missing)
    assert unknown.is_error and "max-recompiles" in text(unknown)


def test_an_argument_that_a_tool_does_not_have_begins_nothing(work: Path) -> None:
    (nonsense, _), (near, _), (sampler, _), (none, _) = asked(
        ("tune", {"target": "net.py", "nonsense": 1}),
        ("tune", {"target": "net.py", "budgets": 60}),
        ("tune", {"target": "net.py", "sampler": "foo"}),
        ("tune", {}),
    )
    assert "the tool tune has no argument 'nonsense'" in text(nonsense)
    assert "try: budget_s" in text(near)
    assert "sampler" in text(sampler) and "portfolio" in text(sampler)
    assert "needs the argument target" in text(none)
    for answer in (nonsense, near, sampler, none):
        assert answer.is_error
        assert "pydantic" not in text(answer) and "http" not in text(answer)
    assert not (Path("runs") / "net-0001").exists()


def test_a_model_is_tuned_and_verified_with_progress(scripted: Path) -> None:
    (tuned, lines), (verified, _) = asked(
        ("tune", {"target": "net.py", "budget_s": 600}),
        ("verify", {"require": {"speedup": 3}}),
        server=("server.py",),
    )
    report = json.loads(text(tuned))
    assert report["phases"]["forward"]["answer"]["verdict"] == "faster"
    assert report == json.loads(said("show", "last", "--json"))
    assert [spent for spent, _ in lines] == sorted(spent for spent, _ in lines)
    assert any("race of forward" in message for _, message in lines)
    found = json.loads(text(verified))
    assert {one["verdict"] for one in found["checks"]} == {"fastest"}
    assert "3 is required" in found["unmet"][0]


def test_a_cancelled_call_ends_the_run_as_ctrl_c_does(scripted: Path) -> None:
    async def cancel() -> tuple[Any, str]:
        async with connected("server.py", "slow") as client:

            async def state(expected: str) -> str:
                """Of the run, once it is the expected one, or after a while."""
                found, deadline = "none", time.monotonic() + PATIENCE_S / 2
                while found != expected and time.monotonic() < deadline:
                    await asyncio.sleep(0.1)
                    answer = await client.call_tool("list", {"run_dir": "runs"})
                    for row in json.loads(text(answer)):
                        found = str(row["state"])
                return found

            task = asyncio.create_task(client.call_tool("tune", {"target": "net.py"}))
            assert await state("running") == "running"
            beside = await client.call_tool("doctor", {})
            task.cancel()
            return beside, await state("interrupted")

    beside, last = asyncio.run(cancel())
    assert beside.is_error and "another autocompile is at work" in text(beside)
    assert last == "interrupted"


def test_every_tool_says_what_it_takes() -> None:
    from autocompile.mcp import server

    tools = {tool.name: tool for tool in asyncio.run(server.list_tools())}
    assert set(tools) == {"tune", "show", "list", "doctor", "export", "verify"}
    assert all(tool.description for tool in tools.values())
    assert "context" not in tools["tune"].input_schema["properties"]
