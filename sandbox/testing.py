"""The conformance suite: what every provider must do, as checks that any test runner can call.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_conformance(check, subject):
        await check(subject)

A check takes a `Subject` (an open provider, a spec that works with it, the facts that only its tester knows) and
raises `AssertionError` when the provider does otherwise. `LIFECYCLE_CHECKS` open and close providers of their own.
Nothing here is particular to one provider; each check's docstring is the claim. What a shell must bear is another
suite: `sandbox.torture`.
"""

from sandbox.conformance import acquiring, commands, files, jobs, lifecycle, place
from sandbox.conformance.subject import (
    Check,
    LifecycleCheck,
    LifecycleSubject,
    Subject,
    expect,
    expect_raises,
    output,
)

__all__ = [
    "CHECKS",
    "LIFECYCLE_CHECKS",
    "Check",
    "LifecycleCheck",
    "LifecycleSubject",
    "Subject",
    "expect",
    "expect_raises",
    "output",
]

CHECKS: tuple[Check, ...] = place.CHECKS + commands.CHECKS + jobs.CHECKS + files.CHECKS + acquiring.CHECKS
LIFECYCLE_CHECKS: tuple[LifecycleCheck, ...] = lifecycle.CHECKS
