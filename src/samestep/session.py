"""One rank's session: its process groups, everything installed, then the script. The only place that composes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from samestep import heap, ledger, notice, numerics, replica, torch_private, unsplit, waiting, world
from samestep.data import fastai_batches, loader
from samestep.devices.inventory import usable_cores
from samestep.globalview import autograd, classes, rules, transforms
from samestep.groups import make_groups
from samestep.launch import device_hooks, warned
from samestep.launch.context import RankContext
from samestep.launch.script import ScriptTarget, run_target
from samestep.numerics import Numerics
from samestep.parallel import batch_norm, data_parallel, region, visit
from samestep.replica import patching
from samestep.tools import explain as explain_tool

_DEFAULT = Numerics()

# Typed loosely: torch's stubs leave out the process groups and stores that are made here directly.
dist: Any = torch.distributed


def run_rank(
    context: RankContext, target: ScriptTarget, explain: str | None = None, choice: Numerics = _DEFAULT
) -> None:
    """Run the user's script as this rank; `explain` is None, `-` (the terminal) or a JSON file's path."""
    ledger.LEDGER.detailed = explain is not None
    _start(context, choice)
    began = time.perf_counter()
    try:
        run_target(target)
    finally:
        waiting.script_ended()
        device_hooks.finish()
        if explain is not None and context.rank == 0:
            _report(context, explain, time.perf_counter() - began)
    if explain is None:
        unsplit.say_if_nothing_was_split()


def run_callable(
    context: RankContext, fn: Callable[..., Any], args: Any, kwargs: Any, choice: Numerics = _DEFAULT
) -> Any:
    """Run a function as this rank (`samestep.launch`)."""
    _start(context, choice)
    try:
        return fn(*args, **kwargs)
    finally:
        waiting.script_ended()


def _start(context: RankContext, choice: Numerics) -> None:
    torch_private.require()
    notice.set_speaker(context.rank == 0)
    store = _store(context)
    groups = make_groups(context.rank, context.world_size, context.selection, store)
    # Where each rank has a core. On GPUs, collectives are queued and not waited for.
    looks = context.selection.kind == "cpu" and context.world_size <= usable_cores()
    world.install(world.World(context.rank, context.world_size, groups, looks))
    heap.keep_what_is_freed()
    numerics.choose(choice)
    rules.install()
    autograd.install()
    transforms.install()
    region.install()
    batch_norm.install()
    visit.install()
    data_parallel.install()
    loader.install()
    classes.install()
    warned.install()
    patching.after_import(patching.Patches(), {"fastai.learner": fastai_batches.let_learners_cut})
    replica.install(context.rank, context.world_size, context.run_dir, store, context.shared_seed)
    waiting.watch(context.rank, context.world_size, context.run_dir)
    device_hooks.install(context, lambda: bool(store.check(["stdin/0"])))


def _store(context: RankContext) -> Any:
    main = context.rank == 0
    listener = context.store_listener
    fd = listener if isinstance(listener, int) or listener is None else listener.fileno()
    return dist.TCPStore(
        "127.0.0.1",
        context.store_port,
        is_master=main,
        master_listen_fd=fd if main else None,
        wait_for_workers=False,
        timeout=timedelta(seconds=120),
    )


def _report(context: RankContext, where: str, seconds: float) -> None:
    report = explain_tool.collect(context.selection.describe(), context.world_size, seconds)
    if where == "-":
        explain_tool.show(report)
    else:
        # Not through the script's view of files: the report is Samestep's own.
        with open(where, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
