"""Why a sandbox that ran is no more: told by the watch, and asked of the server where the watch tells nothing."""

from __future__ import annotations

import time

import anyio

from sandbox.kube.endings import Ending, ending, ending_of_a_vanished, nothing_runs, replaced
from sandbox.kube.events import Events
from sandbox.kube.owner import Owner
from sandbox.kube.snapshot import Pod

EXPLAIN_S = 3.0
"""How long the way to a sandbox is broken before its pod is asked, rather than waited for."""
NODE_MARK_S = 45.0
"""A cluster notes after 40 s that it hears nothing of a node. So long is waited for it where nothing else explains."""
EVENTS_LAG_S = 1.0
"""Whoever deletes a pod for a reason notes the reason a little later."""


def is_over(owner: Owner, uid: str) -> bool:
    """Whether the server has said that the pod with this UID is gone, replaced, or runs no more."""
    seen = owner.pod
    return owner.pod_gone or (seen is not None and (seen.uid != uid or nothing_runs(seen)))


async def explained(
    owner: Owner, running: Pod, events: Events, *, lifetime_s: float, patience_s: float = NODE_MARK_S
) -> Ending | None:
    """Why the pod that was `running` is over. None: it is not, as far as the server knows after `patience_s`.

    Many commands may ask about one sandbox, and thousands of sandboxes be lost at once: their looks are shared, and the
    watch is trusted for as long as it tells of anything, but for one last look."""
    give_up_at = time.monotonic() + patience_s
    while True:
        with anyio.move_on_after(min(EXPLAIN_S, give_up_at - time.monotonic())):
            while not (over := is_over(owner, running.uid)):
                await owner.change()
        left_s = give_up_at - time.monotonic()
        if not over and left_s > 0:
            await owner.refresh(within_s=left_s, max_age_s=EXPLAIN_S, unless_watched=left_s > EXPLAIN_S)
            over = is_over(owner, running.uid)
        seen = owner.pod or running
        if seen.uid != running.uid:
            return replaced(running, by=seen)
        end = ending(seen, lifetime_s=lifetime_s)
        if end is not None and end.cause != "deleted":
            return end
        if over or seen.deleting or seen.node_silent:
            return await _end_by_another(owner, running, events, lifetime_s)
        if time.monotonic() >= give_up_at:
            return None


async def _end_by_another(owner: Owner, running: Pod, events: Events, lifetime_s: float) -> Ending:
    """Why a pod went, or goes, that we did not delete."""
    for lag_s in (EVENTS_LAG_S, 0.0):
        last = owner.pod or running
        if last.uid != running.uid:
            return replaced(running, by=last)
        end = ending_of_a_vanished(last, await events.about_end(last), lifetime_s=lifetime_s)
        if end.cause != "deleted" or not lag_s:
            break
        await anyio.sleep(lag_s)
    return end
