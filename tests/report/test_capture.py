"""The JSON of an analysis: one document, whatever is in its texts."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from pytest_cloudbench.report.capture import write_json


@pytest.mark.parametrize("comments", [[], ["one"], ['a "quoted", text', '\n "comments": []', "\u00e9\u2028", ""]])
def test_comments_are_indented_like_the_rest(comments: list[str]) -> None:
    summary: dict[str, Any] = {"file": '\n "comments": []', "packets": 3, "comments": comments}
    out = io.StringIO()
    write_json(summary, ["a note"], [{"number": 0}], out)
    assert json.loads(out.getvalue()) == {**summary, "notes": ["a note"], "flows": [{"number": 0}]}
    assert out.getvalue().startswith(json.dumps({**summary, "notes": ["a note"]}, indent=1)[:-2])
