"""Rules about the package as a whole: one class per name, no import circle, no use of another module's private names.

Pure functions over source text, by module name; ``test_architecture`` runs them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from tests.source_text import nodes, parse

PACKAGE = "pytest_cloudbench"


def public_classes(source: str) -> list[str]:
    """Return the names of the public classes of a module."""
    return [node.name for node in parse(source).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


def find_repeated_names(classes: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return the class names that more than one module has, with these modules, from the classes of each module."""
    modules_by_name: dict[str, list[str]] = {}
    for module, names in classes.items():
        for name in names:
            modules_by_name.setdefault(name, []).append(module)
    return {name: modules for name, modules in modules_by_name.items() if len(modules) > 1}


def imported_modules(source: str, modules: Collection[str]) -> Iterator[str]:
    """Yield the modules of the package that a source imports, also inside functions, for types and by import_module."""
    for node in nodes(source):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and called_name(node) == "import_module":
            names = [str(getattr(node.args[0], "value", ""))]
        for name in names:
            if re.match(rf"{PACKAGE}(\.|$)", name):
                module = name.removeprefix(PACKAGE).removeprefix(".")
                yield module if module in modules else module.rpartition(".")[0]


def import_circles(direct: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return groups of modules that import each other, directly or not, from the modules that each one imports."""
    reachable: dict[str, set[str]] = {}
    for module in direct:
        todo, visited = list(direct[module]), set[str]()
        while todo:
            target = todo.pop()
            if target not in visited:
                visited.add(target)
                todo += direct.get(target, ())
        reachable[module] = visited
    groups = {
        tuple(sorted(other for other in reachable[module] if module in reachable.get(other, ())))
        for module in direct
        if module in reachable[module]
    }
    return [list(group) for group in sorted(groups) if len(group) > 1]


def find_foreign_privates(source: str) -> list[tuple[int, str]]:
    """Return (line, expression) of each use of a private name that belongs to another module.

    A name with an underscore is a module's own where it defines it: a function, a class, an attribute of one of its
    classes or a name of its own.
    """
    own = {
        node.name for node in nodes(source) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    for node in nodes(source):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            own.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__slots__":
            own |= set(re.findall(r"\w+", ast.unparse(node.value)))
    uses = []
    for node in nodes(source):
        if (
            isinstance(node, ast.Attribute)
            and is_private(node.attr)
            and node.attr not in own
            and not is_self(node.value)
        ):
            uses.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith(PACKAGE)):
            uses += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names if is_private(alias.name)]
    return uses


def is_private(name: str) -> bool:
    """Return whether a name begins with an underscore. Names with two on each side belong to Python."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def called_name(node: ast.Call) -> str:
    """Return the last part of the name of the called function."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_self(node: ast.AST) -> bool:
    """Return whether an expression is the object or the class of the method that it is in."""
    return getattr(node, "id", "") in {"self", "cls"} or (isinstance(node, ast.Call) and ast.unparse(node) == "super()")


def find_other_meanings(source: str, words: Collection[str], glossary: str) -> list[tuple[int, str]]:
    """Return (line, problem) where one of ``words`` has a meaning that the glossary does not give.

    A public class whose last word is one of them must be in the glossary, in backticks. A parameter or attribute of
    that name must be of such a class. Nothing with such a name is a mapping by name, whether annotated or not.
    """
    problems = []
    for node in nodes(source):
        if (mapping := mapping_of(node)) in words:
            problems.append((getattr(node, "lineno", 0), f"{mapping}: a mapping by name"))
        if isinstance(node, ast.ClassDef) and is_new_meaning(node.name, words, glossary):
            problems.append((node.lineno, f"class {node.name}: the glossary does not tell it from others"))
        name, annotation = annotated_name(node)
        if name not in words or annotation is None:
            continue
        kind = ast.unparse(annotation)
        if not any(last_word(word) == name for word in re.findall(r"\w+", kind)):
            problems.append((getattr(node, "lineno", 0), f"{name}: {kind}"))
    return problems


def is_new_meaning(name: str, words: Collection[str], glossary: str) -> bool:
    """Return whether a public class is named by one of the words, and the glossary does not have it."""
    return not name.startswith("_") and last_word(name) in words and f"`{name}`" not in glossary


def mapping_of(node: ast.AST) -> str:
    """Return the name of a variable that is created or passed as a mapping, or as keywords, or is indexed by a text."""
    target: ast.AST | None = None
    if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Dict, ast.DictComp)):
        target = node.targets[0]
    elif isinstance(node, ast.keyword):
        if node.arg is not None:
            return node.arg if isinstance(node.value, (ast.Dict, ast.DictComp)) else ""
        target = node.value
    elif isinstance(node, ast.Subscript) and isinstance(getattr(node.slice, "value", None), str):
        target = node.value
    return target.id if isinstance(target, ast.Name) else ""


def annotated_name(node: ast.AST) -> tuple[str, ast.expr | None]:
    """Return the name of a parameter or attribute, and its annotation."""
    if isinstance(node, ast.arg):
        return node.arg, node.annotation
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, (ast.Name, ast.Attribute)):
        return node.target.id if isinstance(node.target, ast.Name) else node.target.attr, node.annotation
    return "", None


def last_word(name: str) -> str:
    """Return the last word of a name in camel case, in lower case."""
    words: list[str] = re.findall(r"[A-Z][a-z0-9]*", name) or [name]
    return words[-1].lower()
