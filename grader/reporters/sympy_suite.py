"""sympy's own runner (`bin/test`): its reporter's methods are listened to.

It may run the tests in a child process, and the child is then the one that reports.
"""

from functools import wraps

_OUTCOMES = (
    ("test_pass", "passed"),
    ("test_fail", "failed"),
    ("test_exception", "error"),
    ("test_skip", "skipped"),
    ("test_xfail", "xfailed"),
    ("test_xpass", "xpassed"),
)


def attach(module, wire, claim):
    """The runner's module has been imported: listen to its `PyTestReporter`."""
    reporter = module.PyTestReporter
    originals = {}

    def around(method, listen, after=False):
        theirs = reporter.__dict__[method]
        originals[method] = theirs

        @wraps(theirs)
        def both(self, *args, **kwargs):
            value = theirs(self, *args, **kwargs) if after else None
            try:
                listen(self, *((value,) if after else args))
            except Exception:
                pass
            return value if after else theirs(self, *args, **kwargs)

        setattr(reporter, method, both)

    began = []

    def start(_self, *_):
        if not began:
            began.append(True)
            claim()
        wire.begin("sympy", "")

    def outcome(word):
        def listen(self, *_):
            name = getattr(self._active_f, "__name__", "")
            wire.test("%s:%s" % (self._active_file, name), word, "call", name)

        return listen

    def import_error(self, filename, *_):
        wire.test(filename[len(self._root_dir) + 1 :], "error", "collect")

    around("start", start)
    for method, word in _OUTCOMES:
        around(method, outcome(word))
    around("import_error", import_error)
    around("finish", lambda _self, ok: wire.end(int(not ok)), after=True)

    def release():
        """The wrapped methods stay: they are how the session reports. Another runner's claim takes them off."""
        if not began:
            for method, theirs in originals.items():
                setattr(reporter, method, theirs)

    return release
