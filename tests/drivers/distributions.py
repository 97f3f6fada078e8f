"""Distributions that bring drivers or sync clients, as they lie in a folder after an installation."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

__all__ = ["install"]

HERE = Path(__file__).resolve().parent


def install(
    folder: Path, name: str, points: Mapping[str, str], modules: Mapping[str, str] | None = None,
    group: str = "pytest_cloudbench.drivers",
) -> Path:  # fmt: skip
    """Put a distribution into a folder: entry points (name to ``module:Class``) of a group, and modules by their text.

    A module that is not given is a file of this folder.
    """
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{scheme} = {value}" for scheme, value in points.items()]
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    for value in points.values():
        module = value.partition(":")[0]
        if modules is not None and module in modules:
            (folder / f"{module}.py").write_text(modules[module])
        elif (HERE / f"{module}.py").is_file():
            shutil.copy(HERE / f"{module}.py", folder)
    return folder
