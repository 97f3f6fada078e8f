"""The ``cloudbench`` command: ``cli`` has its arguments, and each other module is one command or one family of them."""

from __future__ import annotations
