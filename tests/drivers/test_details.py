"""Details of errors, which omit the values of a single request and keep the words that distinguish errors."""

from __future__ import annotations

import pytest

from pytest_cloudbench.drivers.base import detail_of

PATH = "/run/a b/s00001-000001.bin"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            'Could not connect to the endpoint URL: "http://127.0.0.1:9000/bucket/run/a%20b/s00001-000001.bin"',
            'Could not connect to the endpoint URL: "http://127.0.0.1:9000*"',
        ),
        (
            "HTTPConnectionPool(host='h', port=1): Max retries exceeded with url: /v1/a?part=3 (Caused by X)",
            "HTTPConnectionPool(host='h', port=1): Max retries exceeded with url: * (Caused by X)",
        ),
        ("404 notFound: No such object: bucket/run/a b/s00001-000001.bin", "404 notFound: No such object: bucket/*"),
        ("No such child: 's00001-000001.bin' in directory", "No such child: '*' in directory"),
        ("404 notFound: File not found: 1hB9ceyz2XWZ6sD0QbA7Ur5tPfK3LmNoQ.", "404 notFound: File not found: *."),
        (
            "<Code>InternalError</Code><RequestId>17A3B4C5D6E7F8A9</RequestId>",
            "<Code>InternalError</Code><RequestId>*</RequestId>",
        ),
        ("RequestId:0e9b0c5f-401e-0046-2a3b-0c8d1e000000", "RequestId:*"),
        ("Time:2026-11-22T19:30:01.1234567Z over", "Time:* over"),
        ("said at Sun, 22 Nov 2026 19:30:01 GMT", "said at *"),
        ("IncompleteRead(7 bytes read, 3993 more expected)", "IncompleteRead(* bytes read, * more expected)"),
        ("(received 7 bytes, expected 4007)", "(received * bytes, expected *)"),
        ("7 read, but total bytes expected is 4007.", "* read, but total bytes expected is *."),
        ("<Connection object at 0x7f25c15a3d10>", "<Connection object at *>"),
        ("one\n line", "one line"),
    ],
)
def test_detail_omits_values_of_a_single_request(words: str, expected: str) -> None:
    assert detail_of(words, PATH) == expected


@pytest.mark.parametrize(
    "words",
    [
        "400 XAmzContentSHA256Mismatch The provided 'x-amz-content-sha256' header does not match",
        "409 path/conflict/folder",
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate",
        "507 quotaExceeded: The limit of 15 GiB, 16106127 bytes, is reached in us-east-1",
        "[Errno 104] Connection reset by peer",
        "Cannot connect to host 127.0.0.1:39181 ssl:default",
        "read timeout=0.5",
        "the unknown host key SHA256:MMvk2FXTnDuxb6ovipfI0ChMKDx0R2Fix6mMwbJNYSU (ssh-ed25519)",
    ],
)
@pytest.mark.parametrize("path", [PATH, "/a", "/folder", "/path/reset", "/"])
def test_detail_keeps_words_that_distinguish_errors(words: str, path: str) -> None:
    assert detail_of(words, path) == words


def test_detail_is_bounded() -> None:
    assert detail_of("word " * 100_000, PATH) == ("word " * 60)[:300]
