"""Lists of devices as text: characters that only look right, variables' names, duplicates."""

from __future__ import annotations

import re

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
VARIABLES = (*VISIBLE, "CUDA_DEVICE_ORDER", "GPU_DEVICE_ORDINAL")

#: What is typed with an East Asian keyboard, or pasted from a document, and what it stands for.
_LOOK_ALIKES = {
    "，": ",",
    "、": ",",
    "﹐": ",",
    "‚": ",",
    "٫": ",",
    "：": ":",
    "﹕": ":",
    "－": "-",
    "–": "-",
    "—": "-",
    "−": "-",
    "\u2010": "-",
    "\u2011": "-",
    "“": "",
    "”": "",
    "„": "",
    "‘": "",
    "’": "",
    "\u3000": "",
    "\u00a0": "",
    "\u200b": "",
    "\ufeff": "",
    **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
}


def look_alikes(text: str) -> list[str]:
    """The characters of a device list that look like ASCII and are not, each once."""
    return [mark for mark in dict.fromkeys(text) if mark in _LOOK_ALIKES]


def with_ascii(text: str) -> str:
    """The text with the ASCII characters that were meant."""
    return "".join(_LOOK_ALIKES.get(mark, mark) for mark in text)


def indices(text: str) -> list[int] | None:
    """The numbers of a list such as `2,3`; None if anything else is in it."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]+", part, re.ASCII) for part in parts):
        return None
    return [int(part) for part in parts]


def has_duplicates(text: str) -> bool:
    """Whether an entry is there twice, before the first negative one, which ends the list."""
    parts = [part.strip() for part in text.split(",")]
    ends = [index for index, part in enumerate(parts) if part.startswith("-")]
    parts = parts[: ends[0]] if ends else parts
    return "" not in parts and len(set(parts)) < len(parts)


def meant_variable(name: str) -> str | None:
    """The variable of which `name` is a misspelling; None if it is one of them or something else."""
    if name in VARIABLES or len(name) < 12 or not name.upper().startswith(("CU", "HIP", "ROCR")):
        return None
    if any(name.startswith(known + "_") for known in VARIABLES):
        return None
    for known in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        if name.upper()[:2] == known[:2] and _distance(name, known) <= 3:
            return known
    return None


def _distance(one: str, other: str) -> int:
    """How many characters must be changed, put in or taken out to make one word of the other."""
    if one.upper() == other:
        return 1  # only the case is wrong
    row = list(range(len(other) + 1))
    for index, mark in enumerate(one, 1):
        before, row[0] = row[0], index
        for column, wanted in enumerate(other, 1):
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, before + (mark != wanted))
    return row[-1]
