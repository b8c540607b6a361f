"""Imports go one way: a module imports only from floors below its own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "agentpipe"

#: The floors, lowest first; a name stands for a module or for all of a package.
FLOORS = [
    ["exceptions", "_records", "_arguments", "_schema", "_sqlite"],
    ["_messages"],
    ["_responses", "_transcript", "_session", "_approval_rules"],
    ["_tools"],
    ["_options"],
    ["_request", "_layered"],
    ["_waist"],
    ["_client"],
    ["_base_agent", "_tool_loop", "_providers", "_reducers", "_telemetry"],
    ["_tool_round", "_pipeline"],
    ["layers.function_invoking", "history", "openai", "layers"],
    ["_agent", "agent_layers"],
    ["local", "_history_contract", "testing", "pytest_plugin"],
    ["cli"],
    ["__init__"],
]
#: Third-party packages, and who may import them.
LEAVES = {
    "openai": ["openai"],
    "httpx2": ["openai"],
    "jiter": ["openai"],
    "tenacity": ["layers.retrying"],
    "rich": ["cli"],
    "asyncpg": ["history.postgres"],
    "redis": ["history.redis"],
    "xllamacpp": ["local"],
    "opentelemetry": ["layers.telemetry", "agent_layers.telemetry", "_telemetry"],
    "docstring_parser": ["_schema"],
    "pytest": ["_history_contract", "testing", "pytest_plugin"],
}
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in ROOT.rglob("*.py")
)


def floor_of(module: str) -> int:
    for number, names in enumerate(FLOORS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return number
    raise AssertionError(f"{module} stands on no floor: add it to FLOORS")


#: What names things from above, for type checkers only.
NAMES_ABOVE = {"exceptions", "_client", "testing"}


def imports_of(module: str, *, for_types: bool = False) -> set[str]:
    """What a module imports at run time, in functions too; what stands under TYPE_CHECKING only ``for_types``."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found: set[str] = set()
    todo: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not for_types:
            todo.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module}: relative import"
            found |= {node.module}
        todo.extend(ast.iter_child_nodes(node))
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    """A module imports from lower floors only, or from its own package; nothing inside imports the front door."""
    if module == "__init__":
        return
    for name in imports_of(module):
        if name.split(".")[0] != "agentpipe":
            continue
        assert name != "agentpipe", f"{module} imports the front door"
        other = name.removeprefix("agentpipe.")
        same_package = "." in module and other.split(".")[0] == module.split(".")[0]
        own_front = other == module.split(".")[0] or other.startswith(f"{module}.")
        assert same_package or own_front or floor_of(other) < floor_of(module) or _beside(module, other), (
            f"{module} imports {other}"
        )


def _beside(module: str, other: str) -> bool:
    """Modules of one floor may build on each other in the order in which the floor names them."""
    if floor_of(module) != floor_of(other):
        return False
    names = FLOORS[floor_of(module)]
    place = {
        m: next(n for n, name in enumerate(names) if m == name or m.startswith(f"{name}.")) for m in (module, other)
    }
    return place[other] < place[module]


def test_who_names_what_stands_above() -> None:
    """Hardly a module names anything from above, and then for type checkers only."""
    above = {
        module
        for module in MODULES
        for name in imports_of(module, for_types=True) - imports_of(module)
        if module != "__init__" and name.startswith("agentpipe.") and floor_of(name[10:]) > floor_of(module)
    }
    assert above <= NAMES_ABOVE


def test_who_imports_by_name() -> None:
    """Only the front door, and a client's shortcut to an agent, import a module of agentpipe by its name."""
    sources = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in ROOT.rglob("*.py")}
    by_name = {
        path for path, source in sources.items() if re.search(r'(import_module|__import__)\(f?"agentpipe', source)
    }
    assert by_name == {"__init__.py", "_client.py"}


@pytest.mark.parametrize("module", MODULES)
def test_third_parties_stay_in_their_leaves(module: str) -> None:
    """A third-party package other than pydantic is imported only in the leaf that needs it."""
    for name in imports_of(module):
        allowed = LEAVES.get(name.split(".")[0])
        assert allowed is None or any(module == leaf or module.startswith(f"{leaf}.") for leaf in allowed), (
            f"{module} imports {name}"
        )


def test_there_is_no_knot() -> None:
    """No module imports itself, however far around."""
    graph = {m: {n.removeprefix("agentpipe.") for n in imports_of(m) if n.startswith("agentpipe.")} for m in MODULES}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"a knot: {' -> '.join([*above, module])}"
        if module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, (*above, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())
