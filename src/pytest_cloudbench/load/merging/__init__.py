"""From the logs of a run to its entry: records are merged, counted, judged and stored."""

from __future__ import annotations
