"""What people look at. Nothing here measures."""

from __future__ import annotations
