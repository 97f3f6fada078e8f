"""Network measurement: links, captures, the flows in a capture, and the kernel's socket counts."""

from __future__ import annotations
