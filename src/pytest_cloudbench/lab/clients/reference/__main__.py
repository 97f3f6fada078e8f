"""The program of all processes of the reference client: ``python -I -S __main__.py server|client|device CONFIG.json``.

It finds the package, and starts the right process. It is run by its path, isolated from whatever else is installed,
since it needs only the standard library and must start fast.
"""

from __future__ import annotations

import json
import os
import sys

if __name__ == "__main__":
    root = os.path.abspath(__file__)
    for _ in range(5):
        root = os.path.dirname(root)
    sys.path.append(root)
    with open(sys.argv[2], encoding="utf-8") as file:
        config = json.load(file)
    if sys.argv[1] == "server":
        from pytest_cloudbench.lab.clients.reference.server import main
    elif sys.argv[1] == "device":
        from pytest_cloudbench.lab.clients.reference.device import main
    else:
        from pytest_cloudbench.lab.clients.reference.client import main
    main(config)
