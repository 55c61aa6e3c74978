"""pytest, 4.6 to 9: a plugin of ours is registered where pytest registers those of PYTEST_PLUGINS, before any conftest.

Its name is drawn by lot, so that no `-p no:` can block it. With xdist the controller reports what the workers sent it.
A test's record is written when its tear-down is reported, so that one record has all three phases.
"""

import os
import sys

_PHASES = ("setup", "call", "teardown")


def attach(config, wire, claim):
    """`_pytest.config` has been imported: be a plugin of the first configuration that is made."""
    manager = config.PytestPluginManager
    original = manager.consider_env
    plugin = type(sys)("g" + "".join("%02x" % byte for byte in bytearray(os.urandom(6))))
    for hook in _hooks(wire):
        setattr(plugin, hook.__name__, config.hookimpl(tryfirst=True)(hook))

    def consider_env(self):
        claim()
        self.register(plugin, plugin.__name__)
        return original(self)

    def release():
        if manager.consider_env is consider_env:
            manager.consider_env = original

    manager.consider_env = consider_env
    return release


def _hooks(wire):
    unfinished = {}

    def pytest_sessionstart():
        wire.begin("pytest", getattr(sys.modules.get("pytest"), "__version__", ""))

    def pytest_runtest_logreport(report):
        when = getattr(report, "when", None)
        outcome = _outcome(report, when)
        if getattr(report, "context", None) is not None and "subtest" in type(report).__name__.lower():
            if outcome not in ("passed", "skipped"):
                wire.test(report.nodeid, outcome, "subtest")
        elif when not in _PHASES:  # a worker crashed
            wire.test(report.nodeid, outcome, "crash")
        else:
            phases = unfinished.setdefault(report.nodeid, {})
            phases[when] = outcome
            if when == "teardown":
                _tell(wire, report.nodeid, unfinished.pop(report.nodeid))

    def pytest_collectreport(report):
        if report.outcome == "failed":
            wire.test(report.nodeid, "error", "collect")

    def pytest_sessionfinish(exitstatus):
        for nodeid in list(unfinished):
            _tell(wire, nodeid, unfinished.pop(nodeid))
        wire.end(int(exitstatus))

    return (
        pytest_sessionstart,
        pytest_runtest_logreport,
        pytest_collectreport,
        pytest_sessionfinish,
    )


def _outcome(report, when):
    """The outcome of one phase. Others than these (`rerun`) stand for no result."""
    if report.outcome == "failed":
        return "error" if when in ("setup", "teardown") else "failed"
    if hasattr(report, "wasxfail") and report.outcome in ("skipped", "passed"):
        return "xfailed" if report.outcome == "skipped" else "xpassed"
    return report.outcome


def _tell(wire, nodeid, phases):
    """One record for the phases of a test, by the one that decides: a failed call, else an error, else the call."""
    if "rerun" in phases.values():
        return
    for phase, outcome in (("call", "failed"), ("setup", "error"), ("teardown", "error")):
        if phases.get(phase) == outcome:
            wire.test(nodeid, outcome, phase)
            return
    for phase in ("call", "setup"):
        if phase in phases and (phase == "call" or phases[phase] != "passed"):
            wire.test(nodeid, phases[phase], phase)
            return
