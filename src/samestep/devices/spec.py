"""From a device spec to the devices of a run: what was asked, matched with what is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from samestep.devices import accelerators, free, grammar, locks
from samestep.devices.gpus import gib
from samestep.devices.grammar import GRAMMAR
from samestep.devices.inventory import Inventory, VisibleGpu, take_inventory, usable_cores
from samestep.devices.selection import ChosenBy, DeviceSelection
from samestep.errors import SamestepError

__all__ = ["FALLBACK_RANKS", "GRAMMAR", "VARIABLE", "DeviceSelection", "Devices", "resolve", "resolve_for_script"]

VARIABLE = "SAMESTEP_DEVICES"
FALLBACK_RANKS = 2
_WAITS = "--wait waits for GPUs to become free; write --devices free or free:2"

Devices = str | Sequence[int | str]


def resolve(
    spec: Devices | None,
    *,
    wait: float | None = None,
    hold: bool = True,
    oversubscribe: bool = False,
) -> DeviceSelection:
    """The devices that `spec` means; None: those of SAMESTEP_DEVICES, else every GPU, else two CPU processes.

    Args:
        spec: as `--devices` takes it, or a list such as `[1, 3]`.
        wait: how many seconds to wait for GPUs to become `free`; None: not at all.
        hold: lock the GPUs until this process ends, or `locks.release` is called. What is `free` must be held to be
            free a second later, too.
        oversubscribe: let a GPU be named more than once, for tests: each time is a rank of its own.

    Raises:
        SamestepError: the spec cannot be read or cannot be had.
    """
    if spec is not None:
        text = _written(spec)
        return _Resolver(text, f"devices {text!r}", "user", wait, hold, oversubscribe).resolve()
    from_environment = os.environ.get(VARIABLE)
    if from_environment:
        origin = f"{VARIABLE}={from_environment!r}"
        return _Resolver(from_environment, origin, "environment", wait, hold, oversubscribe).resolve()
    if wait is not None:
        raise SamestepError(_WAITS)
    inventory = take_inventory()
    if inventory.gpus:
        return _Resolver("all", "all GPUs", "default", None, hold, False).select(_whole(inventory), inventory)
    notes = (f"no GPU found ({inventory.reason}); using cpu:{FALLBACK_RANKS}",)
    return DeviceSelection("cpu", tuple(range(FALLBACK_RANKS)), notes=notes)


def resolve_for_script(
    visible: str | None, places: Sequence[int] | None, who: str, hold: bool = True
) -> DeviceSelection | None:
    """The devices that a script has chosen; None if there is nothing to choose from, as there is no GPU.

    `visible` is what it has put into CUDA_VISIBLE_DEVICES (None: nothing), `places` the indices of its devices behind
    that (None: all). `who` says where it did so, `hold` as for `resolve`.
    """
    inventory = take_inventory(restriction=visible)
    if not inventory.gpus:
        if not inventory.everything:
            return None
        note = f"{who} hides every GPU; using cpu:{FALLBACK_RANKS}"
        return DeviceSelection("cpu", tuple(range(FALLBACK_RANKS)), chosen_by="script", notes=(note,))
    resolver = _Resolver("", who, "script", None, hold, False)
    seen = _whole(inventory)
    for place in places or ():
        if place >= len(seen):
            raise SamestepError(f"{who} chooses GPU {place}, which is not there; {inventory.summary()}")
    gpus = seen if places is None else [seen[place] for place in places]
    chosen = resolver.select(gpus, inventory)
    if visible is not None and not chosen.one_each:  # the user knows them by nvidia-smi's numbers, not by the script's
        numbers = tuple(gpu.number if gpu.gpu is None else gpu.gpu.index for gpu in gpus)
        chosen = replace(chosen, indices=numbers)
    if places is None:
        return replace(chosen, shown=visible)
    # The script goes on counting all that it sees, not only what it uses.
    everyone = tuple(gpu.token for gpu in seen)
    return replace(chosen, visible=everyone, places=tuple(places), shown=visible or os.environ.get(inventory.variable))


def _written(spec: Devices) -> str:
    if isinstance(spec, str):
        return spec
    if isinstance(spec, int):  # the type does not allow it, but people write it
        raise SamestepError(
            f"devices={spec}: is that GPU number {spec}, or {spec} devices? Write devices=[{spec}] for the GPU with "
            f"that number, devices='free:{spec}' or devices='cpu:{spec}' for as many"
        )
    if not spec:
        raise SamestepError(f"devices={spec!r} names no device; {GRAMMAR}")
    return ",".join(str(part) for part in spec)


def _whole(inventory: Inventory) -> list[VisibleGpu]:
    """What `all` means: every GPU that works; slices of divided GPUs only if there is nothing else."""
    working = [gpu for gpu in inventory.gpus if gpu.gpu is None or gpu.gpu.problem is None]
    whole = [gpu for gpu in working if gpu.slice is not None or gpu.gpu is None or not gpu.gpu.mig]
    return whole or [piece for gpu in working for piece in _slices(gpu)]


def _slices(gpu: VisibleGpu) -> list[VisibleGpu]:
    """The MIG slices of a divided GPU that this user may open."""
    if gpu.gpu is None:
        return []
    return [VisibleGpu(gpu.number, each.uuid, gpu.gpu, each) for each in gpu.gpu.slices if each.accessible]


class _Resolver:
    """Finds the devices of one spec; `origin` says in messages where it was written."""

    def __init__(
        self, text: str, origin: str, chosen_by: ChosenBy, wait: float | None, hold: bool, oversubscribe: bool
    ) -> None:
        self._text = text
        self._origin = origin
        self._chosen_by = chosen_by
        self._wait = wait
        self._hold = hold
        self._oversubscribe = oversubscribe

    def resolve(self) -> DeviceSelection:
        request = grammar.read(self._text, self._origin)
        if self._wait is not None and not isinstance(request, grammar.Free):
            self._refuse(_WAITS)
        if isinstance(request, grammar.Processes):
            return self._processes(request.count)
        if isinstance(request, grammar.Accelerators):
            return replace(accelerators.select(request, self._origin), chosen_by=self._chosen_by)
        if isinstance(request, grammar.Free):
            return self._free(request)
        inventory = self._inventory()
        if isinstance(request, grammar.Everything):
            return self.select(self._everything(inventory), inventory)
        return self.select([gpu for item in request.items for gpu in self._found(item, inventory)], inventory)

    def select(self, gpus: Sequence[VisibleGpu], inventory: Inventory) -> DeviceSelection:
        """One rank per device of `gpus`, after a look at what would go wrong."""
        self._check_usable(gpus)
        self._check_once(gpus)
        slices = [gpu for gpu in gpus if gpu.slice is not None]
        if slices and len(slices) < len(gpus):
            whole = next(gpu for gpu in gpus if gpu.slice is None)
            self._refuse(
                f"GPU {whole.number} and a MIG slice cannot be used in one run: a process that sees a slice sees no "
                "whole GPU"
            )
        tokens = tuple(dict.fromkeys(gpu.token for gpu in gpus))
        selection = DeviceSelection(
            "cuda",
            tuple(range(len(gpus))) if slices else tuple(gpu.number for gpu in gpus),
            tokens,
            places=tuple(tokens.index(gpu.token) for gpu in gpus) if len(tokens) < len(gpus) else (),
            names=tuple(map(_slice_name, gpus)) if slices else (),
            identities=tuple(gpu.identity for gpu in gpus),
            near=tuple(map(_near, gpus)),
            variable=inventory.variable,
            order=inventory.order,
            shown=self._shown(inventory, gpus),
            chosen_by=self._chosen_by,
            one_each=bool(slices),
            gloo=bool(slices) or len(tokens) < len(gpus),
            notes=(*inventory.said, *self._left_out(gpus, inventory), *_unequal(gpus)),
        )
        return self._held(selection) if self._hold else selection

    def _refuse(self, what: str) -> NoReturn:
        raise SamestepError(f"{self._origin}: {what}")

    def _shown(self, inventory: Inventory, gpus: Sequence[VisibleGpu]) -> str | None:
        """What the script is to read in CUDA_VISIBLE_DEVICES: what it would have read had the user set it."""
        users = os.environ.get(inventory.variable)
        if [gpu.number for gpu in gpus] == [gpu.number for gpu in inventory.gpus]:
            return users
        return ",".join(dict.fromkeys(gpu.written or gpu.token for gpu in gpus))

    def _left_out(self, gpus: Sequence[VisibleGpu], inventory: Inventory) -> tuple[str, ...]:
        """What `all` does not take, because it cannot be used or not beside the others."""
        if len(gpus) < 1 or self._text != "all":
            return ()
        broken = [each for each in inventory.gpus if each.gpu is not None and each.gpu.problem is not None]
        said = [f"GPU {each.number} is left out: {each.gpu.problem}" for each in broken if each.gpu is not None]
        if gpus[0].slice is None:
            divided = [each for each in inventory.gpus if each.gpu is not None and each.gpu.mig and each.slice is None]
            by_name = "it is divided into MIG slices, which can be had by name"
            none = "it is in MIG mode without a slice"
            said += [f"GPU {each.number} is left out: {by_name if _slices(each) else none}" for each in divided]
        return tuple(said)

    def _held(self, selection: DeviceSelection) -> DeviceSelection:
        others = locks.hold(selection.identities)
        pairs = zip(_called(selection), others, strict=True)
        said = tuple(f"{name} is also used by {who}" for name, who in pairs if who)
        return replace(selection, notes=(*selection.notes, *dict.fromkeys(said)))

    def _processes(self, count: int) -> DeviceSelection:
        most = max(64, 4 * usable_cores())
        if count > most:
            self._refuse(f"{count} processes are too many for {usable_cores()} cores; at most cpu:{most} here")
        return DeviceSelection("cpu", tuple(range(count)), chosen_by=self._chosen_by)

    def _inventory(self, usage: bool = False) -> Inventory:
        inventory = take_inventory(usage)
        if not inventory.gpus:
            self._refuse(f"{inventory.summary()}; cpu:{FALLBACK_RANKS} runs on two CPU processes instead")
        return inventory

    def _everything(self, inventory: Inventory) -> list[VisibleGpu]:
        found = _whole(inventory)
        if not found:
            troubles = [gpu.gpu.problem for gpu in inventory.gpus if gpu.gpu is not None and gpu.gpu.problem]
            self._refuse(f"no GPU can be used ({'; '.join(troubles) or 'they are in MIG mode without a slice'})")
        return found

    def _free(self, request: grammar.Free) -> DeviceSelection:
        def candidates() -> list[VisibleGpu]:
            return self._everything(self._inventory(usage=True))

        inventory = self._inventory()
        found = free.choose(request, candidates, self._origin, wait=self._wait, hold=self._hold)
        return self.select(found, inventory)

    def _found(self, item: grammar.Range | grammar.Named, inventory: Inventory) -> list[VisibleGpu]:
        if isinstance(item, grammar.Range):
            return self._in_range(item, inventory)
        find: dict[str, Callable[[str, Inventory], list[VisibleGpu]]] = {
            "gpu": self._by_uuid,
            "pci": self._by_pci,
            "mig": self._by_slice_uuid,
            "slice": self._by_slice_number,
        }
        return find[item.kind](item.text, inventory)

    def _in_range(self, item: grammar.Range, inventory: Inventory) -> list[VisibleGpu]:
        by_number = {gpu.number: gpu for gpu in inventory.gpus}
        last = max(by_number) if item.last is None else item.last
        wanted = range(item.first, max(last, item.first) + 1)
        missing = [number for number in wanted if number not in by_number]
        if missing:
            self._refuse_missing(missing, inventory)
        return [by_number[number] for number in wanted]

    def _refuse_missing(self, missing: list[int], inventory: Inventory) -> NoReturn:
        what = f"GPU {missing[0]} is" if len(missing) == 1 else f"GPUs {', '.join(map(str, missing))} are"
        seen = ""
        if inventory.hidden is not None:
            seen = f", as {inventory.hidden} numbers them"
            there = {gpu.index for gpu in inventory.everything}
            if there.issuperset(missing):
                seen += (
                    f" (the machine has {'one' if len(missing) == 1 else 'some'} with that number, which "
                    f"{inventory.hidden} hides: unset it to use nvidia-smi's numbers)"
                )
        self._refuse(f"{what} not there; {inventory.summary()}{seen}")

    def _by_uuid(self, text: str, inventory: Inventory) -> list[VisibleGpu]:
        matches = [gpu for gpu in inventory.gpus if gpu.gpu is not None and gpu.gpu.uuid.startswith(text)]
        return self._one(text, matches, [gpu.uuid for gpu in inventory.everything], inventory)

    def _by_pci(self, text: str, inventory: Inventory) -> list[VisibleGpu]:
        matches = [gpu for gpu in inventory.gpus if gpu.gpu is not None and gpu.gpu.pci == text]
        return self._one(text, matches, [gpu.pci for gpu in inventory.everything], inventory)

    def _by_slice_uuid(self, text: str, inventory: Inventory) -> list[VisibleGpu]:
        pieces = [(gpu, piece) for gpu in inventory.gpus if gpu.gpu is not None for piece in gpu.gpu.slices]
        matches = []
        for gpu, piece in pieces:
            old = f"MIG-{gpu.gpu.uuid}/{piece.instances[0]}/{piece.instances[1]}" if gpu.gpu and piece.instances else ""
            if (piece.uuid.startswith(text) or text == old) and gpu.slice in (None, piece):
                matches.append(VisibleGpu(gpu.number, piece.uuid, gpu.gpu, piece))
        everywhere = [piece.uuid for gpu in inventory.everything for piece in gpu.slices]
        return self._one(text, matches, everywhere, inventory)

    def _by_slice_number(self, text: str, inventory: Inventory) -> list[VisibleGpu]:
        number, index = map(int, text.split(":"))
        for gpu in inventory.gpus:
            if gpu.number == number and gpu.gpu is not None:
                for piece in gpu.gpu.slices:
                    if piece.index == index:
                        return [VisibleGpu(number, piece.uuid, gpu.gpu, piece)]
                there = ", ".join(f"{number}:{piece.index} ({piece.name})" for piece in gpu.gpu.slices) or "none"
                self._refuse(f"GPU {number} has no MIG slice {index}; it has {there}")
        self._refuse_missing([number], inventory)

    def _one(
        self, text: str, matches: list[VisibleGpu], everywhere: list[str], inventory: Inventory
    ) -> list[VisibleGpu]:
        if len(matches) == 1:
            return matches
        if matches:
            found = ", ".join(gpu.identity for gpu in matches)
            self._refuse(f"{text} is the beginning of {len(matches)} UUIDs ({found}); write more of it")
        if inventory.hidden is not None and any(each.startswith(text) for each in everywhere):
            self._refuse(f"{text} is there, but {inventory.hidden} hides it; unset it")
        names = ", ".join(everywhere)
        self._refuse(f"there is no device {text}; " + (f"there are {names}" if names else "there are no such devices"))

    def _check_usable(self, gpus: Sequence[VisibleGpu]) -> None:
        for gpu in gpus:
            if gpu.gpu is None:
                continue
            if gpu.gpu.problem is not None:
                self._refuse(f"GPU {gpu.number} is there but cannot be used: {gpu.gpu.problem}")
            if gpu.slice is not None and not gpu.slice.accessible:
                self._refuse(f"the MIG slice {gpu.slice.uuid} may not be opened by this user: it is another's")
            if gpu.gpu.mig and gpu.slice is None:
                pieces = ", ".join(f"{_slice_name(each)} ({each.name})" for each in _slices(gpu))
                self._refuse(
                    f"GPU {gpu.number} is divided into MIG slices; "
                    + (f"write which: {pieces}" if pieces else "it has none that this user may open")
                )

    def _check_once(self, gpus: Sequence[VisibleGpu]) -> None:
        if self._oversubscribe:
            return
        seen: set[str] = set()
        for gpu in gpus:
            if gpu.identity in seen:
                written = ",".join(dict.fromkeys(_slice_name(each) for each in gpus))
                self._refuse(f"{_kind(gpu)} {_slice_name(gpu)} is named twice; one rank per GPU: write {written}")
            seen.add(gpu.identity)


def _near(gpu: VisibleGpu) -> tuple[int, ...] | None:
    return tuple(sorted(gpu.gpu.cpus)) if gpu.gpu is not None and gpu.gpu.cpus is not None else None


def _kind(gpu: VisibleGpu) -> str:
    return "GPU" if gpu.slice is None else "MIG slice"


def _slice_name(gpu: VisibleGpu) -> str:
    return str(gpu.number) if gpu.slice is None else f"{gpu.number}:{gpu.slice.index}"


def _called(selection: DeviceSelection) -> list[str]:
    what = "MIG slice" if selection.one_each else "GPU"
    return [f"{what} {name}" for name in selection.names or map(str, selection.indices)]


def _unequal(gpus: Sequence[VisibleGpu]) -> tuple[str, ...]:
    """A word about GPUs of different models in one run."""
    described = [(gpu, (gpu.name, gpu.slice or gpu.gpu)) for gpu in gpus]
    if len({(name, facts.memory_total >> 30 if facts else 0) for _, (name, facts) in described}) < 2:
        return ()
    named = ", ".join(
        f"{_slice_name(gpu)} is {name}" + (f" with {gib(facts.memory_total)}" if facts else "")
        for gpu, (name, facts) in described
    )
    return (f"these GPUs are not equal, and each gets the same share, so all wait for the slowest: {named}",)
