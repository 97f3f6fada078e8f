"""The rules about the package as a whole find all violations, and nothing else."""

from __future__ import annotations

from tests.package_rules import find_repeated_names, import_circles, imported_modules, public_classes

FIRST = "from pytest_cloudbench import b\nclass Plan: pass\nclass _Own: pass\n"
LAZY = "def f():\n    from pytest_cloudbench.c import g\n"
LAST = "class Plan: pass\nclass _Own: pass\nX = import_module('pytest_cloudbench.a')\n"


def repeated_names(sources: dict[str, str]) -> dict[str, list[str]]:
    return find_repeated_names({module: public_classes(source) for module, source in sources.items()})


def circles(sources: dict[str, str]) -> list[list[str]]:
    return import_circles({module: set(imported_modules(source, sources)) for module, source in sources.items()})


def test_a_public_class_name_in_two_modules() -> None:
    assert repeated_names({"a": FIRST, "b": LAZY, "c": LAST}) == {"Plan": ["a", "c"]}
    assert repeated_names({"a": FIRST, "b": LAZY}) == {}


def test_a_circle_of_any_kind_of_import() -> None:
    assert circles({"a": FIRST, "b": LAZY, "c": LAST, "d": FIRST}) == [["a", "b", "c"]]
    package = "def f():\n    from pytest_cloudbench.p import part\n"
    assert circles({"p": package, "p.part": "from pytest_cloudbench.p import f"}) == [["p", "p.part"]]


def test_an_import_for_types_closes_a_circle_too() -> None:
    for_types = "if TYPE_CHECKING:\n    from pytest_cloudbench.a import Plan\n"
    assert circles({"a": FIRST, "b": LAZY, "c": for_types}) == [["a", "b", "c"]]


def test_lazy_and_own_imports_are_no_circle() -> None:
    assert circles({"a": FIRST, "b": LAZY, "c": ""}) == []
    assert circles({"a": "from pytest_cloudbench.a import x"}) == []
