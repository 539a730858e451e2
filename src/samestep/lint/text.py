"""A file's bytes as text: encodings, byte order marks, line ends."""

from __future__ import annotations

import codecs
import io
import re
import tokenize

_LINE_END = re.compile(r"\r\n|\r|\n")


class UnreadableSource(Exception):
    """A file that cannot be read as the text it should be; `line` is where, from 1."""

    def __init__(self, reason: str, line: int = 1, column: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line
        self.column = column


def split_lines(text: str) -> list[str]:
    """The lines as Python's tokenizer counts them: a form feed or U+2028 ends none."""
    return _LINE_END.split(text)


def decode_python(data: bytes) -> str:
    """The text of a Python file, by its byte order mark or its coding comment, without the mark."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnreadableSource("it is UTF-16, which Python does not read; save it as UTF-8")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        raise UnreadableSource(str(error).split(" for ")[0]) from None
    return _decode(data, encoding)


def decode_shell(data: bytes) -> str:
    """The text of a shell script: UTF-8, or Latin-1 where it is not."""
    try:
        return _decode(data, "utf-8-sig")
    except UnreadableSource:
        return _decode(data, "latin-1")


def _decode(data: bytes, encoding: str) -> str:
    try:
        text = data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        start = getattr(error, "start", 0)
        line = data.count(b"\n", 0, start) + 1
        raise UnreadableSource(f"a byte there is not {encoding}", line) from None
    if "\0" in text:
        before = text[: text.index("\0")]
        raise UnreadableSource("it holds a null byte (is it a binary file?)", before.count("\n") + 1)
    return text
