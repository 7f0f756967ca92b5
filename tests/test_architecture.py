"""The layout's rules, held against the code: arrows downward, no torch above."""

from __future__ import annotations

import ast
import graphlib
import itertools
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import autocompile
from autocompile.settings.phases import PHASES, STEP

PACKAGE = Path(autocompile.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
    ".".join(
        ("autocompile", *path.relative_to(PACKAGE).with_suffix("").parts)
    ).removesuffix(".__init__"): path
    for path in FILES
}
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
STARTS = ("execute/starter.py", "ProcessStarter.start")
# Files and folders of a run or of users, which the pages name too.
MADE = {
    "runtime/backends/NAME.py",
    "trials/0007/request.json",
    "result.json",
    "report.json",
    "run.json",
    "suite.json",
    "tuned.json",
    "runs/",
}

# A column may import itself and the columns named here.
GROUND = {"errors", "estimate", "progress", "protocol", "request", "settings", "store"}
GROUND |= {"__init__"}
ALLOWED = {
    "ground": {"ground"},
    "runtime": {"ground"},
    "trial": {"ground", "runtime"},
    "execute": {"ground"},
    "space": {"ground"},
    "cluster": {"ground", "execute"},
    "search": {"ground", "execute", "space"},
    "report": {"ground"},
    "export": {"ground"},
    "result": {"ground", "report", "export", "runtime"},
    # of runtime, what writes a live model to a file
    "api": {
        "ground",
        "execute",
        "space",
        "search",
        "report",
        "result",
        "runtime",
        "export",
    },
    "commands": {
        "ground",
        "api",
        "cluster",
        "execute",
        "space",
        "search",
        "report",
        "result",
    },
    "cli": {"ground", "api", "commands", "space", "search", "report", "export"},
    "mcp": {"ground", "api", "commands", "report"},
    "testing": {"ground", "api", "execute", "result", "space"},
    "lightning": {"ground", "runtime"},
    "transformers": {"ground", "runtime"},
    "__main__": {"cli", "ground"},
}
# A wing is a folder with all of one subject, whose modules run in different processes. Each
# of them belongs to the column that it serves, and its door to that which comes in by it.
WINGS = {
    "rllib": {
        "__init__": "runtime",
        "algorithm": "runtime",
        "actors": "runtime",
        "observations": "runtime",
        "several": "runtime",
        "modules": "trial",
        "learner": "trial",
        "in_algorithm": "trial",
        "described": "ground",
        "form": "export",
        "gain": "commands",
        "shown": "report",
    },
    "interpreters": {
        "__init__": "ground",
        "named": "ground",
        "needed": "ground",
        "started": "execute",
    },
    "cluster": {
        "__init__": "cluster",
        "dispatch": "cluster",
        "links": "cluster",
        "station": "cluster",
        "wire": "cluster",
        "tune_all": "commands",
    },
    "suite": {
        "__init__": "commands",
        "runner": "commands",
        "members": "commands",
        "rows": "report",
        "tables": "report",
        "command": "cli",
    },
}
HEAVY = {"torch", "ray", "accelerate", "transformers", "pytorch_lightning"}
HEAVY |= {"diffusers", "timm", "torchvision"}


def column(module: str) -> str:
    _, head, *rest = [*module.split("."), "__init__"]
    if head in WINGS:
        return WINGS[head][rest[0]]
    return "ground" if head in GROUND else head


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            every = {f"{node.module}.{name.name}" for name in node.names}
            found |= (every & MODULES.keys()) or {node.module}
            if node.module == "autocompile":
                found |= every
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("autocompile", *parts))


@pytest.mark.parametrize("path", FILES, ids=lambda p: module_of(p))
def test_arrows_point_downward(path: Path) -> None:
    if path == PACKAGE / "__init__.py":
        return  # the shop window imports on first use
    own = column(module_of(path))
    for name in imports(path):
        if name.startswith("autocompile."):
            below = column(name)
            if name == "autocompile.__version__":
                continue
            assert below == own or below in ALLOWED[own], f"{own} imports {name}"


def test_estimates_are_made_of_records_and_nothing_else() -> None:
    below = {"settings", "errors", "estimate", "store"}
    for path in FILES:
        if path.parent.name == "estimate":
            ours = {
                n.split(".")[1] for n in imports(path) if n.startswith("autocompile.")
            }
            assert ours <= below, path
    for path in FILES:  # a trial knows of intervals only
        if column(module_of(path)) in ("trial", "runtime"):
            names = {n for n in imports(path) if n.startswith("autocompile.estimate")}
            assert names <= {"autocompile.estimate.intervals"}, path


@pytest.mark.parametrize("path", FILES, ids=lambda p: module_of(p))
def test_torch_is_imported_by_the_child_and_in_the_users_process_only(
    path: Path,
) -> None:
    if column(module_of(path)) in ("trial", "runtime", "lightning", "transformers"):
        return
    allowed = (
        {"ray"} if path.name == "links.py" and path.parent.name == "cluster" else set()
    )
    assert not {name.split(".")[0] for name in imports(path)} & HEAVY - allowed


def imported_first(tree: ast.Module) -> set[str]:
    """The modules of ours that a module imports when it is imported itself."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            both = {name.name: f"{node.module}.{name.name}" for name in node.names}
            found |= {
                each if each in MODULES else node.module for each in both.values()
            }
    return found & MODULES.keys()


def test_imports_make_no_circle_and_no_long_chain() -> None:
    graph = {
        name: imported_first(ast.parse(p.read_text("utf-8")))
        for name, p in MODULES.items()
    }
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises at a circle
    chain: dict[str, int] = {}
    for name in order:
        chain[name] = max((1 + chain[below] for below in graph[name]), default=0)
    assert max(chain.values()) <= 12, sorted(chain, key=lambda n: chain[n])[-4:]


def way() -> list[tuple[str, str]]:
    """The functions from the command to the timed call, as ARCHITECTURE.md lists them."""
    return re.findall(r"^\d+\. `([\w/]+\.py):([\w.]+)`", PAGE, re.MULTILINE)


def named_in(path: Path, function: str) -> set[str]:
    """The names in a function's body, and those in tables of its module that it reads."""
    tree = ast.parse(path.read_text("utf-8"))
    node: ast.AST = tree
    for name in function.split("."):
        body = getattr(node, "body")  # noqa: B009  (of a module, a class or a function)
        node = next(each for each in body if getattr(each, "name", None) == name)
    found = words(node)
    for table in tree.body:
        if isinstance(table, (ast.Assign, ast.AnnAssign)) and words(table) & found:
            targets = table.targets if isinstance(table, ast.Assign) else [table.target]
            if any(getattr(target, "id", None) in found for target in targets):
                found |= words(table)
    return found


def words(node: ast.AST) -> set[str]:
    every = list(ast.walk(node))
    names = {each.id for each in every if isinstance(each, ast.Name)}
    return names | {each.attr for each in every if isinstance(each, ast.Attribute)}


def test_the_way_of_a_setting_is_nine_hops() -> None:
    steps = way()
    assert steps[0] == ("cli/tune.py", "tune")
    assert "call" in named_in(PACKAGE / steps[-1][0], steps[-1][1])
    assert len(steps) - 1 <= 9
    for (path, function), (_, then) in itertools.pairwise(steps):
        if (path, function) != STARTS:
            assert then.rpartition(".")[2] in named_in(PACKAGE / path, function), (
                function
            )
    assert STARTS in steps, (
        "a process boundary: it starts these modules, which call the next"
    )
    path, then = steps[steps.index(STARTS) + 1]
    below = f"autocompile.{path.removesuffix('.py').replace('/', '.')}"
    for module in ("autocompile.trial.fork_server", "autocompile.trial"):
        assert f'"{module}"' in (PACKAGE / STARTS[0]).read_text("utf-8")
        assert f"`{module}`" in PAGE
        text = MODULES.get(f"{module}.__main__", MODULES[module]).read_text("utf-8")
        assert f"from {below} import {then}" in text


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_what_the_pages_about_the_code_name_is_there(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    for path, function in re.findall(
        r"`([\w/.]+(?:\.py|\.j2|\.json|\.toml|/))(?::(\w+))?`", text
    ):
        if path in MADE:
            continue
        found = [*PACKAGE.rglob(path.rstrip("/")), *ROOT.glob(path.rstrip("/"))]
        assert found, path
        assert not function or f" {function}" in found[0].read_text("utf-8"), (
            path,
            function,
        )


def test_the_worker_needs_only_numpy_and_torch() -> None:
    allowed = {"numpy", "torch", "ray", "gymnasium", "cloudpickle"} | set(
        sys.stdlib_module_names
    )
    worker = [p for p in FILES if column(module_of(p)) in ("trial", "runtime")]
    ground = [PACKAGE / "errors.py", PACKAGE / "estimate" / "intervals.py"]
    ground += [p for p in FILES if column(module_of(p)) == "ground" and p not in ground]
    # A backend of ours needs what it is about, and is imported where it is asked for.
    worker = [p for p in worker if "backends" not in p.parts]
    for path in (*worker, *ground):
        outside = {name.split(".")[0] for name in imports(path)} - {"autocompile"}
        assert outside <= allowed, path
    for path in FILES:  # and RLlib only by the files that are about it
        if {name.split(".")[0] for name in imports(path)} & {"ray", "gymnasium"}:
            assert path.name == "links.py" or path.parent.name == "rllib"


def test_the_parent_does_not_import_torch() -> None:
    code = "import autocompile.cli.commands, autocompile.api, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("wing", WINGS)
def test_the_door_of_a_wing_imports_none_of_its_rooms(wing: str) -> None:
    code = f"import autocompile.{wing}, sys; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    imported = set(done.stdout.split())
    assert f"autocompile.{wing}" in imported
    assert not imported & HEAVY
    assert not {f"autocompile.{wing}.{name}" for name in WINGS[wing]} & imported


def test_help_answers_in_under_a_second() -> None:
    """Of a core: what it waits for one while other tests run beside it is left out."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-X", "importtime", "-m", "autocompile", "--help"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "tune" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    imported = {
        line.rpartition("|")[2].strip().split(".")[0]
        for line in done.stderr.splitlines()
    }
    assert "typer" in imported
    assert not imported & (HEAVY | {"numpy", "optuna", "sqlalchemy"})


def test_every_public_name_is_there() -> None:
    for name in autocompile.__all__:
        assert getattr(autocompile, name).__doc__
    for path in FILES:
        tree = ast.parse(path.read_text("utf-8"))
        names = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign)
            and getattr(node.targets[0], "id", "") == "__all__"
        ]
        defined = {getattr(n, "name", "") for n in tree.body} | {
            t.id
            for n in tree.body
            if isinstance(n, (ast.Assign, ast.AnnAssign))
            for t in ([n.target] if isinstance(n, ast.AnnAssign) else n.targets)
            if isinstance(t, ast.Name)
        }
        imported = {
            a.asname or a.name
            for n in ast.walk(tree)
            if isinstance(n, ast.ImportFrom)
            for a in n.names
        }
        for listed in names:
            assert set(listed) <= defined | imported, path


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fastest'"):
        _ = autocompile.fastest


def test_phases_are_named_in_their_table_only() -> None:
    for path in FILES:
        if path.relative_to(PACKAGE).as_posix() == "settings/phases.py":
            continue
        tree = ast.parse(path.read_text("utf-8"))
        texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
        assert not texts & (PHASES.keys() - {STEP}), (
            path
        )  # that is the name of a scope, too


# What each wing is called, and the files outside it that may say so: its doors.
DOORS = {
    "rllib|RLModule|AlgorithmConfig": {
        "settings/phases.py",  # the table says which phases are its own
        "trial/model/load.py",  # makes targets
        "trial/worker.py",  # runs its task
        "export/__init__.py",
        "export/lines.py",
        "cli/browse.py",  # names of formats
        "cli/checking.py",
        "mcp.py",
        "result.py",  # apply_to
    },
}


@pytest.mark.parametrize("words", DOORS)
def test_the_word_of_a_wing_stands_in_its_folder_and_at_its_doors(words: str) -> None:
    (wing,) = (name for name in WINGS if name in words)
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        if re.search(words, path.read_text("utf-8"), re.IGNORECASE)
    }
    outside = {name for name in found if not name.startswith(f"{wing}/")}
    assert outside == DOORS[words]


def test_no_two_modules_have_one_file_name() -> None:
    every = [p.name for p in FILES if p.name not in ("__init__.py", "__main__.py")]
    assert sorted(every) == sorted(set(every))


# Public names that several modules define, and why each of them does.
SHARED = {
    "a command, the function that does its work, and the same as a tool or in Python": (
        "check doctor export list_runs load record show tune verify"
    ),
    "the same callback over another trainer": "TunedCallback",
    "the entry of a process": "main",
    "the version of one file's form": "SCHEMA",
    "one thing as the parent, a station or the child has it": (
        "Interrupts Request Side Station Step Target described probe"
    ),
    "the option of a command, and what it is about": "Asked Json Moved Output Progress",
    "what a report says of it": "Choice Unit Workload plain ratio seconds speedup",
    "a general word, about another subject in each module": (
        "Clock Compiled MODEL PROCESS Parts Place State answer choices compare encode "
        "figures measured save side_by_side"
    ),
}


def test_a_public_name_is_of_one_module() -> None:
    """Or it is on the list with a reason; the list names nothing else."""
    homes: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text("utf-8")).body:
            for each in defined_by(node):
                if not each.startswith("_"):
                    homes.setdefault(each, set()).add(name)
    several = {each for each, modules in homes.items() if len(modules) > 1}
    listed = [each for names in SHARED.values() for each in names.split()]
    assert several == set(listed)
    assert len(listed) == len(set(listed))


def defined_by(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]
