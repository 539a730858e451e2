"""SST3: what frameworks want to be told about losses and metrics."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.findings import Finding, ReplaceExpression, SetArgument
from samestep.lint.python.names import dotted_name
from samestep.lint.python.reach import may_pick_ranks, tests_around
from samestep.lint.python.script import FunctionNode, Script, argument, is_open
from samestep.lint.registry import Rule, prose, source

LOG_SYNC = Rule(
    code="SST305",
    name="logged-value-of-one-rank",
    severity="warning",
    summary="A LightningModule logs a validation loss without `sync_dist=True` and is trained on several devices.",
    why=prose("""
        `self.log` keeps the value of each rank for itself, and rank 0's is shown and decides on checkpoints and early
        stopping. Measured on 2 ranks: 0.95 and 0.89 were logged where 0.92 is true."""),
    wrong=source("""
        import lightning as L
        import torch.nn.functional as F


        class Model(L.LightningModule):
            def validation_step(self, batch, index):
                images, labels = batch
                loss = F.cross_entropy(self(images), labels)
                self.log("val_loss", loss)


        trainer = L.Trainer(devices=2)
        """),
    right=source("""
        import lightning as L
        import torch.nn.functional as F


        class Model(L.LightningModule):
            def validation_step(self, batch, index):
                images, labels = batch
                loss = F.cross_entropy(self(images), labels)
                self.log("val_loss", loss, sync_dist=True)


        trainer = L.Trainer(devices=2)
        """),
    mend=prose("""
        Pass `sync_dist=True` (a mean over ranks: exact where each has the same number of samples), or log a
        `torchmetrics` object."""),
    fixed=source("""
        import lightning as L
        import torch.nn.functional as F


        class Model(L.LightningModule):
            def validation_step(self, batch, index):
                images, labels = batch
                loss = F.cross_entropy(self(images), labels)
                self.log("val_loss", loss, sync_dist=True)


        trainer = L.Trainer(devices=2)
        """),
)
_TRAINERS = ("lightning.Trainer", "lightning.pytorch.Trainer")


@LOG_SYNC.python
def _log_sync(script: Script) -> Iterator[Finding]:
    if not any(_several_devices(script, call) for call in script.calls(*_TRAINERS)):
        return
    for call in script.method_calls("log"):
        function = script.function(call)
        if not isinstance(function, FunctionNode) or function.name not in ("validation_step", "test_step"):
            continue
        assert isinstance(call.func, ast.Attribute)
        given = argument(call, "value", 1)
        if dotted_name(call.func.value) != "self" or is_open(call) or not isinstance(given, ast.Name):
            continue
        said = {keyword.arg for keyword in call.keywords} & {"sync_dist", "rank_zero_only"}
        guarded = any(may_pick_ranks(test.test) for test, _ in tests_around(script, call))
        if not said and not guarded and _from_functional(script, function, given.id):
            fix = SetArgument(script.span(call), "sync_dist", "True")
            yield LOG_SYNC.at(script, call, "each rank logs the value of its own samples; rank 0's is shown", fix)


def _several_devices(script: Script, call: ast.Call) -> bool:
    devices = script.value(argument(call, "devices"))
    numbers = devices.numbers
    many = (devices.whole_number or 0) > 1 or (numbers is not None and len(numbers) > 1)
    return many or (script.value(argument(call, "strategy")).text or "").startswith(("ddp", "fsdp", "deepspeed"))


def _from_functional(script: Script, function: ast.AST, name: str) -> bool:
    for each in script.walk(function):
        if isinstance(each, ast.Assign) and name in [dotted_name(target) for target in each.targets]:
            return script.name(each.value).startswith("torch.nn.functional.")
    return False


ACCELERATOR = Rule(
    code="SST306",
    name="backward-past-the-accelerator",
    severity="error",
    summary="A program that uses Accelerate calls `loss.backward()` itself.",
    why=prose("""
        `accelerator.backward(loss)` divides by the accumulation steps and scales for mixed precision before it
        differentiates. Called directly, gradients are too large by the number of accumulation steps, and in fp16 they
        underflow."""),
    wrong=source("""
        from accelerate import Accelerator


        def train(model, optimizer, loader):
            accelerator = Accelerator(gradient_accumulation_steps=4)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            for images, labels in loader:
                loss = model(images, labels)
                loss.backward()
                optimizer.step()
        """),
    right=source("""
        from accelerate import Accelerator


        def train(model, optimizer, loader):
            accelerator = Accelerator(gradient_accumulation_steps=4)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            for images, labels in loader:
                loss = model(images, labels)
                accelerator.backward(loss)
                optimizer.step()
        """),
    mend="Call `accelerator.backward(loss)`.",
    fixed=source("""
        from accelerate import Accelerator


        def train(model, optimizer, loader):
            accelerator = Accelerator(gradient_accumulation_steps=4)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            for images, labels in loader:
                loss = model(images, labels)
                accelerator.backward(loss)
                optimizer.step()
        """),
)


@ACCELERATOR.python
def _accelerator(script: Script) -> Iterator[Finding]:
    owners: dict[ast.AST, str] = {}
    for call in script.method_calls("prepare"):
        assert isinstance(call.func, ast.Attribute)
        if script.value(call.func.value).kind == "accelerator":
            owners[script.function(call)] = script.source(call.func.value)
    for call in script.method_calls("backward"):
        assert isinstance(call.func, ast.Attribute)
        loss = call.func.value
        owner = owners.get(script.function(call))
        if owner is None or call.args or call.keywords or script.value(loss).kind == "accelerator":
            continue
        if isinstance(loss, ast.Name) and "loss" in loss.id.lower():
            fix = ReplaceExpression(script.span(call), f"{owner}.backward({loss.id})")
            yield ACCELERATOR.at(
                script, call, f"Accelerate's scaling is passed by; call {owner}.backward({loss.id})", fix
            )


RULES = [LOG_SYNC, ACCELERATOR]
