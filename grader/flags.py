"""The flags that a grading can carry: what a careful reader should know beside a verdict.

A flag is a sentence that begins with its name and a colon. `[rewards.flag_costs]` goes by the names.
"""

from __future__ import annotations

from collections.abc import Mapping

FLAGS: Mapping[str, str] = {
    "patch_touches_tests": "the patch's changes to the task's test files were undone",
    "patch_changes_tests": "the patch changes other test files",
    "patch_steers_tests": "the patch changes files that can steer the test runner",
    "binary_without_data": "binary changes without their data were not applied",
    "set_up_failed": "the task's set-up failed before the tests ran",
    "set_up_timed_out": "the task's set-up used up the time limit",
    "channel_closed": "no channel could be had",
    "channel_blind": "the reporter does not fit the runner",
    "channel_broken": "the channel's records are not whole",
    "channel_unended": "a test session began and never told its end",
    "channel_noise": "something that is no reporter wrote to the channel",
    "channel_suites": "more than one test session told results",
    "runner_never_began": "no test session began",
    "results_doubled": "tests have more than one result",
    "results_conflict": "tests have different results on the channel; the worst counts",
    "subtests_failed": "subtests failed",
    "log_disagrees": "listed tests have another result in the log than on the channel",
    "log_claims_results": "listed tests have a result in the log alone",
    "log_lacks_results": "listed tests have a result on the channel alone",
    "log_outcome_differs": "the log alone would give another outcome",
    "log_truncated": "the log is cut",
    "exit_code_disagrees": "an exit status does not fit the results, or another status",
    "ended_by_signal": "a signal ended the test command",
    "missing_tests": "listed tests have no result",
    "matched_by_prefix": "listed tests are cut in the task and were matched by their beginning",
    "matched_ambiguously": "listed tests are cut in the task and begin like several tests",
    "conflicting_results": "listed tests have different results in the log; the last counts",
    "word_is_no_status": "listed tests have a result that is no status",
    "unlisted_failures": "failed tests are in neither list",
    "markers_in_output": "the tests printed a marker of official logs",
    "markers_repeated": "a marker of official logs stands more than once in the log",
    "outside_markers": "no result stood between the markers, so the whole log was read",
    "too_many_tests": "results beyond the most that are kept were left out",
    "graded_once": "the patch was graded for another submission; the reward is that one's",
    "from_admission": "the empty patch was graded in preflight",
}
"""By name, what each says. A test holds this against the code that makes flags."""
