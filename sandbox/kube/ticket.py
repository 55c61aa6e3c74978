"""A ticket for a pod."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.kube.box import KubeSandbox
from sandbox.pacing import Turn
from sandbox.ticket import Ticket


@dataclass(eq=False)
class PodTicket(Ticket[KubeSandbox]):
    """`sandbox_id` is the pod's name too."""

    turn: Turn | None = None
    """Its place in the pacer's queue."""

    @property
    def waits_for_its_pod(self) -> bool:
        """Whether its pod is stored and not yet a sandbox: then news of it are waited for."""
        return not self.settled.is_set() and self.clock.phase not in {None, "queue"}
