"""The grammar of `--devices`: `all`, `1,3`, `0-3`, `cpu:4`.

Bad input is refused here, before anything is started, with the bad part, what there is and what was probably meant.
"""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from typing import Literal, NoReturn

from samestep.devices.inventory import Inventory, take_inventory, usable_cores
from samestep.errors import SamestepError

VARIABLE = "SAMESTEP_DEVICES"
GRAMMAR = "devices are written all, 1,3 or 0-3 (GPU numbers), or cpu:2"
FALLBACK_RANKS = 2


@dataclass(frozen=True)
class DeviceSelection:
    """The devices of a run, one rank each.

    `indices` are the numbers the user knows them by, `visible` the entries for CUDA_VISIBLE_DEVICES (none on CPU),
    `note` a line to tell the user when the choice was not theirs.
    """

    kind: Literal["cpu", "cuda"]
    indices: tuple[int, ...]
    visible: tuple[str, ...] = ()
    note: str | None = None

    @property
    def count(self) -> int:
        """How many ranks there will be."""
        return len(self.indices)

    def describe(self) -> str:
        """The selection in words: `2 CPU processes`, `GPUs 1, 3`."""
        if self.kind == "cpu":
            return "1 CPU process" if self.count == 1 else f"{self.count} CPU processes"
        return ("GPU " if self.count == 1 else "GPUs ") + ", ".join(map(str, self.indices))


def resolve(spec: str | None) -> DeviceSelection:
    """The devices that `spec` means; None: those of SAMESTEP_DEVICES, else every GPU, else two CPU processes.

    Raises `SamestepError` for a spec that cannot be read or cannot be had.
    """
    if spec is not None:
        return _Reader(spec, f"devices {spec!r}").read()
    from_environment = os.environ.get(VARIABLE)
    if from_environment:
        return _Reader(from_environment, f"{VARIABLE}={from_environment!r}").read()
    inventory = take_inventory()
    if inventory.gpus:
        return _gpu_selection(inventory, tuple(gpu.number for gpu in inventory.gpus))
    note = f"no GPU found ({inventory.reason}); using cpu:{FALLBACK_RANKS}"
    return DeviceSelection("cpu", tuple(range(FALLBACK_RANKS)), note=note)


def _gpu_selection(inventory: Inventory, numbers: tuple[int, ...]) -> DeviceSelection:
    tokens = {gpu.number: gpu.token for gpu in inventory.gpus}
    return DeviceSelection("cuda", numbers, tuple(tokens[number] for number in numbers))


class _Reader:
    """Reads one spec; `origin` says in messages where it was written."""

    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        self._origin = origin

    def read(self) -> DeviceSelection:
        self._check_characters()
        if self._text == "cpu" or self._text.startswith("cpu:"):
            return self._cpu()
        if self._text == "all":
            inventory = self._inventory()
            return _gpu_selection(inventory, tuple(gpu.number for gpu in inventory.gpus))
        numbers = self._numbers()
        return self._existing(numbers)

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

    def _cpu(self) -> DeviceSelection:
        if self._text == "cpu":
            return DeviceSelection("cpu", (0,))
        number = self._text[len("cpu:") :]
        if re.fullmatch(r"[0-9]{1,9}", number) is None:
            self._refuse(f"{number!r} is not a number of processes; write cpu:2 for two CPU processes")
        count, most = int(number), max(64, 4 * usable_cores())
        if count == 0:
            self._refuse("0 processes cannot run anything; write cpu:1 for one")
        if count > most:
            self._refuse(f"{count} processes are too many for {usable_cores()} cores; at most cpu:{most} here")
        return DeviceSelection("cpu", tuple(range(count)))

    def _numbers(self) -> list[int]:
        parts = self._text.split(",")
        numbers: list[int] = []
        for part in parts:
            if not part:
                kept = ",".join(filter(None, parts))
                self._refuse(f"a number is missing next to a comma; {f'write {kept}' if kept else GRAMMAR}")
            numbers += self._range(part)
        repeated = sorted({number for number in numbers if numbers.count(number) > 1})
        if repeated:
            self._refuse(f"GPU {repeated[0]} is named twice; one rank per GPU: write {_listed(numbers)}")
        return numbers

    def _range(self, part: str) -> list[int]:
        if re.fullmatch(r"[0-9]{1,6}", part):
            return [int(part)]
        ends = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", part)
        if ends is None:
            self._refuse(f"{part!r} is not a GPU number{_hint(part)}; {GRAMMAR}")
        first, last = int(ends[1]), int(ends[2])
        if first > last:
            self._refuse(f"the range {part!r} runs backwards; write {last}-{first}")
        if last - first > 1023:
            self._refuse(f"the range {part!r} is longer than any machine has GPUs")
        return list(range(first, last + 1))

    def _inventory(self) -> Inventory:
        inventory = take_inventory()
        if not inventory.gpus:
            self._refuse(f"{inventory.summary()}; cpu:{FALLBACK_RANKS} runs on two CPU processes instead")
        return inventory

    def _existing(self, numbers: list[int]) -> DeviceSelection:
        inventory = self._inventory()
        known = {gpu.number for gpu in inventory.gpus}
        missing = [str(number) for number in numbers if number not in known]
        if missing:
            what = f"GPU {missing[0]} is" if len(missing) == 1 else f"GPUs {', '.join(missing)} are"
            restriction = os.environ.get("CUDA_VISIBLE_DEVICES")
            seen = f", as CUDA_VISIBLE_DEVICES={restriction!r} numbers them" if restriction is not None else ""
            self._refuse(f"{what} not there; {inventory.summary()}{seen}")
        return _gpu_selection(inventory, tuple(numbers))


def _plain(text: str) -> str:
    """What was probably meant by a spec with blanks or with characters of another keyboard."""
    folded = unicodedata.normalize("NFKC", text).replace("\u3001", ",")  # the ideographic comma has no ASCII form
    for dash in "\u2010\u2011\u2012\u2013\u2014\u2212":
        folded = folded.replace(dash, "-")
    return re.sub(r",+", ",", re.sub(r"\s*([,:-])\s*", r"\1", folded.strip()).replace(" ", ","))


def _listed(numbers: list[int]) -> str:
    return ",".join(map(str, dict.fromkeys(numbers)))


def _hint(part: str) -> str:
    """A guess at what an unreadable part was meant to be."""
    lowered = part.lower()
    if re.fullmatch(r"cpu(:[0-9]+)?", lowered):
        return f" (write {lowered}, alone and in lower case)"
    if lowered == "all":
        return " (write all, alone and in lower case)"
    if lowered in ("cuda", "gpu", "gpus", "auto"):
        return " (write all for every GPU)"
    named = re.fullmatch(r"(?:cuda|gpu):?([0-9]+)", lowered)
    if named is not None:
        return f" (write {named[1]} for that GPU)"
    if re.fullmatch(r"-[0-9]+", part):
        return " (GPU numbers start at 0)"
    if re.fullmatch(r"free(:[0-9]+)?", lowered) or lowered.startswith(("gpu-", "mig-")):
        return " (free, UUIDs and MIG slices cannot be asked for yet)"
    return ""
