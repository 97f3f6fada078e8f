"""Distributions with drivers or sync clients, laid out in a folder as by an installation."""

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
    """Install a distribution in a folder, with entry points (name to ``module:Class``) of a group, and modules.

    A module without a text in ``modules`` is copied from this folder.
    """
    info_folder = folder / f"{name}-1.0.dist-info"
    info_folder.mkdir(parents=True)
    (info_folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{scheme} = {value}" for scheme, value in points.items()]
    (info_folder / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    for value in points.values():
        module = value.partition(":")[0]
        if modules is not None and module in modules:
            (folder / f"{module}.py").write_text(modules[module])
        elif (HERE / f"{module}.py").is_file():
            shutil.copy(HERE / f"{module}.py", folder)
    return folder
