"""The tasks of the preflight demo: each depends on one thing of the place where it runs, or is wrong in one way.

Every case is a module of one little package, the same module mended (the reference patch), and a test file. Under the
demo's campaign each is of one class, which stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from grader.preflight.classes import Class

MADE = "2024-06-01T00:00:00Z"
"""When every task says that it was made; the clock's case needs a day before 2025."""

FLAKY_TESTS = 8
"""Each passes half of the time. They all do the same in each of three runs with probability (1/4)^8: 1 in 65,536."""


@dataclass(frozen=True)
class Case:
    """One task and its class."""

    name: str
    broken: str
    mended: str
    tests: str
    kind: Class
    needs: str | None = None
    """The condition that must be named, and alone."""
    fail_to_pass: tuple[str, ...] = ("test_it",)
    runner: str = "python run_tests.py"


PYTEST = "python -m pytest -p no:cacheprovider -q -rA"
"""With the plugin that shuffles, which the image has. Most cases do without, for it takes longer than their tests."""

RUNNER = """\
import importlib
import sys
import traceback

failed = 0
for path in sys.argv[1:]:
    module = importlib.import_module(path[:-3].replace("/", "."))
    for name in [name for name in vars(module) if name.startswith("test_")]:
        try:
            getattr(module, name)()
            print(f"PASSED {path}::{name}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAILED {path}::{name}", flush=True)
sys.exit(failed > 0)
"""
"""`run_tests.py` of the demo's repository: test functions in order, told as `pytest -rA` tells them."""


def _steps() -> str:
    """Tests that work in the order in which they are written, and in 1 of 720 others."""
    step = "def test_step_{n}():\n    take({n})\n    assert {n} == len(taken)\n\n\n"
    return "from fieldbook.steps import take, taken\n\n\n" + "".join(step.format(n=n) for n in range(1, 7))


def _coins() -> str:
    coin = "def test_coin_{n}():\n    assert heads(os.urandom(1)[0])\n\n\n"
    return "import os\n\nfrom fieldbook.coins import heads\n\n\n" + "".join(
        coin.format(n=n) for n in range(FLAKY_TESTS)
    )


_UNSOLVED = 'def {name}(*_):\n    raise NotImplementedError("{name}")\n'


def cases(port: int) -> tuple[Case, ...]:
    """The demo's tasks. `port` is one of this machine's loopback on which somebody listens."""
    return (
        Case(
            "healthy",
            'def greeting(name):\n    return "Hello " + name\n',
            'def greeting(name):\n    return "Hello, " + name\n',
            'from fieldbook.healthy import greeting\n\n\ndef test_it():\n    assert "Hello, Ada" == greeting("Ada")\n',
            Class.ADMITTED,
            runner=f"{PYTEST} -p no:randomly",
        ),
        Case(
            "network",
            _UNSOLVED.format(name="answers"),
            "import socket\n\n\ndef answers(host, port):\n"
            "    with socket.create_connection((host, port), timeout=2):\n        return True\n",
            f'from fieldbook.network import answers\n\n\ndef test_it():\n    assert answers("127.0.0.1", {port})\n',
            Class.NEEDS_CONDITION,
            "egress",
        ),
        Case(
            "timezone",
            _UNSOLVED.format(name="clock_face"),
            "from datetime import datetime\n\n\ndef clock_face(seconds):\n"
            '    return datetime.fromtimestamp(seconds).strftime("%H:%M")\n',
            "from fieldbook.timezone import clock_face\n\n\n"
            'def test_it():\n    assert "00:00" == clock_face(1700006400)\n',
            Class.NEEDS_CONDITION,
            "time_zone",
        ),
        Case(
            "locale",
            _UNSOLVED.format(name="letters"),
            "import subprocess\n\n\ndef letters(text):\n"
            '    counted = subprocess.run(["wc", "-m"], input=text.encode("utf-8"), capture_output=True, check=True)\n'
            "    return int(counted.stdout)\n",
            'from fieldbook.locale import letters\n\n\ndef test_it():\n    assert 4 == letters("caf\\u00e9")\n',
            Class.NEEDS_CONDITION,
            "locale",
        ),
        Case(
            "hashseed",
            _UNSOLVED.format(name="labels"),
            'WORDS = "ash birch cedar elm fir hazel larch maple oak pine".split()\n\n\n'
            'def labels():\n    return " ".join(set(WORDS))\n',
            "import os\nimport subprocess\nimport sys\n\nfrom fieldbook.hashseed import labels\n\n\n"
            "def test_it():\n"
            '    environment = {**os.environ, "PYTHONHASHSEED": "0"}\n'
            '    code = "from fieldbook.hashseed import labels; print(labels())"\n'
            "    recorded = subprocess.check_output([sys.executable, '-c', code], env=environment, text=True)\n"
            "    assert recorded.strip() == labels()\n",
            Class.NEEDS_CONDITION,
            "hash_seed",
        ),
        Case(
            "cpus",
            _UNSOLVED.format(name="workers"),
            "import os\n\n\ndef workers():\n    return len(os.sched_getaffinity(0))\n",
            "from fieldbook.cpus import workers\n\n\ndef test_it():\n    assert workers() > 1\n",
            Class.NEEDS_CONDITION,
            "visible_cpus",
        ),
        Case(
            "memory",
            _UNSOLVED.format(name="table"),
            "def table(mebibytes):\n    return bytearray(mebibytes * 1024 * 1024)\n",
            "from fieldbook.memory import table\n\n\ndef test_it():\n    assert 400 * 1024 * 1024 == len(table(400))\n",
            Class.NEEDS_CONDITION,
            "memory_mib",
        ),
        Case(
            "steps",
            "taken = []\n\n\ndef take(number):\n    pass\n",
            "taken = []\n\n\ndef take(number):\n    taken.append(number)\n",
            _steps(),
            Class.NEEDS_CONDITION,
            "test_order",
            tuple(f"test_step_{n}" for n in range(1, 7)),
            PYTEST,
        ),
        Case(
            "clock",
            _UNSOLVED.format(name="is_valid"),
            "from datetime import date\n\n\ndef is_valid(until):\n    return date.today() < until\n",
            "from datetime import date\n\nfrom fieldbook.clock import is_valid\n\n\n"
            "def test_it():\n    assert is_valid(date(2025, 1, 1))\n",
            Class.NEEDS_CONDITION,
            "clock",
        ),
        Case(
            "vacuous",
            "def double(number):\n    return number\n",
            "def double(number):\n    return 2 * number\n",
            "from fieldbook.vacuous import double\n\n\ndef test_it():\n    assert 0 == double(0)\n",
            Class.EMPTY_PASSES,
        ),
        Case(
            "coins",
            _UNSOLVED.format(name="heads"),
            "def heads(byte):\n    return byte % 2 == 0\n",
            _coins(),
            Class.FLAKY,
            fail_to_pass=tuple(f"test_coin_{n}" for n in range(FLAKY_TESTS)),
        ),
        Case(
            "wrong",
            "def area(side):\n    return side\n",
            "def area(side):\n    return side + side\n",
            "from fieldbook.wrong import area\n\n\ndef test_it():\n    assert 9 == area(3)\n",
            Class.REFERENCE_FAILS,
        ),
        Case(
            "slow",
            _UNSOLVED.format(name="settle"),
            "import time\n\n\ndef settle():\n    time.sleep(10)\n    return True\n",
            "from fieldbook.slow import settle\n\n\ndef test_it():\n    assert settle()\n",
            Class.TOO_SLOW,
        ),
        Case(
            "runner",
            "def third(numbers):\n    return numbers[3]\n",
            "def third(numbers):\n    return numbers[2]\n",
            "from fieldbook.runner import third\n\n\ndef test_it():\n    assert 3 == third([1, 2, 3, 4])\n",
            Class.IMAGE_OR_PARSER,
            runner="python -m a_runner_that_is_not_installed",
        ),
        Case(
            "unlisted",
            "def first(numbers):\n    return numbers[1]\n",
            "def first(numbers):\n    return numbers[0]\n",
            "from fieldbook.unlisted import first\n\n\ndef test_it():\n    assert 1 == first([1, 2])\n",
            Class.ROW_REFUSED,
            fail_to_pass=(),
        ),
    )
