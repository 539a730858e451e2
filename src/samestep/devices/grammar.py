"""The grammar of `--devices`: reading what is written, before looking at what is there.

Bad input is refused here with the bad part and what was probably meant.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal, NoReturn

from samestep.devices.gpus import PCI_ADDRESS, plain_pci
from samestep.devices.visibility import plain_characters
from samestep.errors import SamestepError

GRAMMAR = "devices are written all, 1,3 or 0-3 (GPU numbers), free:2, or cpu:2"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True)
class Processes:
    """`cpu:4`: that many CPU processes."""

    count: int


@dataclass(frozen=True)
class Accelerators:
    """`xpu`, `mps`, `xla:4`: devices that are not CUDA's; all that are there without a count."""

    kind: Literal["xpu", "mps", "xla"]
    count: int | None = None


@dataclass(frozen=True)
class Everything:
    """`all`."""


@dataclass(frozen=True)
class Free:
    """`free:2,memory=20GiB`: GPUs that nobody uses; all of them without a count.

    `memory` in bytes is how much must be unused; `utilisation` in per cent is how busy it may be.
    """

    count: int | None = None
    memory: int | None = None
    utilisation: int | None = None


@dataclass(frozen=True)
class Range:
    """`1`, `0-3`, `2-`; `last` is None where the range is open."""

    text: str
    first: int
    last: int | None


@dataclass(frozen=True)
class Named:
    """A device called by its UUID, the beginning of it, its PCI address, or as a slice of a GPU (`0:1`)."""

    text: str
    kind: Literal["gpu", "mig", "pci", "slice"]


@dataclass(frozen=True)
class Listed:
    """GPUs one by one, separated by commas."""

    items: tuple[Range | Named, ...]


Request = Processes | Accelerators | Everything | Free | Listed


def read(text: str, origin: str) -> Request:
    """What `text` asks for; `origin` says in messages where it was written.

    Raises `SamestepError` for what cannot be read.

    Example:
        >>> read("free:2,memory=20GiB", "devices")
        Free(count=2, memory=21474836480, utilisation=None)
    """
    return _Reader(text, origin).read()


class _Reader:
    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        self._origin = origin

    def read(self) -> Request:
        self._check_characters()
        kind, colon, rest = self._text.partition(":")
        if kind == "cpu":
            return Processes(self._count(rest, "processes", "cpu") if colon else 1)
        if kind in ("xpu", "mps", "xla"):
            return self._accelerators(kind, rest if colon else None)
        if self._text == "all":
            return Everything()
        if re.fullmatch(r"free([:,].*)?", self._text):
            return self._free()
        return Listed(tuple(map(self._item, self._parts())))

    def _refuse(self, what: str) -> NoReturn:
        raise SamestepError(f"{self._origin}: {what}")

    def _check_characters(self) -> None:
        if not self._text.strip():
            self._refuse(f"it is empty (a blank after '='?); {GRAMMAR}")
        plain = _plain(self._text)
        for char in self._text:
            if not char.isascii():
                name = unicodedata.name(char, "a character that cannot be typed in a device list").lower()
                meant = f"write {plain}" if plain.isascii() else GRAMMAR
                self._refuse(f"{char!r} is {name} (U+{ord(char):04X}); {meant}")
            if char.isspace():
                self._refuse(f"there is a blank in it; write {plain}")

    def _count(self, number: str, what: str, kind: str) -> int:
        if re.fullmatch(r"[0-9]{1,9}", number) is None:
            two = "two CPU processes" if kind == "cpu" else f"two {what}"
            self._refuse(f"{number!r} is not a number of {what}; write {kind}:2 for {two}")
        if int(number) == 0:
            self._refuse(f"0 {what} cannot run anything; write {kind}:1 for one")
        return int(number)

    def _accelerators(self, kind: str, rest: str | None) -> Accelerators:
        count = None if rest is None else self._count(rest, "devices", kind)
        if kind == "mps":
            if count not in (None, 1):
                self._refuse("a Mac has one GPU; write mps")
            return Accelerators("mps", 1)
        return Accelerators("xla" if kind == "xla" else "xpu", count)

    def _free(self) -> Free:
        first, *conditions = self._text.split(",")
        count = self._count(first[len("free:") :], "GPUs", "free") if first != "free" else None
        known: dict[str, int] = {}
        for condition in conditions:
            name, equals, value = condition.partition("=")
            name = {"utilization": "utilisation"}.get(name, name)
            if name not in ("memory", "utilisation") or not equals:
                self._refuse(f"{condition!r} is no condition of free; write memory=20GiB or utilisation=10%")
            if name in known:
                self._refuse(f"{name}= is given twice")
            known[name] = self._size(value) if name == "memory" else self._per_cent(value)
        return Free(count, known.get("memory"), known.get("utilisation"))

    def _size(self, text: str) -> int:
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([kmgt]i?)?b?", text.lower())
        if found is None or (found[2] is None):
            self._refuse(f"memory={text}: {text!r} is not an amount of memory; write it with its unit: memory=20GiB")
        return int(float(found[1]) * _UNITS[found[2]])

    def _per_cent(self, text: str) -> int:
        found = re.fullmatch(r"([0-9]{1,3})%?", text)
        if found is None or int(found[1]) > 100:
            self._refuse(f"utilisation={text}: write a number of per cent from 0 to 100: utilisation=10%")
        return int(found[1])

    def _parts(self) -> list[str]:
        parts = self._text.split(",")
        for part in parts:
            if not part:
                kept = ",".join(filter(None, parts))
                self._refuse(
                    f"a number is missing next to a comma (no blank may stand there); "
                    f"{f'write {kept}' if kept else GRAMMAR}"
                )
        return parts

    def _item(self, part: str) -> Range | Named:
        if re.fullmatch(r"[0-9]{1,6}", part):
            return Range(part, int(part), int(part))
        ends = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})?", part)
        if ends is not None:
            return self._range(part, int(ends[1]), None if ends[2] is None else int(ends[2]))
        if PCI_ADDRESS.fullmatch(part):
            return Named(plain_pci(part), "pci")
        if re.fullmatch(r"[0-9]{1,4}:[0-9]{1,2}", part):
            return Named(part, "slice")
        if re.fullmatch(r"GPU-[0-9a-fA-F-]*", part):
            return Named(part, "gpu")
        if re.fullmatch(r"MIG-[0-9a-zA-Z/-]*", part):
            return Named(part, "mig")
        self._refuse(f"{part!r} is not a GPU number{_hint(part)}; {GRAMMAR}")

    def _range(self, part: str, first: int, last: int | None) -> Range:
        if last is not None and first > last:
            self._refuse(f"the range {part!r} runs backwards; write {last}-{first}")
        if last is not None and last - first > 1023:
            self._refuse(f"the range {part!r} is longer than any machine has GPUs")
        return Range(part, first, last)


def _plain(text: str) -> str:
    """What was probably meant by a spec with blanks or with characters of another keyboard."""
    folded = plain_characters(text)
    return re.sub(r",+", ",", re.sub(r"\s*([,:-])\s*", r"\1", folded.strip()).replace(" ", ","))


def _hint(part: str) -> str:
    """A guess at what an unreadable part was meant to be."""
    lowered = part.lower()
    if re.fullmatch(r"(cpu|xpu|xla)(:[0-9]+)?", lowered):
        return f" (write {lowered}, alone and in lower case)"
    if lowered in ("all", "mps"):
        return f" (write {lowered}, alone and in lower case)"
    if re.fullmatch(r"free(:[0-9]+)?", lowered):
        return f" (write {lowered} in lower case, and no number beside it)"
    if lowered in ("cuda", "gpu", "gpus", "auto"):
        return " (write all for every GPU)"
    if lowered.startswith(("gpu-", "mig-")):
        return f" (UUIDs begin with {part[:4].upper()} in capitals and have the digits 0-9 and a-f)"
    named = re.fullmatch(r"(?:cuda|gpu):?([0-9]+)", lowered)
    if named is not None:
        return f" (write {named[1]} for that GPU)"
    if re.fullmatch(r"-[0-9]+", part):
        return " (GPU numbers start at 0)"
    if re.fullmatch(r"[0-9]+([;.|+][0-9]+)+", part):
        return f" (write {re.sub(r'[;.|+]', ',', part)})"
    if part.endswith(".py"):
        return " (is that the script? --devices needs a value before it)"
    return ""
