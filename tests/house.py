"""Rules about the package as a whole: one class per name, no import circle, no use of another module's private names.

Pure functions over source text, by module name; ``test_architecture`` runs them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping

from tests.source import nodes, parse

PACKAGE = "pytest_cloudbench"


def repeated_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Public class names that more than one module has, with these modules."""
    found: dict[str, list[str]] = {}
    for module, source in sources.items():
        for node in parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def imported_modules(source: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Find the modules of the package that one imports: at its top, inside functions, for types, by import_module."""
    for node in nodes(source):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and called(node) == "import_module":
            names = [str(getattr(node.args[0], "value", ""))]
        for name in names:
            if re.match(rf"{PACKAGE}(\.|$)", name):
                below = name.removeprefix(PACKAGE).removeprefix(".")
                yield below if below in modules else below.rpartition(".")[0]


def circles(sources: Mapping[str, str]) -> list[list[str]]:
    """Groups of modules that import each other, directly or not, and be it only for types."""
    reached: dict[str, set[str]] = {}
    direct = {module: set(imported_modules(source, sources)) for module, source in sources.items()}
    for module in sources:
        todo, seen = list(direct[module]), set[str]()
        while todo:
            target = todo.pop()
            if target not in seen:
                seen.add(target)
                todo += direct.get(target, ())
        reached[module] = seen
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached.get(other, ())))
        for module in sources
        if module in reached[module]
    }
    return [list(group) for group in sorted(groups) if len(group) > 1]


def foreign_privates(source: str) -> list[tuple[int, str]]:
    """(line, expression) of each private name that belongs to another module.

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
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            own |= set(re.findall(r"\w+", ast.unparse(node.value)))
    found = []
    for node in nodes(source):
        if (
            isinstance(node, ast.Attribute)
            and is_private(node.attr)
            and node.attr not in own
            and not is_self(node.value)
        ):
            found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith(PACKAGE)):
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names if is_private(alias.name)]
    return found


def is_private(name: str) -> bool:
    """One underscore in front; two on each side belong to Python."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def called(node: ast.Call) -> str:
    """The last part of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_self(node: ast.AST) -> bool:
    """Whether this is the object, or the class, whose method looks at it."""
    return getattr(node, "id", "") in {"self", "cls"} or (isinstance(node, ast.Call) and ast.unparse(node) == "super()")


def other_meanings(source: str, words: Collection[str], glossary: str) -> list[tuple[int, str]]:
    """(line, what is wrong) where one of ``words`` means what the glossary does not say.

    A public class whose last word is one of them stands in the glossary, in backticks; a parameter or attribute that is
    called so is of such a class. Nothing with such a name is a mapping by name, whether annotated or not.
    """
    found = []
    for node in nodes(source):
        if (mapping := mapping_of(node)) in words:
            found.append((getattr(node, "lineno", 0), f"{mapping}: a mapping by name"))
        if isinstance(node, ast.ClassDef) and is_new_meaning(node.name, words, glossary):
            found.append((node.lineno, f"class {node.name}: the glossary does not tell it from others"))
        name, annotation = annotated(node)
        if name not in words or annotation is None:
            continue
        kind = ast.unparse(annotation)
        if not any(last_word(each) == name for each in re.findall(r"\w+", kind)):
            found.append((getattr(node, "lineno", 0), f"{name}: {kind}"))
    return found


def is_new_meaning(name: str, words: Collection[str], glossary: str) -> bool:
    """Whether a public class is called by one of the words, and the glossary does not have it."""
    return not name.startswith("_") and last_word(name) in words and f"`{name}`" not in glossary


def mapping_of(node: ast.AST) -> str:
    """The name of what is made as a mapping, handed over as one or as keywords, or asked for one of its names."""
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


def annotated(node: ast.AST) -> tuple[str, ast.expr | None]:
    """The name of a parameter or attribute, and its annotation."""
    if isinstance(node, ast.arg):
        return node.arg, node.annotation
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, (ast.Name, ast.Attribute)):
        return node.target.id if isinstance(node.target, ast.Name) else node.target.attr, node.annotation
    return "", None


def last_word(name: str) -> str:
    """Of a name in camel case, in lower case."""
    words: list[str] = re.findall(r"[A-Z][a-z0-9]*", name) or [name]
    return words[-1].lower()
