"""The rules, one module a family of mistakes."""

from __future__ import annotations

from samestep.lint.registry import Rule
from samestep.lint.rules import (
    backward,
    collectives,
    device_environment,
    device_names,
    files,
    frameworks,
    loading,
    module_devices,
    restoring,
    samplers,
    saving,
    shell_launch,
    shell_lists,
    starting,
    totals,
    visible_devices,
    wrapping,
)

_MODULES = (
    *(files, visible_devices, device_names, module_devices, device_environment, samplers, loading),
    *(totals, backward, frameworks, saving, restoring, wrapping, collectives, starting, shell_lists, shell_launch),
)
RULES: list[Rule] = [rule for module in _MODULES for rule in module.RULES]
