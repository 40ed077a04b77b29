"""The layering rule of CONTRIBUTING.md, checked on the source text; nothing is imported to find out."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

PACKAGE: Final = "langgraph_turncheckpoint"
ROOT: Final = Path(__file__).parents[1]

#: Layers from top to bottom, and the modules of each. A module may import every one above it.
LAYERS: Final[Mapping[str, tuple[str, ...]]] = {
    "pure": (
        "errors",
        "_layout",
        "_turn",
        "_records",
        "_fields",
        "_frames",
        "_sharing",
        "_encoder",
        "_decoder",
        "_finalize",
        "_retention",
        "_markup",
    ),
    "files": (
        "_events",
        "_files",
        "_journal",
        "_turn_log",
        "_waiting",
        "_ledger",
        "_checkpoint_files",
        "_thread_files",
        "_inbox_files",
        "_turns",
        "_journal_copies",
        "_commits",
        "_collect",
        "_verify",
        "_offload",
    ),
    "langgraph": (
        "_messages",
        "_tool_calls",
        "_pairing",
        "_histories",
        "_serde",
        "_loading",
        "_runs",
        "_shared",
        "_standing",
        "_turn_store",
        "_store",
        "_upkeep",
        "_transcript",
        "_evidence",
        "inbox",
        "_sweep",
        "_housekeeping",
        "_open_turn",
        "_running",
        "_pending",
        "_losses",
        "_repair_files",
        "_repair",
        "_story",
        "_outcomes",
        "_calls",
        "_timeline",
        "_sightings",
        "_shapes",
        "_columns",
        "_picture",
        "_drawing",
        "display",
        "saver",
        "_same_values",
        "_copy_plan",
        "_write_calls",
        "_unreadable",
        "_blocking",
        "_sql_rows",
        "_saver_views",
        "_thread_copy",
        "_portable_values",
        "_portable",
        "_homemade",
        "_migrate_places",
        "migration",
        "_home",
        "_run_ends",
        "_recorder",
        "_policies",
        "_recovery",
        "_guard_core",
        "_tool_gate",
        "_model_pass",
        "_history_edits",
        "_guarded_node",
        "_history_channel",
        "_watched_saver",
        "_attached",
        "_middleware",
        "guard",
        "telemetry",
    ),
    "public": ("__init__",),
    "edges": (
        "_demo_agent",
        "_demo_worker",
        "_demo",
        "_demo_trip",
        "_demo_tools",
        "_demo_race",
        "_demo_screen",
        "_cli_ids",
        "_cli_values",
        "_cli_facts",
        "_cli_conversation",
        "_cli_stores",
        "_cli_screen",
        "_cli_options",
        "_cli_reading",
        "_cli_mending",
        "_cli_moving",
        "cli",
        "__main__",
    ),
}

_SYSTEM: Final = frozenset(
    [
        "aiofiles",
        "asyncio",
        "concurrent",
        "datetime",
        "fcntl",
        "glob",
        "io",
        "mmap",
        "msvcrt",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
    ]
)
_LANGGRAPH: Final = frozenset({"langchain_core", "langgraph", "langsmith"})
_EXTRAS: Final = frozenset({"langchain", "opentelemetry", "rich", "typer"})

#: Packages that no module of a layer may import.
FORBIDDEN: Final[Mapping[str, frozenset[str]]] = {
    "pure": _SYSTEM | _LANGGRAPH | _EXTRAS,
    "files": _LANGGRAPH | _EXTRAS,
    "langgraph": _EXTRAS,
    "public": _EXTRAS,
    "edges": frozenset(),
}

#: What comes with an extra has modules of its own that may import it.
ONLY_IN: Final[Mapping[str, tuple[str, ...]]] = {
    "langchain": ("_middleware", "_demo_agent"),
    "opentelemetry": ("telemetry",),
    "rich": ("_demo_screen", "_cli_screen"),
    "typer": ("_cli_options", "_cli_reading", "_cli_mending", "_cli_moving", "cli"),
}

ORDER: Final = {name: rank for rank, name in enumerate(name for names in LAYERS.values() for name in names)}
LAYER_OF: Final = {name: layer for layer, names in LAYERS.items() for name in names}


class Import(NamedTuple):
    """One imported name: a module of this package, or the top level of another."""

    line: int
    target: str
    ours: bool


def imports_of(source: str, known: Mapping[str, object]) -> Iterator[Import]:
    """Every import of a module, also inside functions, behind `TYPE_CHECKING` and by name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield _resolve(node.lineno, alias.name, known)
            case ast.ImportFrom(module=module, names=names, level=level):
                origin = ".".join(([PACKAGE] if level else []) + ([module] if module else []))
                if origin == PACKAGE:
                    for alias in names:
                        yield _resolve(node.lineno, f"{PACKAGE}.{alias.name}", known)
                else:
                    yield _resolve(node.lineno, origin, known)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield _resolve(node.lineno, PACKAGE + name if name.startswith(".") else name, known)


def _resolve(line: int, name: str, known: Mapping[str, object]) -> Import:
    top, _, rest = name.partition(".")
    if top != PACKAGE:
        return Import(line, top, ours=False)
    module = rest.partition(".")[0]
    return Import(line, module if module in known else "__init__", ours=True)


def violations(sources: Mapping[str, str]) -> list[str]:
    """What in these modules breaks the rule, one sentence each."""
    found = []
    for module, source in sources.items():
        layer = LAYER_OF.get(module)
        if layer is None:
            found.append(f"{module} has no layer: add it to LAYERS here and to the map in CONTRIBUTING.md")
            continue
        for line, target, ours in imports_of(source, sources):
            where = f"{module}:{line}"
            if ours and ORDER.get(target, -1) >= ORDER[module]:
                found.append(f"{where} imports {target}, which is below it")
            if not ours and target in FORBIDDEN[layer] and module not in ONLY_IN.get(target, ()):
                found.append(f"{where} imports {target}, which the layer {layer!r} must not")
            elif not ours and module not in ONLY_IN.get(target, (module,)):
                found.append(f"{where} imports {target}, which only {' and '.join(ONLY_IN[target])} may")
    return found


def read_package() -> dict[str, str]:
    folder = ROOT / PACKAGE
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
    }


def test_imports_only_point_up():
    assert violations(read_package()) == []


def test_the_table_names_no_module_that_is_gone():
    assert set(ORDER) <= set(read_package())


def test_contributing_maps_every_module_in_the_same_order():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    places = [text.find(f"| `{module}` |") for module in ORDER]
    assert -1 not in places, [module for module, place in zip(ORDER, places, strict=True) if place < 0]
    assert places == sorted(places)


PLANTED = [
    pytest.param("_turn", "from . import saver", "saver, which is below", id="downward"),
    pytest.param("_ledger", "from .saver import TurnCheckpointSaver", "saver, which is below", id="from"),
    pytest.param("_ledger", f"import {PACKAGE}.saver", "saver, which is below", id="absolute"),
    pytest.param("_ledger", f"from {PACKAGE} import saver", "saver, which is below", id="absolute-from"),
    pytest.param("_files", "from . import Stats", "__init__, which is below", id="package-root"),
    pytest.param("_turn", "from . import _turn", "_turn, which is below", id="itself"),
    pytest.param("_layout", "def f():\n    import os.path", "os, which the layer 'pure'", id="in-function"),
    pytest.param("_turn", "from time import monotonic", "time, which the layer 'pure'", id="clock"),
    pytest.param(
        "_sharing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from langgraph.types import Send",
        "langgraph, which the layer 'pure'",
        id="typing-only",
    ),
    pytest.param("_records", "__import__('io')", "io, which the layer 'pure'", id="by-name"),
    pytest.param(
        "_layout",
        "import importlib\nimportlib.import_module('.saver', __package__)",
        "saver, which is below",
        id="by-relative-name",
    ),
    pytest.param("_files", "import langchain_core", "langchain_core, which the layer", id="framework"),
    pytest.param("saver", "import rich.table", "rich, which the layer 'langgraph'", id="toolkit"),
    pytest.param("_demo", "import typer", "typer, which only _cli_options and", id="extra"),
    pytest.param("_new", "", "_new has no layer", id="unlisted"),
    pytest.param("sub.saver", "", "sub.saver has no layer", id="unlisted-subpackage"),
]


@pytest.mark.parametrize(("module", "source", "complaint"), PLANTED)
def test_a_planted_violation_is_found(module, source, complaint):
    found = violations({"saver": "", module: source})
    assert len(found) == 1
    assert complaint in found[0]


def test_allowed_imports_pass():
    sources = {
        "errors": "from __future__ import annotations",
        "_turn": "from enum import Enum\nfrom .errors import StaleTurnError",
        "_files": "import os\nfrom . import _turn, errors",
        "saver": "from langgraph.types import Send\nfrom . import _files",
        "cli": f"import typer\nfrom {PACKAGE} import TurnCheckpointSaver",
        "__init__": "from .saver import TurnCheckpointSaver",
    }
    assert violations(sources) == []


def test_importing_the_library_loads_no_terminal_toolkit():
    check = f"import sys, {PACKAGE}; print(sorted({{'langchain', 'rich', 'typer'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
