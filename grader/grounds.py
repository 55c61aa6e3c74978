"""Where a campaign's gradings happen: an open provider, its images, and the canary that egress is proved with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from anyio import to_thread

from grader.batch import Job
from grader.campaign import Campaign
from grader.errors import UsageError
from grader.grade import grade_one
from grader.images import check_image, ensure_image
from grader.ledger import run_directory
from grader.probe import Canary
from grader.record import Grading
from sandbox import Provider, open_provider
from sandbox.errors import ImageError, ProviderUnavailable
from sandbox.kube.provider import KubernetesProvider
from sandbox.local.provider import LocalProvider
from tasksets.images import Recipe


@dataclass(frozen=True)
class ProviderGrounds:
    """`grader.run.Grounds` on an open provider."""

    provider: Provider
    campaign: Campaign
    canary: tuple[str, int] | None
    code_revision: str

    async def image(self, recipe: Recipe, say: Callable[[str], None]) -> str:
        if not isinstance(self.provider, LocalProvider):
            raise ImageError(f"the {self.provider.name} provider builds no recipes; name the tasks' images by digest")
        return await ensure_image(self.provider, recipe, progress=say)

    async def unusable(self, job: Job, recipe: Recipe | None) -> ImageError | None:
        if job.task.image is None or not isinstance(self.provider, LocalProvider):
            return None
        try:
            await to_thread.run_sync(check_image, self.provider, job.task.image, recipe)
        except ImageError as error:
            return error
        return None

    async def grade(self, job: Job) -> Grading:
        return await grade_one(
            job.task,
            job.submission,
            provider=self.provider,
            conditions=self.campaign.conditions,
            limits=self.campaign.limits,
            rewards=self.campaign.rewards,
            tampering=self.campaign.tampering,
            logs_dir=logs_directory(self.campaign),
            canary=self.canary,
            code_revision=self.code_revision,
        )


def logs_directory(campaign: Campaign) -> Path:
    """Where the logs of the campaign's gradings are kept."""
    return run_directory(campaign.runs_dir, campaign.run) / "logs"


def _try_logs(directory: Path) -> None:
    """Raise `UsageError` before any suite is paid for whose log could not be kept."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory) as trial:
            trial.write(b"a log")
    except OSError as error:
        raise UsageError(
            f"{directory}: cannot be made or written ({error.strerror}), and logs are kept there;"
            " mend it or name another --runs-dir"
        ) from error


@asynccontextmanager
async def open_grounds(
    campaign: Campaign, code_revision: str, *, is_for_a_run: bool = True
) -> AsyncIterator[ProviderGrounds]:
    """Open the campaign's provider. Leaving gives back every sandbox. Where nothing is to be graded there is no run
    whose directory could be touched.

    Raises `ProviderUnavailable`, and `UsageError` where a run's logs could not be kept.
    """
    if is_for_a_run:
        await to_thread.run_sync(_try_logs, logs_directory(campaign))
    async with open_provider(campaign.provider) as provider, _canary(provider, campaign) as canary:
        yield ProviderGrounds(provider, campaign, canary, code_revision)


@asynccontextmanager
async def _canary(provider: Provider, campaign: Campaign) -> AsyncIterator[tuple[str, int] | None]:
    """An address that tells whether a sandbox of this provider has a way out. None: there is none, and none is needed.

    This host's loopback, where a local sandbox would be listened for, means nothing to a pod.
    """
    if not isinstance(provider, KubernetesProvider):
        async with Canary() as listener:
            yield listener
        return
    address = None
    try:
        address = await provider.canary()
    except ProviderUnavailable:
        if campaign.conditions.egress != "open":
            raise
    yield address
