"""Any text is a spec or a SpecError, and other values of the model have the properties of their parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.model import CloudError, ErrorKind, Op, Outcome, ProviderSpec, SpecError, Verb, chunks
from pytest_cloudbench.workload.payload import RandomContent

# Mostly noise would never get past the scheme.
PIECES = st.sampled_from(["dropbox", "folder", "emulated", ":", "//", "/", "?", "&", "=", "%", "key", " ", "\n", "\0"])
SPEC_LIKE = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)


def parse_spec(text: str) -> ProviderSpec | SpecError:
    try:
        return ProviderSpec.parse(text)
    except SpecError as error:
        return error


@given(st.text() | SPEC_LIKE)
def test_any_text_is_a_spec_or_a_spec_error(text: str) -> None:
    spec = parse_spec(text)
    if isinstance(spec, SpecError):
        assert "\n" not in str(spec)
        return
    assert spec.scheme
    assert spec.scheme == spec.scheme.lower()
    assert spec.scheme.isascii()
    assert all(isinstance(part, str) for pair in spec.params.items() for part in pair)
    assert ProviderSpec.parse(spec.text) == spec


@pytest.mark.parametrize(
    ("text", "scheme", "target", "params"),
    [
        ("dropbox", "dropbox", "", {}),
        (" Emulated:dropbox ", "emulated", "dropbox", {}),
        ("folder:/tmp/a:b", "folder", "/tmp/a:b", {}),
        ("dropbox?", "dropbox", "", {}),
        ("folder:relative", "folder", "relative", {}),
        ("s3://bucket?endpoint=http://h:1/&x=", "s3", "bucket", {"endpoint": "http://h:1/", "x": ""}),
        ("emulated:dropbox?profile=dropbox-2014", "emulated", "dropbox", {"profile": "dropbox-2014"}),
    ],
)
def test_spec(text: str, scheme: str, target: str, params: dict[str, str]) -> None:
    spec = ProviderSpec.parse(text)
    assert (spec.scheme, spec.target, spec.params) == (scheme, target, params)
    assert spec.is_emulated == (scheme == "emulated")


@pytest.mark.parametrize("text", ["", ":", "/tmp", "a b", "x?novalue", "x?a=1&a=2", "ünï:x", "fol\nder:x"])
def test_malformed_spec(text: str) -> None:
    with pytest.raises(SpecError, match="provider"):
        ProviderSpec.parse(text)


def test_cloud_error_names_verb_path_and_kind() -> None:
    error = CloudError(ErrorKind.THROTTLED, "put", "/a", retry_after_s=1.5, detail="slow down")
    assert str(error) == "put /a: throttled (slow down)"
    assert (error.kind, error.retry_after_s) == (ErrorKind.THROTTLED, 1.5)
    assert str(CloudError(ErrorKind.AUTH, "get", "/b")) == "get /b: auth"


def test_times_of_an_op() -> None:
    op = Op(
        Verb.PUT, 0, 0, 0, scheduled_ns=100, start_ns=130, first_byte_ns=0, end_ns=200, size_bytes=1, outcome=Outcome.OK
    )
    assert (op.service_ns, op.response_ns, op.lateness_ns) == (70, 100, 30)


@pytest.mark.parametrize(("size", "lengths"), [(0, []), (1, [1]), (10, [10]), (25, [10, 10, 5])])
def test_chunks(size: int, lengths: list[int]) -> None:
    content = RandomContent("chunks", size)
    pieces = list(chunks(content, 10))
    assert [len(piece) for piece in pieces] == lengths
    assert b"".join(pieces) == content.read(0, size)
