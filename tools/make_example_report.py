"""Make the report that the documents show, and a picture of its beginning: docs/example-report.html, .png.

    python tools/make_example_report.py [--store FOLDER]

It repeats a published table with ten agents, then compares the emulators of services: about ten minutes. With
``--store`` the runs are kept, and existing ones are not measured again. The picture needs Chromium.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "example-report.html"
PICTURE = PAGE.with_suffix(".png")
SERVICES = "--provider emulated:dropbox --provider emulated:gdrive"
RUNS = (
    "suites/iot -n 10 -k 4_2",
    f"suites/concurrency -n 2 {SERVICES} --provider emulated:onedrive",
    f"suites/filesize -n 2 {SERVICES}",
)
COMMAND = Path(sys.executable).with_name("cloudbench")
WIDTH, HEIGHT = 1200, 1500


def main() -> int:
    """Make the report and its picture, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, metavar="FOLDER", help="where runs are kept (default: nowhere)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = (options.store or Path(folder)).absolute()
        for number, words in enumerate(RUNS):
            if not (store / str(number)).exists():
                measure(words, store / str(number))
        pages = [str(store / str(number)) for number in range(len(RUNS))]
        subprocess.run([str(COMMAND), "report", *pages, "-o", str(PAGE)], cwd=ROOT, check=True)
    browser = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={PICTURE}", PAGE.as_uri(),
    ]  # fmt: skip
    subprocess.run(browser, check=True, capture_output=True)
    return 0


def measure(words: str, store: Path) -> None:
    """Run a suite. Its expectations may be broken, which is a result, too."""
    print("pytest", words, flush=True)
    options = [
        f"--benchmark-storage={store}",
        "--benchmark-autosave",
        f"--cloudbench-results={store}",
        "-p",
        "no:cacheprovider",
        "-q",
    ]
    command = [sys.executable, "-m", "pytest", *shlex.split(words), *options]
    exit_status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if exit_status not in (0, 1):
        raise SystemExit(f"pytest {words}: exit status {exit_status}")


if __name__ == "__main__":
    sys.exit(main())
