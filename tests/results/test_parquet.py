"""Our Parquet files as two other programs read them, and Parquet files of other programs."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.results.parquet import DOUBLE, INT64, TEXT, Column, NotReadable, read, write
from tests.limits import scale_examples

KINDS = {
    INT64: st.integers(-(2**63), 2**63 - 1),
    DOUBLE: st.floats(allow_nan=False),
    TEXT: st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
}
GROUP_ROWS = 30_000
Values = dict[tuple[str, int, bool], list[Any]]


@st.composite
def tables(draw: st.DrawFn) -> Values:
    rows = draw(st.integers(0, 30))
    table: Values = {}
    for index in range(draw(st.integers(1, 4))):
        kind, is_optional = draw(st.sampled_from(list(KINDS))), draw(st.booleans())
        values = st.none() | KINDS[kind] if is_optional else KINDS[kind]
        table[f"c{index}", kind, is_optional] = draw(st.lists(values, min_size=rows, max_size=rows))
    return table


def write_table(table: Values, metadata: dict[str, str] | None = None) -> bytes:
    file = io.BytesIO()
    columns = [Column(name, kind, is_optional=is_optional) for name, kind, is_optional in table]
    rows = len(next(iter(table.values())))
    groups = ([values[first : first + GROUP_ROWS] for values in table.values()] for first in range(0, rows, GROUP_ROWS))
    write(file, columns, groups, metadata or {})
    return file.getvalue()


def values_by_name(table: Values) -> dict[str, list[Any]]:
    return {name: values for (name, *_), values in table.items()}


LARGE: Values = {
    ("number", INT64, False): list(range(100_000)),
    ("some", DOUBLE, True): [None if row % 3 else row / 7 for row in range(100_000)],
    ("none", TEXT, True): [None] * 100_000,
    ("text", TEXT, False): [f"é{row % 11}" for row in range(100_000)],
}


@settings(deadline=None, max_examples=scale_examples(60))
@given(tables())
def test_other_programs_and_we_read_the_same(table: Values) -> None:
    from pyarrow import BufferReader
    from pyarrow import parquet as arrow

    data = write_table(table, {"key": "ä 'quoted'"})
    content = arrow.read_table(BufferReader(data))
    assert content.to_pydict() == values_by_name(table)
    assert content.schema.metadata == {b"key": "ä 'quoted'".encode()}
    assert read(data) == (values_by_name(table), {"key": "ä 'quoted'"})


def test_a_file_of_several_row_groups_is_read_by_sql_and_by_arrow(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    from pyarrow import parquet as arrow

    path = tmp_path / "large.parquet"
    path.write_bytes(write_table(LARGE))
    assert arrow.read_metadata(path).num_row_groups == 4
    assert arrow.read_table(path).to_pydict() == values_by_name(LARGE) == read(path.read_bytes())[0]
    sums = duckdb.sql(
        f"""select sum(number), count("some"), count("none"), count(distinct text) from '{path}'"""
    ).fetchall()
    assert sums == [(4_999_950_000, 33_334, 0, 11)]


@settings(deadline=None, max_examples=scale_examples(150))
@given(st.data())
def test_damaged_file_is_reported_as_damaged(data: st.DataObject) -> None:
    """A file that is cut or has one changed byte is read, or raises NotReadable and no other error."""
    content = write_table({("a", INT64, False): [1, 2, 3], ("b", TEXT, True): ["x", None, "yz"]}, {"k": "v"})
    offset = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(NotReadable):
        read(content[:offset])
    changed = bytearray(content)
    changed[offset] = data.draw(st.integers(0, 255))
    with contextlib.suppress(NotReadable):
        read(bytes(changed))


def test_a_changed_bit_anywhere_raises_no_other_error() -> None:
    content = write_table({("a", INT64, False): [1000, 1001], ("b", TEXT, True): ["x", None]}, {"k": "v"})
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(NotReadable):
            read(bytes(changed))


def test_a_file_of_another_program_is_not_taken_for_ours(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet as arrow

    path = tmp_path / "it.parquet"
    for packing in ("snappy", "zstd", "gzip", "none"):
        arrow.write_table(pyarrow.table({"a": [1, 1, 2]}), path, compression=packing)
        with pytest.raises(NotReadable):
            read(path.read_bytes())


def test_foreign_file_without_pyarrow_is_refused_in_one_line(tmp_path: Path) -> None:
    fixture = Path(__file__).parents[2] / "fixtures" / "results-schema-1" / "worst-case.parquet"
    code = """
import sys
from pathlib import Path
sys.modules["pyarrow"] = None
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results.oplog import read_parquet
try:
    read_parquet(Path(sys.argv[1]))
except ResultsError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", code, fixture], capture_output=True, text=True, check=True).stdout
    assert output.startswith(f"{fixture}: cannot be read: ")
    assert output.endswith("pip install pyarrow\n")
