"""Tables, pages and live views of results. Nothing here measures."""

from __future__ import annotations
