"""`samestep devices`: what is there, what a run may use, and what a given spec would take."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from samestep.devices import locks
from samestep.devices.gpus import Gpu, gib
from samestep.devices.inventory import Inventory, take_inventory, usable_cores
from samestep.devices.machine import Machine, describe_machine
from samestep.devices.missing import findings
from samestep.devices.nvml import Link, driver_links
from samestep.devices.selection import DeviceSelection
from samestep.devices.spec import FALLBACK_RANKS, resolve

_WIDTH_OF_A_FILE = 200


@dataclass(frozen=True)
class _Row:
    """One GPU with all that is shown of it.

    `number` is None for a GPU that is hidden from runs. `ranks` are those of the GPU itself and of its slices, by UUID.
    """

    gpu: Gpu
    number: int | None
    ranks: dict[str, list[int]]
    held_by: str | None


def show_devices(spec: str | None, as_json: bool, topology: bool) -> None:
    """Print the devices; with `spec`, which of them it would take (an error, as of a run, if it cannot)."""
    selection = resolve(spec, hold=False) if spec is not None else None
    inventory = take_inventory(usage=True)
    rows = _rows(inventory, selection)
    links = driver_links(tuple(row.gpu for row in rows)) if topology else None
    if as_json:
        print(json.dumps(_as_json(inventory, rows, selection, links), indent=2))
    else:
        _Printer().everything(inventory, rows, selection, links)


def _rows(inventory: Inventory, selection: DeviceSelection | None) -> list[_Row]:
    numbers = {each.gpu.index: each.number for each in inventory.gpus if each.gpu is not None}
    chosen = selection.identities if selection is not None else ()
    rows = []
    for gpu in inventory.everything:
        names = [gpu.uuid, *(piece.uuid for piece in gpu.slices)]
        ranks = {name: [rank for rank, identity in enumerate(chosen) if identity == name] for name in names if name}
        rows.append(_Row(gpu, numbers.get(gpu.index), ranks, locks.holder(gpu.uuid) if gpu.uuid else None))
    return rows


def _default(inventory: Inventory) -> str:
    return "all" if inventory.gpus else f"cpu:{FALLBACK_RANKS}"


def _as_json(
    inventory: Inventory,
    rows: list[_Row],
    selection: DeviceSelection | None,
    links: dict[tuple[int, int], Link] | None,
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "gpus": [_gpu_json(row) for row in rows],
        "no_gpu": inventory.reason,
        "hidden_by": inventory.hidden,
        "order": inventory.order,
        "said": list(inventory.said),
        "cores": usable_cores(),
        "machine": asdict(describe_machine()),
        "found": dict(findings()),
        "default": _default(inventory),
    }
    if selection is not None:
        report["selected"] = {
            "devices": selection.describe(),
            "kind": selection.kind,
            "ranks": selection.count,
            "notes": list(selection.notes),
        }
    if links is not None:
        report["topology"] = [{"gpus": list(pair), **asdict(link)} for pair, link in links.items()]
    return report


def _gpu_json(row: _Row) -> dict[str, Any]:
    facts = asdict(row.gpu)
    facts["cpus"] = sorted(row.gpu.cpus) if row.gpu.cpus is not None else None
    capability = row.gpu.capability
    facts["capability"] = f"{capability[0]}.{capability[1]}" if capability is not None else None
    for piece in facts["slices"]:
        piece["ranks"] = row.ranks.get(piece["uuid"], [])
    usable = row.number is not None and row.gpu.problem is None
    ranks = row.ranks.get(row.gpu.uuid, [])
    return {"number": row.number, "visible": usable, "ranks": ranks, "held_by": row.held_by, **facts}


class _Printer:
    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, markup=False, width=_WIDTH_OF_A_FILE)

    def everything(
        self,
        inventory: Inventory,
        rows: list[_Row],
        selection: DeviceSelection | None,
        links: dict[tuple[int, int], Link] | None,
    ) -> None:
        if rows:
            self._table(rows, selection is not None)
            self._below(rows)
        if links is not None:
            self._topology([row for row in rows if row.gpu.problem is None], links)
        if not inventory.gpus:
            self._without_gpu(inventory, describe_machine())
        for text in inventory.said:
            self._line(f"{text[0].upper()}{text[1:]}.")
        if selection is None:
            self._line(f"Without --devices, samestep run uses {_default(inventory)}.")
        else:
            self._line(f"samestep run would use {selection.describe()}: {_ranks(selection.count)}.")
            for text in selection.notes:
                if text not in inventory.said:
                    self._line(f"{text[0].upper()}{text[1:]}.")

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _table(self, rows: list[_Row], with_ranks: bool) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        columns = ["--devices", "nvidia-smi", "GPU", "memory", "busy", "temp.", "cap.", "PCI address", "UUID"]
        for column in [*columns, *(["taken"] if with_ranks else [])]:
            table.add_column(column, overflow="fold")
        for row in rows:
            for cells in _cells(row):
                taken = ", ".join(f"rank {rank}" for rank in row.ranks.get(cells[-1], ()))
                table.add_row(*cells, *([taken] if with_ranks else []))
        self._console.print(table)

    def _below(self, rows: list[_Row]) -> None:
        """What does not fit into a table: trouble, users."""
        for row in rows:
            name = f"GPU {row.gpu.index}"
            if row.gpu.problem is not None:
                self._line(f"{name} cannot be used: {row.gpu.problem}.")
            if row.held_by is not None:
                self._line(f"{name} is held by {row.held_by}.")
            for process in row.gpu.processes or ():
                memory = f", {gib(process.memory)}" if process.memory is not None else ""
                self._line(f"{name} is used by {process.describe()}{memory}.")

    def _topology(self, rows: list[_Row], links: dict[tuple[int, int], Link]) -> None:
        from rich.table import Table

        if len(rows) < 2:
            self._line("There are no two GPUs to be joined.")
            return
        if not links:
            self._line("How the GPUs are joined is not told by their driver.")
            return
        table = Table(box=None, pad_edge=False)
        numbers = [row.gpu.index for row in rows]
        for column in ["", *(f"GPU {number}" for number in numbers), "CPUs"]:
            table.add_column(column, overflow="fold")
        for row in rows:
            across = [_link_name(row.gpu.index, other, links) for other in numbers]
            table.add_row(f"GPU {row.gpu.index}", *across, _cpus(row.gpu))
        self._line("")
        self._console.print(table)
        for text, answer in (("Peer to peer", True), ("Not peer to peer", False)):
            pairs = [f"{first}-{second}" for (first, second), link in links.items() if link.peer is answer]
            if pairs:
                self._line(f"{text}: {', '.join(pairs)}.")

    def _without_gpu(self, inventory: Inventory, machine: Machine) -> None:
        for name, found in [*_machine_lines(machine), *findings()]:
            self._line(f"{name}: {found}")
        self._line(f"No GPU can be used: {inventory.reason}.")
        self._line("cpu:N runs N processes on the CPU.")


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _cells(row: _Row) -> list[tuple[str, ...]]:
    gpu = row.gpu
    number = "hidden" if row.number is None else str(row.number)
    memory = f"{gib(gpu.memory_used)} of {gib(gpu.memory_total)}" if gpu.memory_total else ""
    capability = f"{gpu.capability[0]}.{gpu.capability[1]}" if gpu.capability is not None else ""
    busy = f"{gpu.utilisation} %" if gpu.utilisation is not None else ""
    temperature = f"{gpu.temperature} °C" if gpu.temperature is not None else ""
    lines: list[tuple[str, ...]] = [
        (number, str(gpu.index), gpu.name, memory, busy, temperature, capability, gpu.pci, gpu.uuid)
    ]
    for piece in gpu.slices:
        used = f"{gib(piece.memory_used)} of {gib(piece.memory_total)}"
        name = f"{number}:{piece.index}" if row.number is not None else "hidden"
        what = piece.name if piece.accessible else f"{piece.name} (another user's)"
        lines.append((name, "", f"  {what}", used, "", "", "", "", piece.uuid))
    return lines


def _link_name(one: int, other: int, links: dict[tuple[int, int], Link]) -> str:
    if one == other:
        return "-"
    link = links.get((min(one, other), max(one, other)))
    if link is None:
        return "?"
    if link.nvlinks:
        return f"{link.nvlinks} NVLink{'s' if link.nvlinks > 1 else ''}"
    return link.path or "?"


def _cpus(gpu: Gpu) -> str:
    """CPUs as the kernel writes them: `0-3,8`."""
    runs: list[list[int]] = []
    for cpu in sorted(gpu.cpus or ()):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _machine_lines(machine: Machine) -> list[tuple[str, str]]:
    sockets = f"{machine.sockets} socket{'' if machine.sockets == 1 else 's'}, " if machine.sockets else ""
    cores = f"{machine.cores} core{'' if machine.cores == 1 else 's'}, " if machine.cores else ""
    counts = f"{sockets}{cores}{machine.cpus} CPUs, {machine.usable} usable here"
    lines = [("CPU", f"{machine.model or 'unknown model'}: {counts}")]
    for node in machine.nodes:
        memory = f", {gib(node.memory)}" if node.memory is not None else ""
        lines.append((f"NUMA node {node.number}", f"{len(node.cpus)} CPUs{memory}"))
    limit = f", at most {gib(machine.memory_limit)} for this process" if machine.memory_limit is not None else ""
    lines.append(("memory", f"{gib(machine.memory_available)} of {gib(machine.memory_total)} available{limit}"))
    return lines
