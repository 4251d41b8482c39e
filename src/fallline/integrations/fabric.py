"""For Lightning Fabric:

    fabric = L.Fabric(callbacks=[FalllineCallback()])

Watching begins at `fabric.setup(model, optimizer)`. Fabric has no moment that it calls the end: say `fabric.call("on_train_end")`,
as its examples do, or let the end of the program be it.
"""

from __future__ import annotations

from typing import Any

from fallline.integrations._watching import Watching

__all__ = ["FalllineCallback"]


class FalllineCallback(Watching):
    """Watches a Fabric program. Options as in `Watching`."""

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        self.begin(module)

    def on_train_end(self) -> None:
        self.end()
