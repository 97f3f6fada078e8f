"""Print what an installation takes on disk: the ordinary one, and each extra beside it.

    python tools/measure_install.py [EXTRA ...]

Each is installed into a new environment, with the pins of constraints.txt; its size is what it has grown by, byte code
included. docs/index.md holds the table.
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
    """What the files of a folder take on disk; a file with several names counts once."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[status.st_ino] = getattr(status, "st_blocks", -(-status.st_size // 512)) * 512
    return sum(found.values())


def grown_bytes(wanted: str) -> int:
    """How much an environment grows when ``wanted`` is installed into it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "venv"
        venv.create(place, with_pip=True)
        python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        before = size_bytes(place)
        pins = str(ROOT / "constraints.txt")
        command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", pins, wanted]
        subprocess.run(command, check=True, cwd=folder)
        return size_bytes(place) - before


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    known = [name for name in project["optional-dependencies"] if name != "dev"]
    parser.add_argument("extra", nargs="*", metavar="EXTRA", help=f"one of {', '.join(known)} (default: all of them)")
    options = parser.parse_args(argv)
    alone = grown_bytes(str(ROOT))
    print("| install | adds |\n|---|---|")
    print(f"| `pytest-cloudbench` | {alone / 1e6:.0f} MB |")
    for name in options.extra or known:
        print(f"| `pytest-cloudbench[{name}]` | {(grown_bytes(f'{ROOT}[{name}]') - alone) / 1e6:.0f} MB more |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
