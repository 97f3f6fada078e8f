"""Removing secrets from texts, in whatever encoding a server or a library echoes them.

Code that loads a credential or is issued one calls ``learn``, and everything shown to people or other processes passes
``clean``. From the first ``learn`` on, log records pass it too, whoever logs them.

A secret is found as it is, and percent-encoded, escaped as in JSON, Python or HTML (any of its characters, also twice),
in hexadecimal and in base64 of both alphabets, wherever in the encoded text it begins. The beginning or the end of a
long secret is enough, because texts for people are often cut.

A secret of less than eight characters could be a word, so it is found only unencoded and where it stands alone. One of
less than four characters is not searched for.

A scope limits what is learned to one session. The plugin, and the fixtures of our own tests, begin a scope before the
session and end it afterwards. An agent's process has one session, so the same holds there.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from html.entities import codepoint2name
from typing import Any
from urllib.parse import unquote_plus

MASK = "***"
"""The text that is shown in place of a secret."""
TAKEN_OUT = "scrubbed"
"""The text in place of a secret in a file that people share. A replay logs in with it, so it is not a secret."""

_WORD_CHARACTERS = 8
_LEAST_CHARACTERS = 4
_ANCHOR_UNITS = 12
"""How many characters of its beginning or its end suffice to recognise a longer secret."""
_WHOLE_UNITS = 256

# Forms of the special character of an escape, when one encoding is put into another.
_PERCENT = r"%(?:25)*"
_BACKSLASH = r"(?:\\|%(?:25)*5[Cc]|&#92;|&#[xX]5[Cc];){1,16}"
_AMPERSAND = r"(?:&|\\{1,16}u0026|%(?:25)*26)(?:amp;)*"
_TOKEN_CHARACTER = re.compile(r"[A-Za-z0-9._~+/=%\\-]")

_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORD = re.compile(
    r"(?!bypass|compass)\w*pass|pwd|\w*(?:password|passwd|passphrase|passcode|secret|credential)s?|\w*token"
)
_SECRET_LAST_WORD = re.compile(
    r"(?:|api|access|account|app|auth|master|private|secret|shared)keys?|auth|authorization|cookie|delegation|sas|"
    r"signature"
)
_ENCODING_WORDS = frozenset("ascii base content data hash hex json md pem sha text value".split())
"""Last words of a name that only say how its value is written. Digits are removed first."""
_DESCRIBING_WORDS = frozenset(
    "algorithm arn bits count dir endpoint env expiry field file folder format helper id ids length method mode name "
    "path policy prefix provider scope size store strategy suffix timeout ttl type uri url username version".split()
)
"""Last words of a name whose value is public: where a secret is, which one it is, or of which kind."""


_PARAMETER = re.compile(r"([?&]([^?&=,()]+)=)[^?&,()]*")
"""A parameter of a provider's spec, also of one that is a part of another."""
_USER = re.compile(r"(://[^\s/?#@&,():]*:)([^\s/?#@&,()]+)(?=@)")
"""The user of an address, and the password."""


def names_secret(name: str) -> bool:
    """Return whether the value of a setting or an environment variable is secret, judging by its name.

    Use this only for undeclared names: a driver lists its public fields in ``CredentialSet.public``. ``secret_id``
    counts as secret, although some services publish theirs.
    """
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    while len(words) > 1 and words[-1] in _ENCODING_WORDS:
        words.pop()
    if not words or "public" in words or words[0] == "skip":  # skip_signature=true
        return False
    if words[-2:] in (["connection", "string"], ["secret", "id"]):
        return True
    if words[-1] in _DESCRIBING_WORDS:
        return False
    return bool(_SECRET_LAST_WORD.fullmatch(words[-1]) or any(map(_SECRET_WORD.fullmatch, words)))


def mask_named(spec: str) -> str:
    """Return a provider's spec with ``MASK`` in place of each secret in it.

    These are the values of parameters whose names say that they are secret, and passwords in addresses.
    """
    masked = _PARAMETER.sub(lambda match: f"{match[1]}{MASK}" if names_secret(match[2]) else match[0], spec)
    return _USER.sub(rf"\1{MASK}", masked)


def learn_named(spec: str) -> None:
    """Learn the secrets in a provider's spec, as it has them and decoded: those that ``mask_named`` masks."""
    values = [match[0].removeprefix(match[1]) for match in _PARAMETER.finditer(spec) if names_secret(match[2])]
    values += [match[2] for match in _USER.finditer(spec)]
    learn([*values, *map(unquote_plus, values)])


@cache
def _character(character: str) -> str:
    """Return the pattern of one character in all its forms."""
    if character.startswith("\\"):
        return rf"(?:{_BACKSLASH}|u005[Cc]|x5[Cc]){{1,64}}".replace("{1,16}", "")
    code = ord(character)
    name = "apos" if character == "'" else codepoint2name.get(code)
    octets = [_any_case(f"{byte:02x}") for byte in character.encode("utf-8", "surrogatepass")]
    # Not by Python's codec: its module would be read from a file, which a process short of open files cannot do.
    utf16 = [code] if code < 0x10000 else [0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF)]
    forms = [
        re.escape(character),
        "".join(f"{_PERCENT}{octet}" for octet in octets),
        "".join(f"{_BACKSLASH}x{octet}" for octet in octets),
        "".join(f"{_BACKSLASH}u{_any_case(f'{unit:04x}')}" for unit in utf16),
        f"{_BACKSLASH}x{_any_case(f'{code:02x}')}" if 0x80 <= code < 0x100 else "",
        f"{_BACKSLASH}U{_any_case(f'{code:08x}')}" if code >= 0x10000 else "",
        f"{_AMPERSAND}#(?:0*{code}|[xX]0*{_any_case(f'{code:x}')});?",
        f"{_AMPERSAND}{name};" if name else "",
    ]
    before = "" if character.isalnum() else f"(?:{_BACKSLASH})?"
    return f"{before}(?:{'|'.join(form for form in forms if form)})"


@cache
def _base64_character(character: str) -> str:
    """Return the pattern of one of base64's 64 characters, of which two have another form in URLs."""
    if character.isalnum():
        return character
    return f"(?:{'|'.join(map(_character, '+-' if character == '+' else '/_'))})"


@cache
def _hex_digit(digit: str) -> str:
    return f"[: -]?{_any_case(digit)}"


def _any_case(digits: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)


@dataclass(frozen=True, slots=True)
class _Needle:
    """One form of a secret: its units, and the function that returns the pattern of a unit."""

    units: Sequence[str]
    pattern: Callable[[str], str]

    def anchor(self, *, escaped: bool, tail: bool = False) -> str:
        """Return the pattern of its beginning or its end, with the first unit plain, or in any other form."""
        units = self.units[-_ANCHOR_UNITS:] if tail else self.units[:_ANCHOR_UNITS]
        first, remainder = units[0], "".join(map(self.pattern, units[1:]))
        if self.pattern is _hex_digit:
            return _any_case(first) + remainder
        return (self.pattern(first) if escaped or first in "+/" else re.escape(first)) + remainder

    def follow(self, text: str, start: int, end: int) -> int:
        """Return the end of a secret whose anchor was found: its own end, or where the text is cut."""
        units = list(map(self.pattern, self.units))
        # Only a whole pattern distinguishes a plain "&" from the beginning of "&#38;". Long tokens have neither.
        if len(units) <= _WHOLE_UNITS and (complete := re.compile("".join(units)).match(text, start)):
            return complete.end()
        for unit in units[_ANCHOR_UNITS:]:
            match = re.compile(unit).match(text, end)
            if match is None:
                break
            end = match.end()
        return end


def _needles(secret: str) -> Iterator[_Needle]:
    # A run of backslashes is one unit, because each may be several in an encoding of the text.
    yield _Needle(re.findall(r"\\+|[^\\]", secret, re.DOTALL), _character)
    if len(secret) < _WORD_CHARACTERS:
        return
    data = secret.encode("utf-8", "surrogatepass")
    yield _Needle(data.hex(), _hex_digit)
    for before_bytes in range(3):
        # Take only the characters whose bits are all of the secret, whatever precedes and follows it.
        first, last = -(-8 * before_bytes // 6), 8 * (before_bytes + len(data)) // 6
        encoded = base64.b64encode(bytes(before_bytes) + data + bytes(2)).decode("ascii")
        yield _Needle(encoded[first:last], _base64_character)


class _Redactor:
    """The known secrets, and the pattern that finds them. Any thread may learn, since secrets are only added."""

    def __init__(self) -> None:
        self._needles: list[_Needle] = []
        self.secrets: set[str] = set()
        self._search_state: tuple[int, re.Pattern[str], tuple[list[_Needle], ...]] = 0, re.compile("(?!)"), ()

    def learn(self, secrets: Iterable[str]) -> list[str]:
        """Add secrets, and return those that are new."""
        new = [secret for secret in dict.fromkeys(secrets) if self._is_secret(secret)]
        self._needles += [needle for secret in new for needle in _needles(secret)]
        self.secrets.update(new)
        return new

    def _is_secret(self, secret: str) -> bool:
        return len(secret) >= _LEAST_CHARACTERS and secret not in self.secrets and secret != TAKEN_OUT

    @staticmethod
    def _compile_patterns(needles: Sequence[_Needle]) -> tuple[int, re.Pattern[str], tuple[list[_Needle], ...]]:
        """Return the number of needles, the pattern, and for each of its groups the needles that begin so.

        A group of an end has no needles. Alternatives that begin with a plain character cost almost nothing where the
        text has another one. The others are tried where the text has the beginning of an escape.
        """
        needles_by_group: list[list[_Needle]] = []
        alternatives = []
        for escaped in (False, True):
            anchors: dict[str, list[_Needle]] = {}
            for needle in needles:
                if escaped and needle.pattern is not _character:
                    continue  # encoded again, it still begins with a plain character or one of two others
                anchor = needle.anchor(escaped=escaped)
                stands_alone = len(needle.units) < _WORD_CHARACTERS
                anchors.setdefault(rf"(?<!\w){anchor}(?!\w)" if stands_alone else anchor, []).append(needle)
                if len(needle.units) >= 2 * _ANCHOR_UNITS:
                    anchors.setdefault(needle.anchor(escaped=escaped, tail=True), [])
            # Longer anchors go first, so that of two secrets that begin alike the longer one is removed completely.
            order = sorted(anchors, key=len, reverse=True)
            alternatives.append("|".join(f"{anchor}()" for anchor in order))
            needles_by_group += (anchors[anchor] for anchor in order)
        return len(needles), re.compile(f"{alternatives[0]}|(?=[%&\\\\])(?:{alternatives[1]})"), tuple(needles_by_group)

    def clean(self, text: str) -> str:
        """Return a text with a mask in place of each secret, however it is encoded."""
        if not self.secrets:
            return text
        if self._search_state[0] != len(self._needles):
            # Compile only when needed: it takes 10 ms for a token, and most runs show none.
            self._search_state = self._compile_patterns(tuple(self._needles))
        _, pattern, needles_of = self._search_state
        pieces, cleaned_to = list[str](), 0
        while (match := pattern.search(text, cleaned_to)) is not None:
            start, end = match.span()
            assert match.lastindex is not None
            needles = needles_of[match.lastindex - 1]
            if not needles:  # the end of a secret whose beginning is cut off
                while (
                    start > cleaned_to and _TOKEN_CHARACTER.match(text, start - 1) and text[start - 3 : start] != "..."
                ):
                    start -= 1
            end = max((needle.follow(text, start, end) for needle in needles), default=end)
            pieces += text[cleaned_to:start], MASK
            cleaned_to = end
        return "".join([*pieces, text[cleaned_to:]]) if pieces else text


_REDACTOR = _Redactor()
_LISTENERS: list[Callable[[list[str]], object]] = []


@dataclass(frozen=True, slots=True)
class SecretScope:
    """The secrets and listeners at one time, for ``end_scope``. Its ``repr`` shows no secret."""

    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    listeners: tuple[Callable[[list[str]], object], ...] = ()


def begin_scope() -> SecretScope:
    """Return the current secrets, for the ``end_scope`` that forgets what is learned from now on."""
    return SecretScope(frozenset(_REDACTOR.secrets), tuple(_LISTENERS))


def end_scope(scope: SecretScope) -> None:
    """Forget what was learned since the scope began. Listeners that were added since then are no longer called."""
    global _REDACTOR  # noqa: PLW0603 - a new object, because other threads may be using the former one
    _LISTENERS[:] = [listener for listener in _LISTENERS if listener in scope.listeners]
    if not _REDACTOR.secrets <= scope.secrets:
        redactor = _Redactor()
        redactor.learn(_REDACTOR.secrets & scope.secrets)
        _REDACTOR = redactor


def learn(secrets: Iterable[str]) -> None:
    """Treat these as secret in this process, and in those that ``on_learn`` tells, until their scope ends."""
    new = _REDACTOR.learn(secrets)
    if new:
        clean_log()
        for listener in _LISTENERS:
            listener(new)


def on_learn(listener: Callable[[list[str]], object]) -> None:
    """Also report secrets that are learned from now on to ``listener``, such as the process that shows our reports."""
    _LISTENERS.append(listener)


def is_needed() -> bool:
    """Return whether any secret is known."""
    return bool(_REDACTOR.secrets)


def clean(text: str) -> str:
    """Return the text with every secret replaced by ``MASK``."""
    return _REDACTOR.clean(text)


def clean_log() -> None:
    """Remove secrets from all that this process logs from now on, on any handler. Safe to call again."""
    former_factory = logging.getLogRecordFactory()
    if getattr(former_factory, "cleans", False):
        return

    def make_clean_record(*args: Any, **options: Any) -> logging.LogRecord:
        record = former_factory(*args, **options)
        _clean_record(record)
        return record

    make_clean_record.cleans = True  # type: ignore[attr-defined]  # marks the factory, so that it is not wrapped twice
    logging.setLogRecordFactory(make_clean_record)


def _clean_record(record: logging.LogRecord) -> None:
    """Remove secrets from a log record. A record without one is left unchanged."""
    try:
        message = record.getMessage()
    except Exception:  # the arguments do not fit: whoever formats the record reports that, and shows both
        record.msg = _clean_value(record.msg)
        record.args = tuple(clean(str(argument)) for argument in record.args or ())
    else:
        if (cleaned := clean(message)) != message:
            record.msg, record.args = cleaned, ()
    if record.exc_info and record.exc_info[0] is not None:
        traceback = logging.Formatter().formatException(record.exc_info)
        if (cleaned := clean(traceback)) != traceback:
            record.exc_text, record.exc_info = cleaned, None
    if record.stack_info:
        record.stack_info = clean(record.stack_info)


def _clean_value(value: Any) -> Any:
    """Return the value with all texts in it cleaned. Lists and dictionaries are changed in place."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bytes):
        return _clean_bytes(value)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_clean_value, value))
    if isinstance(value, list):
        value[:] = map(_clean_value, value)
    elif isinstance(value, dict):
        value.update({key: _clean_value(item) for key, item in value.items()})
    return value


def _clean_bytes(data: bytes) -> bytes:
    """Return bytes without the secrets in them, whose characters may be those of either code."""
    for code, errors in (("utf-8", "surrogateescape"), ("latin-1", "strict")):
        text = data.decode(code, errors)
        if (cleaned := clean(text)) != text:
            data = cleaned.encode(code, errors)
    return data


def clean_error(error: BaseException) -> None:
    """Remove secrets from an error, its causes and its notes, and from what pytest would show of their frames.

    An SDK's frames hold the authorization header in local variables, which ``pytest -l`` prints. They also keep the
    payload of every failed upload in memory.
    """
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = None
        current.args = _clean_value(current.args)
        if isinstance(current, OSError):  # these attributes are not in ``__dict__``
            current.strerror = _clean_value(current.strerror)
            if current.filename is not None:
                current.filename = _clean_value(current.filename)
        for name, value in list(vars(current).items()):
            if isinstance(value, (str, bytes, list, dict, tuple)):
                setattr(current, name, _clean_value(value))
        pending += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions


def clean_report(report: Any) -> None:
    """Remove secrets from a test's or a collector's report: traceback, captured output, logs and properties."""
    if not is_needed():
        return
    report.sections = [(clean(title), clean(text)) for title, text in report.sections]
    if hasattr(report, "user_properties"):
        report.user_properties = _clean_value(list(report.user_properties))
    report.longrepr = clean_shown(report.longrepr)


def clean_shown(value: Any) -> Any:
    """Return a value that pytest is about to show, cleaned. pytest's own objects, such as reports, change in place."""
    return _clean_shown_value(value, set()) if is_needed() else value


def _clean_shown_value(value: Any, seen: set[int]) -> Any:
    """Return a value cleaned: texts, sequences, and pytest's own objects that are made of these."""
    if isinstance(value, (str, bytes)):
        return _clean_value(value)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_clean_shown_value(item, seen) for item in value)
    if isinstance(value, list):
        value[:] = [_clean_shown_value(item, seen) for item in value]
    elif type(value).__module__.startswith("_pytest.") and id(value) not in seen:
        seen.add(id(value))
        for name, item in list(vars(value).items()):
            object.__setattr__(value, name, _clean_shown_value(item, seen))
    return value
