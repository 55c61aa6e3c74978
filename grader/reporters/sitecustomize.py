"""Start-up of each Python below the test command: say so on the channel, and wait for a test runner to be imported.

PYTHONPATH names the directory of this file, and nothing else of ours is in the environment. The image's own
`sitecustomize` runs afterwards as if this one were not there.
"""

import os
import sys

_RUNNERS = {
    "_pytest.config": "pytest_suite",
    "unittest.runner": "unittest_suite",
    "sympy.testing.runtests": "sympy_suite",
    "sympy.utilities.runtests": "sympy_suite",
}


def _load(here, name):
    """Execute one of our files as a module that nobody finds by its name."""
    path = os.path.join(here, name + ".py")
    module = type(sys)(name)
    module.__file__ = path
    with open(path, "rb") as stream:
        code = compile(stream.read(), path, "exec")
    exec(code, module.__dict__)  # noqa: S102 - our own file
    return module


class _Loader(object):
    """Loads a module by its own loader, and then calls `hook` with it."""

    def __init__(self, loader, hook):
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._hook(module)


class _Finder(object):
    """Finds the runners' modules where the other finders find them, to be told when one has been imported."""

    def __init__(self, hooks):
        self._hooks = hooks

    def find_spec(self, name, path=None, target=None):
        if name not in self._hooks:
            return None
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module") and hasattr(spec.loader, "create_module"):
                    spec.loader = _Loader(spec.loader, self._hooks[name])
                return spec
        return None


def _without(paths, here):
    return [path for path in paths if os.path.abspath(path or ".") != here]


def _watch(here):
    wire = _load(here, "wire").Wire(here)
    undo = []

    def leave():
        """No child process gets the reporter any more."""
        left = os.pathsep.join(_without(os.environ.get("PYTHONPATH", "").split(os.pathsep), here))
        if left:
            os.environ["PYTHONPATH"] = left
        else:
            os.environ.pop("PYTHONPATH", None)

    def claim():
        """A runner starts: nothing of ours is left for other runners and for child processes."""
        leave()
        while undo:
            undo.pop()()

    def hook(runner):
        def attach(module):
            try:
                undo.append(_load(here, runner).attach(module, wire, claim))
            except Exception:
                wire.blind(runner)

        return attach

    hooks = {}
    for name, runner in _RUNNERS.items():
        if name in sys.modules:
            hook(runner)(sys.modules[name])
        else:
            hooks[name] = hook(runner)
    finder = _Finder(hooks)
    sys.meta_path.insert(0, finder)
    undo.append(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
    wire.hello()
    if wire.is_unittest():
        leave()  # what it imports before its session must start none in its place, in another process


def _go():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = _without(sys.path, here)
    sys.path_importer_cache.pop(here, None)
    try:
        if sys.version_info >= (3, 4):
            _watch(here)
    except Exception:
        pass
    ourselves = sys.modules.pop(__name__)
    try:
        import sitecustomize  # noqa: F401 - the image's own, if it has one
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault(__name__, ourselves)


_go()
