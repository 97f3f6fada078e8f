"""The merge of a run's logs: its records are counted, judged and stored."""

from __future__ import annotations
