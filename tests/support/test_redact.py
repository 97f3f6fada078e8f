"""Secrets in texts are found in every encoding, and a text without a secret is left unchanged."""

from __future__ import annotations

import base64
import html
import json
import logging
import random
import re
import string
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pytest_cloudbench.support import redact
from tests.limits import HANG_S, scale_examples

PRINTABLE = "".join(chr(code) for code in range(33, 127))


def _secrets(letters: str, min_length: int, max_length: int) -> st.SearchStrategy[str]:
    """Return a strategy of random secrets, as services issue them.

    Hypothesis' own texts shrink to repetitions, which are found more than once.
    """
    lengths, seeds = st.integers(min_length, max_length), st.integers(0, 2**32)
    return st.builds(lambda length, seed: "".join(random.Random(seed).choices(letters, k=length)), lengths, seeds)


AROUND = st.text(st.characters(codec="utf-8"), max_size=12)


def _base64(encode: Callable[[bytes], bytes], before: bytes, text: str) -> str:
    return encode(before + text.encode()).decode()


ENCODINGS: Mapping[str, Callable[[str], str]] = {
    "plain": str,
    "percent": urllib.parse.quote_plus,
    "percent, all": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "percent, twice": lambda text: urllib.parse.quote(urllib.parse.quote(text, safe=""), safe=""),
    "json": lambda text: json.dumps(text)[1:-1],
    "json, slashes": lambda text: json.dumps(text)[1:-1].replace("/", r"\/"),
    "json, all": lambda text: "".join(f"\\u{ord(character):04X}" for character in text),
    "json, twice": lambda text: json.dumps(json.dumps(text))[3:-3],
    "repr": lambda text: repr(text)[1:-1],
    "html": html.escape,
    "html, decimal": lambda text: "".join(f"&#{ord(character)};" for character in text),
    "html, hexadecimal": lambda text: "".join(f"&#x{ord(character):02x};" for character in text),
    "html in json": lambda text: json.dumps(html.escape(text))[1:-1].replace("&", r"\u0026"),
    "json in percent": lambda text: urllib.parse.quote(json.dumps(text)[1:-1]),
    "hexadecimal": lambda text: text.encode().hex(),
    "hexadecimal, bytes apart": lambda text: text.encode().hex(":").upper(),
    **{f"base64, {n} before": partial(_base64, base64.b64encode, b"user"[:n]) for n in range(4)},
    **{f"base64 for URLs, {n} before": partial(_base64, base64.urlsafe_b64encode, b"user"[:n]) for n in range(4)},
    "base64 in percent": lambda text: urllib.parse.quote(base64.b64encode(text.encode()), safe=""),
    "base64 in json": lambda text: base64.b64encode(text.encode()).decode().replace("/", r"\/"),
}  # fmt: skip


@pytest.fixture
def redactor(monkeypatch: pytest.MonkeyPatch) -> redact._Redactor:
    """A redactor that knows only the secrets that the test declares."""
    new_redactor = redact._Redactor()
    monkeypatch.setattr(redact, "_REDACTOR", new_redactor)
    return new_redactor


@settings(max_examples=scale_examples(30), deadline=None)
@given(secret=_secrets(PRINTABLE, 8, 120), before=AROUND, after=AROUND)
@example(secret=r"a\b\\c/d+e%41&amp;f", before="", after="")
@example(secret="sl.u." + string.ascii_letters * 20, before="token=", after="&x=1")
def test_a_secret_is_found_in_every_encoding(secret: str, before: str, after: str) -> None:
    redactor = redact._Redactor()  # one for all encodings, because its pattern takes time
    redactor.learn([secret])
    for encoding, encode in ENCODINGS.items():
        encoded = encode(secret)
        cleaned = redactor.clean(f"{before} {encoded} {after}")
        assert encoded not in cleaned, encoding
        assert cleaned.startswith(f"{before} "), encoding
        assert cleaned.endswith(f" {after}"), encoding
        # With base64, characters at the ends may stay if they also hold bits of the text around the secret.
        assert len(cleaned) <= len(before) + len(after) + len(redact.MASK) + 12, encoding


@pytest.mark.slow
@settings(max_examples=scale_examples(15), deadline=None)
@given(secret=_secrets(string.ascii_letters + string.digits, 60, 1300), cut=st.integers(12, 59))
def test_the_beginning_or_the_end_of_a_long_secret_is_enough(secret: str, cut: int) -> None:
    redactor = redact._Redactor()
    redactor.learn([secret])
    assert redactor.clean(f"{secret[:cut]}...{secret[-cut:]} and text") == "***...*** and text"


UNRELATED = redact._Redactor()
UNRELATED.learn(["Zq7/+pX&", "sl.u.Zq7pXw9LrT4kVn2YbHs8Md5Jf3Gc6Qa1Ee0Uu7Ii9Oo", "key1"])


@settings(deadline=None)
@given(st.text())
def test_text_without_a_secret_is_left_as_it_is(text: str) -> None:
    assume("Zq7/+pX&" not in text)
    assert UNRELATED.clean(text) == text


@pytest.mark.parametrize(
    ("secret", "text", "cleaned"),
    [
        ("abc", "abc is the beginning of the alphabet", "abc is the beginning of the alphabet"),
        ("pass", "a passage passes; my password is pass, 'pass'", "a passage passes; my password is ***, '***'"),
        ("pass", "pass%20word %70ass &#112;ass", "***%20word *** ***"),
        ("hunter22", "hunter22x hunter2 Hunter22", "***x hunter2 Hunter22"),
        ("two words", "Basic two words, two+words, two%20words", "Basic ***, two+words, ***"),
        ("größer-als-8", "gr%C3%B6%C3%9Fer-als-8 gr\\u00f6\\u00dfer-als-8", "*** ***"),
    ],
)
def test_short_and_odd_secrets(redactor: redact._Redactor, secret: str, text: str, cleaned: str) -> None:
    redactor.learn([secret])
    assert redactor.clean(text) == cleaned


ODD_SECRETS = ("größer-als-8", "naïve-日本語-key", "rocket-🚀-key", "日本語のパスワード", "ÿÿÿÿÿÿÿÿ", "🚀" * 30)
ODD_ENCODINGS: Mapping[str, Callable[[str], str]] = {
    **ENCODINGS,
    "json, all": lambda text: re.sub("(....)", r"\\u\1", text.encode("utf-16-be").hex().upper()),
    "ascii": lambda text: ascii(text)[1:-1],
    "json in ascii": lambda text: ascii(json.dumps(text))[2:-2],
    "repr of bytes": lambda text: repr(text.encode())[2:-1],
    "repr of bytes, all": lambda text: "".join(f"\\x{byte:02X}" for byte in text.encode()),
}


@pytest.mark.parametrize("secret", ODD_SECRETS, ids=ascii)
def test_a_secret_in_any_script_is_found_in_every_encoding(redactor: redact._Redactor, secret: str) -> None:
    redactor.learn([secret])
    for encoding, encode in ODD_ENCODINGS.items():
        cleaned = redactor.clean(f"token={encode(secret)}&x=1")
        assert (cleaned[:6], cleaned[-4:]) == ("token=", "&x=1"), encoding
        assert len(cleaned) <= len("token=***&x=1") + 12, encoding


@pytest.mark.parametrize("around", [b"text", "größer".encode(), b"\xff\x00\xc3"])
def test_a_secret_is_found_in_bytes(redactor: redact._Redactor, around: bytes) -> None:
    redact.learn(["very-secret", *ODD_SECRETS])
    for secret in ("very-secret", *ODD_SECRETS):
        error = ValueError(around + b" " + secret.encode() + b" " + around, around)
        redact.clean_error(error)
        assert error.args == (around + b" *** " + around, around)


def test_a_secret_is_found_in_bytes_of_latin_1(redactor: redact._Redactor) -> None:
    redact.learn(["größer-als-8"])
    error = ValueError("a größer-als-8 b".encode("latin-1"))
    redact.clean_error(error)
    assert error.args == (b"a *** b",)


def test_placeholder_of_secrets_is_not_redacted(redactor: redact._Redactor) -> None:
    """A replay gets the placeholder as a token, so everything that it records or prints contains the word."""
    assert redactor.learn(["scrubbed"]) == []
    assert redactor.clean("bodies are scrubbed") == "bodies are scrubbed"


def test_the_longer_of_two_secrets_that_begin_alike_goes_whole(redactor: redact._Redactor) -> None:
    head = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9."
    redactor.learn([f"{head}{'a' * 40}", f"{head}{'b' * 40}", head[:10], "b" * 30])
    assert redactor.clean(f"{head}{'a' * 40} {head}{'b' * 40} {head[:10]}") == "*** *** ***"


@pytest.mark.slow
def test_many_backslashes_take_no_time(redactor: redact._Redactor) -> None:
    redactor.learn(["\\" * 12 + "x" + "\\" * 12, "%25" * 8, "&amp;" * 8])
    text = "\\" * 20_000 + "%25" * 20_000 + "&amp;" * 20_000
    assert "***" in redactor.clean(text)


def test_an_error_is_cleaned_with_all_that_hangs_on_it(redactor: redact._Redactor) -> None:
    redactor.learn(["very-secret"])
    try:
        try:
            raise ValueError("very-secret", b"very-secret", ["very-secret"], {"a": "very-secret"})
        except ValueError:
            raise KeyError("very-secret") from ExceptionGroup("very-secret", [OSError(5, "very-secret")])
    except KeyError as caught:
        error = caught
        error.add_note("very-secret")
    redact.clean_error(error)
    context = error.__context__
    assert isinstance(error.__cause__, ExceptionGroup)
    assert isinstance(context, ValueError)
    assert (error.args, error.__notes__) == (("***",), ["***"])
    assert context.args == ("***", b"***", ["***"], {"a": "***"})
    assert str(error.__cause__.exceptions[0]) == "[Errno 5] ***"
    assert error.__traceback__ is None


def test_listener_receives_each_secret_once(redactor: redact._Redactor, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets: list[str] = []
    monkeypatch.setattr(redact, "_LISTENERS", [secrets.extend])
    redact.learn(["first-secret", "first-secret", "", "abc"])
    redact.learn(["first-secret", "next-secret"])
    assert secrets == ["first-secret", "next-secret"]


def test_a_log_record_that_does_not_fit_its_arguments_still_says_so(redactor: redact._Redactor) -> None:
    redact.learn(["very-secret"])
    record = logging.getLogRecordFactory()("x", 30, __file__, 1, "%d very-secret", ("very-secret", 2), None)
    assert (record.msg, record.args) == ("%d ***", ("***", "2"))
    with pytest.raises(TypeError):
        record.getMessage()


def test_a_log_record_without_a_secret_is_left_as_it_is(redactor: redact._Redactor) -> None:
    redact.learn(["very-secret"])
    record = logging.getLogRecordFactory()("x", 30, __file__, 1, "%s of %d", ("a", 2), None)
    assert (record.msg, record.args) == ("%s of %d", ("a", 2))


@pytest.mark.parametrize(
    "name",
    """secret_access_key access_key_secret session_token refresh_token account_key application_key client_secret
    password RESTIC_PASSWORD RESTIC_PASSWORD2 SSHPASS DB_PWD API_KEY APIKEY apiKey secretAccessKey x-api-key sas_token
    credential credentials GITHUB_TOKEN private_key PRIVATE_KEY_PEM customer_key_md5 key TOKEN passphrase secret_id
    VAULT_SECRET_ID connection_string temp_url_key password_hash webdav-passwd CLOUDBENCH_S3_SECRET_ACCESS_KEY
    Authorization""".split(),
)
def test_names_of_secrets(name: str) -> None:
    assert redact.names_secret(name)


@pytest.mark.parametrize(
    "name",
    """access_key_id AWS_ACCESS_KEY_ID application_key_id client_id accessKeyId AWSAccessKeyId kms_key_id account_name
    username user bucket endpoint token_type token_url token_env token_uri oidc_token_file credential_path key_file
    key_field public_key max_tokens password_file PASSWORD_STORE_DIR COMPASS BYPASS SSH_AUTH_SOCK KEYBOARD MONKEY
    encryption_algorithm auth_url region key_size secret_name skip_signature""".split(),
)
def test_public_names_do_not_name_secrets(name: str) -> None:
    assert not redact.names_secret(name)


def test_secrets_of_a_scope_end_with_it(redactor: redact._Redactor, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets: list[str] = []
    monkeypatch.setattr(redact, "_LISTENERS", [])
    redact.learn(["outer-secret"])
    before = redact.begin_scope()
    redact.on_learn(secrets.extend)
    redact.learn(["inner-secret"])
    assert redact.clean("outer-secret and inner-secret") == "*** and ***"
    redact.end_scope(before)
    redact.learn(["later-secret"])
    assert redact.clean("outer-secret, inner-secret, later-secret") == "***, inner-secret, ***"
    assert secrets == ["inner-secret"]
    assert "secret" not in repr(before).replace("secrets", "")


IN_TURNS = """
import pytest, sys
from pytest_cloudbench.support import redact

redact.learn(["known-before-any"])
for name in ("first", "second"):
    print("session", name)
    assert pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:], f"test_{name}.py"]) == 1
print("afterwards", redact.clean("secret-of-first known-before-any"))
"""
ONE = """
from pytest_cloudbench.support import redact

def test_it(experiment):
    redact.learn(["secret-of-NAME"])
    assert False, " ".join(["secret-of-", "secret-of-"]) + "first"
"""


@pytest.mark.slow
def test_secrets_of_a_session_end_with_it(tmp_path: Path) -> None:
    """Two sessions run in one process, with and without agents. The second one shows the secret of the first."""
    (tmp_path / "in_turns.py").write_text(IN_TURNS)
    (tmp_path / "here").mkdir()
    for name in ("first", "second"):
        (tmp_path / f"test_{name}.py").write_text(ONE.replace("NAME", name))
    for spread in ((), ("-n", "2")):
        argv = [sys.executable, "in_turns.py", "--provider", "folder:here", *spread]
        finished = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
        first, second = finished.stdout.split("session second")
        assert finished.stdout.splitlines()[-1] == "afterwards secret-of-first ***", finished.stdout + finished.stderr
        assert "AssertionError: secret-of- ***" in first
        assert "AssertionError: secret-of- secret-of-first" in second
