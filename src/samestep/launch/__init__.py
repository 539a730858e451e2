"""One process per device: starting them, running the script in each, ending them together.

The public function `samestep.launch` has the name of this package, and Python puts an imported package where the
function was. So the package can be called: whichever of the two a program gets hold of, `samestep.launch(fn)` works.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _CallablePackage(types.ModuleType):
    def __call__(self, fn: Any, *args: Any, devices: Any = None, **kwargs: Any) -> Any:
        """See `samestep.launch.api.launch`."""
        from samestep.launch.api import launch

        return launch(fn, *args, devices=devices, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
