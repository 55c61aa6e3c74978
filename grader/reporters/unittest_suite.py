"""unittest's text runner, which Django's runner uses too: the result object that it makes is listened to.

With Django's `--parallel` the workers' events are replayed on that object in the parent process.
"""

import sys
from functools import wraps

try:
    from _thread import get_ident
except ImportError:
    from _dummy_thread import get_ident

_OUTCOMES = (
    ("addSuccess", "passed"),
    ("addFailure", "failed"),
    ("addError", "error"),
    ("addSkip", "skipped"),
    ("addExpectedFailure", "xfailed"),
    ("addUnexpectedSuccess", "xpassed"),
)
_WORST_FIRST = ("error", "failed", "xpassed", "skipped", "xfailed", "passed")


_IMPORTING = "<frozen importlib._bootstrap>"
_LOADING = ("unittest.loader", "unittest.suite", "unittest.case")


def attach(module, wire, claim):
    """`unittest.runner` has been imported: listen to each run of a `TextTestRunner` that is a test session.

    A run inside another is none, nor is one of a module that is being imported: what is tested may run suites too.
    """
    runner = module.TextTestRunner
    main_thread = get_ident()
    original = runner.run
    running = []

    def release():
        """Another runner's claim takes the wrapper off; our own leaves it for the next run."""
        if not running and runner.run is run:
            runner.run = original

    @wraps(original)
    def run(self, test):
        if running or get_ident() != main_thread or _within_tests(sys._getframe(1)):
            return original(self, test)
        running.append(self)
        claim()
        wire.begin("unittest", "")
        make = self._makeResult
        result = None

        def made():
            found = make()
            try:
                _Listener(found, wire)
            except Exception:
                pass
            return found

        self._makeResult = made
        try:
            result = original(self, test)
            return result
        finally:
            running.remove(self)
            self.__dict__.pop("_makeResult", None)
            wire.end(None if result is None else int(not result.wasSuccessful()))

    runner.run = run
    return release


def _within_tests(frame):
    """Whether this is called while tests, or what they test, are imported, loaded or run."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING or frame.f_globals.get("__name__") in _LOADING:
            return True
        frame = frame.f_back
    return False


class _Listener(object):
    """Turns the calls on one result object into records."""

    def __init__(self, result, wire):
        self._result = result
        self._wire = wire
        self._running = {}
        self._wrap("startTest", self._start)
        self._wrap("stopTest", self._stop)
        for method, outcome in _OUTCOMES:
            self._wrap(method, self._outcome(outcome))
        self._wrap("addSubTest", self._subtest)

    def _wrap(self, method, listen):
        theirs = getattr(self._result, method, None)
        if theirs is None:
            return

        @wraps(theirs)
        def both(test, *args, **kwargs):
            try:
                listen(test, *args)
            except Exception:
                pass
            return theirs(test, *args, **kwargs)

        setattr(self._result, method, both)

    def _start(self, test):
        self._running[id(test)] = []

    def _outcome(self, outcome):
        def listen(test, *_):
            if id(test) in self._running:
                self._running[id(test)].append(outcome)
            else:  # a class or a module could not be set up, or torn down
                self._tell(test, outcome, "setup")

        return listen

    def _subtest(self, test, subtest, error=None):
        if error is not None:
            outcome = "failed" if issubclass(error[0], test.failureException) else "error"
            self._tell(subtest, outcome, "subtest")
            self._running.get(id(test), []).append(outcome)

    def _stop(self, test):
        outcomes = self._running.pop(id(test), [])
        for outcome in _WORST_FIRST:
            if outcome in outcomes:
                self._tell(test, outcome, "call")
                return

    def _tell(self, test, outcome, phase):
        describe = getattr(self._result, "getDescription", str)
        self._wire.test(test.id(), outcome, phase, describe(test))
