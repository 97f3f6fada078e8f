"""Print the disk space of an installation: the ordinary one, and the additional space of each extra.

    python tools/measure_install.py [EXTRA ...]

Each is installed into a new environment, with the pins of constraints.txt. Its size is the growth of the environment,
byte code included. docs/index.md holds the table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def size_bytes(folder: Path) -> int:
    """Return the disk space of a folder's files. A file with several names counts once."""
    sizes = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        sizes[status.st_ino] = getattr(status, "st_blocks", -(-status.st_size // 512)) * 512
    return sum(sizes.values())


def grown_bytes(requirement: str) -> int:
    """Return how much an environment grows when ``requirement`` is installed into it."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        venv.create(environment, with_pip=True)
        python = environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        before = size_bytes(environment)
        pins = str(ROOT / "constraints.txt")
        command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", pins, requirement]
        subprocess.run(command, check=True, cwd=folder)
        return size_bytes(environment) - before


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [name for name in project["optional-dependencies"] if name != "dev"]
    parser.add_argument("extra", nargs="*", metavar="EXTRA", help=f"one of {', '.join(extras)} (default: all of them)")
    options = parser.parse_args(argv)
    base_bytes = grown_bytes(str(ROOT))
    print("| install | adds |\n|---|---|")
    print(f"| `pytest-cloudbench` | {base_bytes / 1e6:.0f} MB |")
    for name in options.extra or extras:
        print(f"| `pytest-cloudbench[{name}]` | {(grown_bytes(f'{ROOT}[{name}]') - base_bytes) / 1e6:.0f} MB more |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
