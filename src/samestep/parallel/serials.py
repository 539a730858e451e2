"""Numbers of objects that are given once only.

`id` is given again when an object is gone, at once or never, as the memory of each process has it: ranks that compared
by it would decide in different places, and wait for each other without end.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

_COUNT = itertools.count()
#: By `id`, for as long as the object lives: what gives the object, and its number.
_GIVEN: dict[int, tuple[Callable[[], Any], int]] = {}


def serial(thing: Any) -> int:
    """The number of this very object in this process.

    Example:
        >>> class Part: ...
        >>> part = Part()
        >>> serial(part) == serial(part)
        True
        >>> first = serial(part)
        >>> del part
        >>> serial(Part()) == first
        False
    """
    key = id(thing)
    entry = _GIVEN.get(key)
    if entry is not None and entry[0]() is thing:
        return entry[1]
    number = next(_COUNT)
    try:
        _GIVEN[key] = (weakref.ref(thing, lambda _: _GIVEN.pop(key, None)), number)
    except TypeError:  # it cannot be watched, so it is kept, and with it its number
        _GIVEN[key] = (lambda: thing, number)
    return number
