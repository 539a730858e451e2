"""Replacing functions of other modules, once, everywhere, and undoably."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

_OWN = __name__.rpartition(".")[0]
# The C modules stay as they are: the import system reads source files through them, and is not slowed.
_UNTOUCHED = ("posix", "nt", "_io", "builtins", "importlib", "_frozen_importlib", "_frozen_importlib_external")
_SUPPORTS = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")
# Classes that keep os functions as attributes (pathlib's accessor in 3.10, glob's globber since 3.13).
_KEEPERS = ("pathlib", "pathlib._local", "pathlib._abc", "glob")

_MISSING = object()


class Patches:
    """A set of replacements that can be taken back in one go."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._replaced: dict[int, tuple[Any, Any]] = {}

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of `owner`, if there is one of that name."""
        before = vars(owner).get(name, _MISSING)
        if before is _MISSING:
            return
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Like `set`, and `sweep` will replace the copies that other modules hold of the same function."""
        before = getattr(owner, name, None)
        if before is None:
            return
        self.set(owner, name, value)
        self._replaced[id(before)] = (before, value)
        if owner is os:
            self._announce(before, value)

    def on_undo(self, action: Callable[[], object]) -> None:
        """Run `action` when the patches are taken back."""
        self._undo.append(action)

    def _announce(self, before: Any, value: Any) -> None:
        # shutil asks `os.chmod in os.supports_follow_symlinks`; the answer must stay.
        for name in _SUPPORTS:
            known: set[Any] = getattr(os, name, set())
            if before in known:
                known.add(value)
                self._undo.append(lambda known=known: known.discard(value))  # type: ignore[misc]

    def sweep(self) -> None:
        """Reach `from os import listdir` and the like in modules that are loaded already."""
        wanted = self._replaced.keys()
        for name, module in list(sys.modules.items()):
            if not isinstance(module, ModuleType) or name.startswith((_OWN, "importlib.")) or name in _UNTOUCHED:
                continue
            names = vars(module)
            if not wanted.isdisjoint(map(id, list(names.values()))):
                self._sweep_one(module, list(names.items()))
            if name in _KEEPERS:
                for value in list(names.values()):
                    if isinstance(value, type) and value.__module__ == name:
                        self._sweep_class(value)

    def _sweep_one(self, module: ModuleType, items: Iterable[tuple[str, Any]]) -> None:
        for name, value in items:
            pair = self._replaced.get(id(value))
            if pair is not None and pair[0] is value:
                self.set(module, name, pair[1])

    def _sweep_class(self, owner: type) -> None:
        for name, value in list(vars(owner).items()):
            function = value.__func__ if isinstance(value, staticmethod) else value
            pair = self._replaced.get(id(function))
            if pair is None or pair[0] is not function:
                continue
            # A C function is no descriptor, a Python one is: unwrapped, it would be given `self`.
            setattr(owner, name, staticmethod(pair[1]))
            self._undo.append(lambda name=name, value=value: setattr(owner, name, value))  # type: ignore[misc]

    def undo(self) -> None:
        """Take everything back, the last first."""
        while self._undo:
            self._undo.pop()()
        self._replaced.clear()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after the script imports it; loads nothing by itself."""

    def __init__(self, wanted: dict[str, Callable[[ModuleType], None]]) -> None:
        self._wanted = wanted

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._wanted:
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                break
        if spec is None or spec.loader is None:
            return spec
        action = self._wanted.pop(fullname)
        _run_after(spec.loader, action)
        return spec


def _run_after(loader: Any, action: Callable[[ModuleType], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        action(module)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader written in C or with slots: the module is left as it is
        return


def after_import(patches: Patches, actions: dict[str, Callable[[ModuleType], None]]) -> None:
    """Run each action on its module: now if it is loaded, else when the script imports it."""
    later: dict[str, Callable[[ModuleType], None]] = {}
    for name, action in actions.items():
        module = sys.modules.get(name)
        if module is None:
            later[name] = action
        else:
            action(module)
    finder = _AfterImport(later)
    sys.meta_path.insert(0, finder)
    patches.on_undo(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
