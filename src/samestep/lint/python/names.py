"""What dotted names stand for: `nn.DataParallel` is `torch.nn.DataParallel`, whatever the import was called."""

from __future__ import annotations

import ast

#: Longer homes of what is also found, and better known, at a shorter one.
_HOMES = {
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.data_parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": (
        "torch.distributed.fsdp.FullyShardedDataParallel"
    ),
    "torch.utils.data.DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.dataset.random_split": "torch.utils.data.random_split",
    "torch.nn.modules.batchnorm.SyncBatchNorm": "torch.nn.SyncBatchNorm",
    "torch.autograd.no_grad": "torch.no_grad",
    "torch.autograd.grad_mode.no_grad": "torch.no_grad",
    "torch.serialization.save": "torch.save",
    "torch.serialization.load": "torch.load",
    "torch.multiprocessing.spawn.spawn": "torch.multiprocessing.spawn",
    "accelerate.accelerator.Accelerator": "accelerate.Accelerator",
}
_PREFIXES = {"torch.distributed.distributed_c10d.": "torch.distributed.", "pytorch_lightning.": "lightning.pytorch."}


class Names:
    """The imports of one file, wherever in it they stand."""

    def __init__(self, tree: ast.AST) -> None:
        self._imported: dict[str, str] = {}
        ambiguous: set[str] = set()
        for node in ast.walk(tree):
            for bound, full in _bindings(node):
                if self._imported.setdefault(bound, full) != full:
                    ambiguous.add(bound)
        for name in ambiguous:
            del self._imported[name]
        self.modules = set(self._imported.values())

    def qualified(self, node: ast.AST) -> str:
        """The full dotted name of a name or attribute chain that starts at an import, else ''."""
        dotted = dotted_name(node)
        if not dotted:
            return ""
        first, _, rest = dotted.partition(".")
        full = self._imported.get(first)
        if full is None:
            return ""
        return canonical(f"{full}.{rest}" if rest else full)

    def imports(self, module: str) -> bool:
        """Whether the file imports `module` or something in it."""
        return any(each == module or each.startswith(module + ".") for each in self.modules)


def canonical(name: str) -> str:
    """The best-known home of a dotted name."""
    for prefix, short in _PREFIXES.items():
        if name.startswith(prefix):
            name = short + name[len(prefix) :]
    for long, short in _HOMES.items():
        if name == long or name.startswith(long + "."):
            return short + name[len(long) :]
    return name


def dotted_name(node: ast.AST | None) -> str:
    """`a.b.c` for a name or a chain of attributes on a name, else ''."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def _bindings(node: ast.AST) -> list[tuple[str, str]]:
    if isinstance(node, ast.Import):
        return [
            (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0], alias.name.split(".")[0])
            for alias in node.names
        ]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [(alias.asname or alias.name, canonical(f"{node.module}.{alias.name}")) for alias in node.names]
    return []
