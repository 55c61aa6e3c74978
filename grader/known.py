"""Verdicts that are there already and need no sandbox: of twins in the run, and of empty patches in preflight.

An admission file says of each admitted task that the empty patch was graded, under the same configuration, and did not
resolve it. Its rows name those gradings in the preflight's ledger; a submission that is empty gets the first of them.
Where that ledger is not beside the run's any more, the empty patch is graded like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from grader import reward
from grader.batch import Job, as_graded_for
from grader.campaign import Campaign
from grader.ledger import Key, Ledger, key_of, ledger_path, read_only, run_directory
from grader.plan import key
from grader.preflight.admission_file import read
from grader.record import Grading
from grader.verdict import Outcome, TestLists

_EMPTY = hashlib.sha256(b"").hexdigest()


def of_twins(ledger: Ledger, jobs: Sequence[Job]) -> dict[Key, Grading]:
    """For jobs whose patch an earlier start graded for another submission: its verdict, as each job's own record."""
    digests = ledger.digests()

    def same(of: Key) -> object:
        return of.task_id, of.patch_sha256, digests[of]

    wanted = {same(key(job)) for job in jobs}
    if not any(same(decided) in wanted for decided in ledger.decided()):
        return {}
    found = {same(key_of(g)): g for g in ledger.current_gradings() if same(key_of(g)) in wanted}
    return {
        key(job): as_graded_for(found[same(key(job))], job)
        for job in jobs
        if same(key(job)) in found and found[same(key(job))].outcome is not Outcome.NO_VERDICT
    }


def of_empty_patches(campaign: Campaign, jobs: Iterable[Job]) -> dict[Key, Grading]:
    """For jobs whose patch is empty and whose task is admitted: what preflight saw, under this campaign's rewards."""
    empty = [job for job in jobs if not job.submission.patch.strip()]
    if campaign.admission is None or not empty:
        return {}
    admissions = read(campaign.admission)
    run_dir = run_directory(campaign.runs_dir, admissions.header.run)
    if not ledger_path(run_dir).is_file():
        return {}
    rows = {row for entry in admissions.entries if entry.admitted for row in entry.rows}
    seen: dict[str, tuple[str, Grading]] = {}
    with read_only(run_dir) as ledger:
        for number, grading in ledger.current_numbered():
            row = f"{admissions.header.run}#{number}"
            if row in rows and grading.evidence.patch_sha256 == _EMPTY and grading.outcome is not Outcome.NO_VERDICT:
                seen.setdefault(grading.task_id, (row, grading))
    return {key(job): _answered(job, *seen[job.task.task_id], campaign) for job in empty if job.task.task_id in seen}


def _answered(job: Job, row: str, grading: Grading, campaign: Campaign) -> Grading:
    flags = (
        *grading.flags,
        f"from_admission: the empty patch was graded in preflight, {row}; it was not graded again.",
    )
    share = reward.share(_lists(grading.fail_to_pass), _lists(grading.pass_to_pass))
    evidence = grading.evidence.model_copy(update={"patch_sha256": job.submission.patch_sha256, "log_path": None})
    return grading.model_copy(
        update={
            "model_name_or_path": job.submission.model_name_or_path,
            "reward": reward.of(grading.outcome, campaign.rewards, flags, fail_to_pass_share=share),
            "seconds": 0.0,
            "flags": flags,
            "evidence": evidence,
        }
    )


def _lists(split: Mapping[str, tuple[str, ...]]) -> TestLists:
    return TestLists(split.get("success", ()), split.get("failure", ()))
