"""What CUDA_VISIBLE_DEVICES means: CUDA's own rules, with a word about those that CUDA keeps to itself.

The list is read by its first entry: numbers, or UUIDs of GPUs, or UUIDs of MIG slices. The first entry that CUDA does
not know cuts the list: it and all behind it are ignored. A repeated entry hides every GPU.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from samestep.devices.gpus import Gpu, MigSlice
from samestep.errors import SamestepError

VARIABLE = "CUDA_VISIBLE_DEVICES"
_NUMBER = re.compile(r"[ \t]*\+?([0-9]{1,9})")  # as C's strtoul reads it: what follows the digits does not count


@dataclass(frozen=True)
class Entry:
    """One visible device: a GPU, or a MIG slice of it. Without a GPU: a slice that the driver's list does not name."""

    token: str
    gpu: Gpu | None
    slice: MigSlice | None = None

    @property
    def identity(self) -> str:
        """What tells the device from all others."""
        if self.slice is not None:
            return self.slice.uuid
        return self.gpu.uuid or f"GPU {self.gpu.index}" if self.gpu is not None else self.token


@dataclass(frozen=True)
class Visibility:
    """The devices that CUDA shows, in its order; `said` tells what it leaves out without a word."""

    entries: tuple[Entry, ...]
    said: tuple[str, ...] = ()


def read_visible(value: str, gpus: Sequence[Gpu], name: str = VARIABLE) -> Visibility:
    """The devices that CUDA_VISIBLE_DEVICES=`value` shows of `gpus`, which are in CUDA's order.

    Raises `SamestepError` for a value that can only be a mistake: characters of another keyboard, a repeated entry.
    """
    _check_characters(value, name)
    if not value.strip():
        return Visibility((), ("it is empty; a blank after '='?",))
    reader = _Reader(value, gpus, name)
    if value.startswith("GPU-"):
        return reader.read(reader.gpu_by_uuid, "a GPU's UUID")
    if value.startswith("MIG-"):
        return reader.read_slices()
    return _one_slice_at_most(reader.read(reader.gpu_by_number, "a GPU's number"), name)


class _Reader:
    def __init__(self, value: str, gpus: Sequence[Gpu], name: str) -> None:
        self._value = value
        self._gpus = gpus
        self._name = name
        self._said: list[str] = []

    def read(self, find: Callable[[str], Entry | str], kind: str) -> Visibility:
        """Entries up to the first that `find` does not know (it then says why)."""
        parts = self._value.split(",")
        self._check_repeated(parts)
        entries: list[Entry] = []
        for position, part in enumerate(parts):
            found = find(part)
            if isinstance(found, str):
                self._say_cut(part, found, parts[position + 1 :], kind)
                break
            if any(found.identity == other.identity for other in entries):
                self._refuse_repeated(part, parts)
            entries.append(found)
        return Visibility(tuple(entries), tuple(self._said))

    def _check_repeated(self, parts: list[str]) -> None:
        """Repetitions are looked for before it is known what is there, up to the first entry of another kind."""
        prefix = next((each for each in ("GPU-", "MIG-") if self._value.startswith(each)), None)
        seen: set[str | int] = set()
        for part in parts:
            number = _NUMBER.match(part)
            key: str | int
            if prefix is not None and part.startswith(prefix):
                key = part
            elif prefix is None and number is not None:
                key = int(number[1])
            else:
                return
            if key in seen:
                self._refuse_repeated(part, parts)
            seen.add(key)

    def _refuse_repeated(self, part: str, parts: list[str]) -> NoReturn:
        raise SamestepError(
            f"{self._name}={self._value!r} names {part.strip()} twice; CUDA then shows no GPU at all; "
            f"write {','.join(dict.fromkeys(each.strip() for each in parts))}"
        )

    def read_slices(self) -> Visibility:
        found = self.read(self._slice_by_uuid, "a MIG slice's UUID")
        if len(found.entries) < 2:
            return found
        said = f"one process sees only one of the MIG slices in {self._name}; each rank gets its own"
        return Visibility(found.entries, (*found.said, said))

    def gpu_by_uuid(self, part: str) -> Entry | str:
        if not part.startswith("GPU-"):
            return "begins otherwise than the first entry"
        matches = [gpu for gpu in self._gpus if gpu.uuid.startswith(part)]
        if len(matches) == 1:
            return Entry(part, matches[0])
        return f"is the beginning of {len(matches)} UUIDs" if matches else "is the UUID of no GPU here"

    def gpu_by_number(self, part: str) -> Entry | str:
        digits = _NUMBER.match(part)
        if digits is None:
            return self._no_number(part.strip())
        if digits.end() < len(part.rstrip()):
            self._said.append(f"CUDA reads the entry {part.strip()!r} of {self._name} as {digits[1]}")
        number = int(digits[1])
        if number >= len(self._gpus):
            count = len(self._gpus)
            return f"is not there: the machine has {count} GPU{'s' if count > 1 else ''}, numbered from 0"
        return Entry(str(number), self._gpus[number])

    def _slice_by_uuid(self, part: str) -> Entry | str:
        if not part.startswith("MIG-"):
            return "begins otherwise than the first entry"
        matches = [(gpu, piece) for gpu in self._gpus for piece in gpu.slices if part in _slice_names(gpu, piece)] or [
            (gpu, piece) for gpu in self._gpus for piece in gpu.slices if piece.uuid.startswith(part)
        ]
        if len(matches) > 1:
            return f"is the beginning of {len(matches)} UUIDs"
        if not matches:
            return "is the UUID of no MIG slice here" if any(gpu.slices for gpu in self._gpus) else Entry(part, None)
        gpu, piece = matches[0]
        return Entry(part, gpu, piece) if piece.accessible else "is a MIG slice that this user may not open"

    @staticmethod
    def _no_number(part: str) -> str:
        if part.startswith("-"):
            return "ends the list"
        if part in ("NoDevFiles", "void", "none"):
            return "is what a scheduler writes for no GPU"
        if part.startswith(("GPU-", "MIG-")):
            return "is a UUID in a list that begins with a number"
        named = re.fullmatch(r"(?:cuda|gpu):?([0-9]+)", part.lower())
        return f"is not a number (write {named[1]})" if named else "is not a number"

    def _say_cut(self, part: str, why: str, behind: list[str], kind: str) -> None:
        ignored = f"; CUDA ignores it and all behind it ({','.join(behind)})" if behind else "; CUDA ignores it"
        self._said.append(f"in {self._name}={self._value!r} the entry {part.strip()!r} {why}{ignored}")


def _one_slice_at_most(found: Visibility, name: str) -> Visibility:
    """A number may name a GPU that is divided: CUDA then shows its first slice, and that alone."""
    entries: list[Entry] = []
    said = list(found.said)
    for entry in found.entries:
        gpu = entry.gpu
        if gpu is None or not gpu.mig:
            entries.append(entry)
            continue
        usable = [piece for piece in gpu.slices if piece.accessible]
        if usable:
            first = usable[0]
            said.append(
                f"GPU {gpu.index} is divided into MIG slices: for {name}={entry.token} CUDA shows the first of them, "
                f"{first.uuid}" + (", and no other GPU beside it" if len(found.entries) > 1 else "")
            )
            return Visibility((Entry(first.uuid, gpu, first),), tuple(said))
        said.append(f"GPU {gpu.index} is in MIG mode and has no slice that can be used; CUDA leaves it out")
    return Visibility(tuple(entries), tuple(said))


def _slice_names(gpu: Gpu, piece: MigSlice) -> tuple[str, ...]:
    """The full names of a slice: its UUID, and the older form MIG-GPU-…/gpu instance/compute instance."""
    old = () if piece.instances is None else (f"MIG-{gpu.uuid}/{piece.instances[0]}/{piece.instances[1]}",)
    return (piece.uuid, *old)


def _check_characters(value: str, name: str) -> None:
    for char in value:
        if not char.isascii():
            plain = plain_characters(value)
            what = unicodedata.name(char, "a character that cannot be typed in a device list").lower()
            meant = f"; write {plain}" if plain.isascii() else ""
            raise SamestepError(f"{name}={value!r}: {char!r} is {what} (U+{ord(char):04X}); CUDA stops there{meant}")


def plain_characters(text: str) -> str:
    """`text` with the characters of other keyboards (full-width digits and commas, long dashes) as ASCII has them."""
    folded = unicodedata.normalize("NFKC", text).replace("\u3001", ",")  # the ideographic comma has no ASCII form
    for dash in "\u2010\u2011\u2012\u2013\u2014\u2212":
        folded = folded.replace(dash, "-")
    return folded
