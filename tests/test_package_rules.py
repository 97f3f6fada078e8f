"""The rules about the package as a whole find all violations, and nothing else."""

from __future__ import annotations

from tests.package_rules import find_repeated_names, import_circles

FIRST = "from pytest_cloudbench import b\nclass Plan: pass\nclass _Own: pass\n"
LAZY = "def f():\n    from pytest_cloudbench.c import g\n"
LAST = "class Plan: pass\nclass _Own: pass\nX = import_module('pytest_cloudbench.a')\n"


def test_a_public_class_name_in_two_modules() -> None:
    assert find_repeated_names({"a": FIRST, "b": LAZY, "c": LAST}) == {"Plan": ["a", "c"]}
    assert find_repeated_names({"a": FIRST, "b": LAZY}) == {}


def test_a_circle_of_any_kind_of_import() -> None:
    assert import_circles({"a": FIRST, "b": LAZY, "c": LAST, "d": FIRST}) == [["a", "b", "c"]]
    package = "def f():\n    from pytest_cloudbench.p import part\n"
    assert import_circles({"p": package, "p.part": "from pytest_cloudbench.p import f"}) == [["p", "p.part"]]


def test_an_import_for_types_closes_a_circle_too() -> None:
    for_types = "if TYPE_CHECKING:\n    from pytest_cloudbench.a import Plan\n"
    assert import_circles({"a": FIRST, "b": LAZY, "c": for_types}) == [["a", "b", "c"]]


def test_lazy_and_own_imports_are_no_circle() -> None:
    assert import_circles({"a": FIRST, "b": LAZY, "c": ""}) == []
    assert import_circles({"a": "from pytest_cloudbench.a import x"}) == []
