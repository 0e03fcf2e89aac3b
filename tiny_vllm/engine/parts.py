"""What an engine is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tiny_vllm.engine.draws import Drawer
from tiny_vllm.engine.runner import Runner
from tiny_vllm.types import BlockPool, Request, Resettable, Scheduler


@dataclass
class Parts:
    """Gone after close()."""

    runner: Runner
    scheduler: Scheduler
    pool: BlockPool
    drawer: Drawer

    def finish(self, request: Request) -> None:
        """End a request for a reason that the scheduler cannot see."""
        if isinstance(self.scheduler, FinishingScheduler):
            self.scheduler.finish(request.request_id, "stop")
        else:
            self.scheduler.abort(request.request_id)

    def reset(self) -> None:
        """Forget all requests, and what an error may have left half done of them; the device is idle then."""
        if isinstance(self.scheduler, Resettable):
            self.scheduler.reset()
        self.drawer.reset()
        self.runner.inputs.tables.reset()
        self.runner.device.synchronize()


@runtime_checkable
class FinishingScheduler(Protocol):
    """A scheduler that can be told why a request ends; another one is told to abort it."""

    def finish(self, request_id: str, finish_reason: str) -> None: ...
