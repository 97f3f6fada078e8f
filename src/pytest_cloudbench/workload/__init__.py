"""What is sent and when: arrival processes, recorded loads and the bytes of files. Pure functions of a seed."""

from __future__ import annotations
