"""The batching folder of UDS.

What may live here: everything of it that is I/O.
"""

from __future__ import annotations

__all__: list[str] = []
