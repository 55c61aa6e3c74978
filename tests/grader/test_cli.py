from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from grader.cli import main
from grader.errors import LedgerUnwritable, UsageError
from grader.ledger import read_only
from grader.revision import code_revision, files_digest
from grader.verdict import Outcome
from sandbox.errors import CreateError, ImageError, ProviderUnavailable
from tests.grader.gradings import grading
from tests.grader.rows import task_row
from tests.grader.test_exports import asked
from tests.grader.test_ledger import opened
from tests.grader.test_run import write_lines

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Ended:
    status: int
    out: str
    err: str


@dataclass
class Shell:
    """Runs `grader` in this process, in a directory of its own."""

    directory: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Ended:
        status = main([str(argument) for argument in arguments])
        out, err = self.capture.readouterr()
        return Ended(status, out, err)


@pytest.fixture
def grader(place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(place)
    return Shell(place, capfd)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory with a little task set, predictions, and files that are wrong in one way each."""
    write_lines(tmp_path / "tasks.jsonl", [task_row("demo__one-1"), task_row("demo__two-2")])
    write_lines(tmp_path / "p.jsonl", [{"instance_id": "demo__one-1", "model_name_or_path": "m", "model_patch": "x"}])
    (tmp_path / "broken.jsonl").write_text('{"instance_id": "a"}\n{nope\n')
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.jsonl").write_text("")
    write_lines(
        tmp_path / "unknown.jsonl", [{"instance_id": "demo__oen-1", "model_name_or_path": "m", "model_patch": ""}]
    )
    (tmp_path / "bad.toml").write_text("run = \n")
    (tmp_path / "unknown.toml").write_text('taskset = "tasks.jsonl"\nrun = "r"\n[conditions]\negres = "open"\n')
    write_lines(tmp_path / "recipes.jsonl", [{"instance_id": "demo__one-1"}])
    pinned = f"registry.example/one@sha256:{'0' * 64}"
    write_lines(tmp_path / "images.jsonl", [{"instance_id": "demo__one-1", "image": pinned}])
    write_lines(tmp_path / "tags.jsonl", [{"instance_id": "demo__one-1", "image": "registry.example/one:latest"}])
    write_lines(tmp_path / "others.jsonl", [{"instance_id": "another-1", "image": pinned}])
    write_lines(tmp_path / "extra.jsonl", [{"instance_id": "demo__one-1", "image": pinned, "digest": "x"}])
    return tmp_path


GRADE = ("grade", "--taskset", "tasks.jsonl", "--run", "r")
IMAGES = ("images", "list", "--state-dir")
CLUSTER = (*GRADE, "--provider", "kubernetes")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param((*GRADE[:3],), "`run` is not given; add --run", id="no run"),
        pytest.param(("grade", "--run", "r"), "`taskset` is not given; add --taskset", id="no task set"),
        pytest.param(("grade", "--taskset", "none.jsonl", "--run", "r"), "none.jsonl", id="missing task set"),
        pytest.param(("grade", "--taskset", "broken.jsonl", "--run", "r"), "broken.jsonl", id="malformed task set"),
        pytest.param(("grade", "--taskset", "binary.jsonl", "--run", "r"), "binary.jsonl", id="binary task set"),
        pytest.param(("grade", "--taskset", "empty.jsonl", "--run", "r"), "empty.jsonl", id="empty task set"),
        pytest.param((*GRADE, "--only", "demo__oen-1"), "near: demo__one-1", id="unknown id"),
        pytest.param((*GRADE, "--only", ""), "--only names no task", id="no id"),
        pytest.param((*GRADE, "--runs-dir", "tasks.jsonl"), "tasks.jsonl/r: cannot be made", id="runs dir is a file"),
        pytest.param(
            (*IMAGES, "p.jsonl"), "p.jsonl: cannot be made or written (Not a directory)", id="state is a file"
        ),
        pytest.param((*GRADE, "--patches", "none.jsonl"), "none.jsonl: cannot be read", id="missing patches"),
        pytest.param(
            (*GRADE, "--patches", "broken.jsonl"), "broken.jsonl:1: has no model_name", id="malformed patches"
        ),
        pytest.param(
            (*GRADE, "--patches", "unknown.jsonl"), "unknown.jsonl:1: 'demo__oen-1' (near", id="patch of no task"
        ),
        pytest.param((*GRADE, "--patches", "empty.jsonl"), "holds no prediction", id="no predictions"),
        pytest.param((*GRADE, "--patches", "p.jsonl", "--only", "demo__two-2"), "no prediction for", id="none left"),
        pytest.param((*GRADE, "--recipes", "none.jsonl"), "none.jsonl", id="missing recipes"),
        pytest.param((*GRADE, "--recipes", "empty.jsonl"), "empty.jsonl: holds no recipe", id="no recipes"),
        pytest.param((*GRADE, "--recipes", "recipes.jsonl"), "recipes.jsonl, row 1", id="malformed recipes"),
        pytest.param((*GRADE, "--run", "../x"), "--run", id="run twice"),
        pytest.param(("grade", "--taskset", "tasks.jsonl", "--run", "../x"), "`run` is '../x'", id="run is a path"),
        pytest.param((*GRADE, "--concurrency", "0"), "`limits.concurrency` is 0", id="out of range"),
        pytest.param((*GRADE, "--concurrency", "many"), "--concurrency", id="not a number"),
        pytest.param((*GRADE, "--egress", "maybe"), "--egress", id="not a choice"),
        pytest.param((*GRADE, "--provider", "moon"), "--provider", id="no such provider"),
        pytest.param((*GRADE, "--namespace", "x"), "say --provider kubernetes", id="flag of the other provider"),
        pytest.param((*CLUSTER, "--state-dir", "x"), "of the kubernetes provider but of the local", id="and back"),
        pytest.param(
            CLUSTER, "demo__one-1 and 1 more tasks cannot run on a cluster: it names no image", id="no images"
        ),
        pytest.param(
            (*CLUSTER, "--images", "images.jsonl"), "demo__two-2 cannot run on a cluster: it names no", id="one without"
        ),
        pytest.param((*GRADE, "--images", "tags.jsonl"), "is not fixed by a digest", id="image by tag"),
        pytest.param((*GRADE, "--images", "others.jsonl"), "others.jsonl: has no image for a task of", id="no task's"),
        pytest.param((*GRADE, "--images", "extra.jsonl"), "extra.jsonl, line 1: 'digest' is not known", id="extra"),
        pytest.param((*GRADE, "--images", "none.jsonl"), "none.jsonl", id="missing images"),
        pytest.param((*GRADE, "--runs-dir", "\udcff"), "argument \\xff is not UTF-8", id="no text"),
        pytest.param((*GRADE, "--colour"), "--colour", id="unknown flag"),
        pytest.param(("grade", "none.toml"), "none.toml: cannot be read", id="missing campaign"),
        pytest.param(("grade", "bad.toml"), "bad.toml: is not TOML", id="malformed campaign"),
        pytest.param(("grade", "unknown.toml"), "did you mean `egress`?", id="unknown key"),
        pytest.param(("report", "none"), "holds no ledger", id="missing run"),
        pytest.param(("report", "x" * 300), "cannot be looked into (File name too long)", id="no name of a run"),
        pytest.param(("report", "none", "--format", "xml"), "--format", id="unknown format"),
        pytest.param(("nonsense",), "nonsense", id="unknown command"),
    ],
)
def test_bad_input_is_a_short_message_and_exit_2(
    grader: Shell, place: Path, arguments: tuple[str, ...], said: str
) -> None:
    """What a person got wrong is told in a line or two on stderr; nothing is begun, and no traceback is shown."""
    ended = grader(*arguments)

    assert 2 == ended.status, ended.err
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.splitlines()) <= 2
    assert "" == ended.out
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("image", "recipe", "said"),
    [
        ("oci:/nope", {}, "/nope: No such file or directory"),
        (f"sha256:{'0' * 64}", {}, f"sha256:{'0' * 64} is not in the store"),
        (None, {"base": "nope"}, "image reference 'nope' is none of"),
        (None, {"python": "9.9"}, "Python 9.9 is not on this machine"),
    ],
)
def test_an_image_that_is_not_to_be_had_is_told_before_anything_is_graded(
    grader: Shell, place: Path, image: str | None, recipe: dict[str, str], said: str
) -> None:
    """What `--images` or a recipe names wrongly is bad input, not infrastructure that may be better tomorrow."""
    (place / "source").mkdir()
    source = {"kind": "directory", "path": "source"}
    made = {"instance_id": "demo__one-1", "python": "3", "source": source, "install": [], "test_cmd": "true", **recipe}
    write_lines(place / "recipes.jsonl", [made])
    write_lines(place / "images.jsonl", [{"instance_id": "demo__one-1", "image": image or "oci:x"}])
    given = ("--images", "images.jsonl") if image else ("--recipes", "recipes.jsonl")

    ended = grader(*GRADE, "--state-dir", "state", "--only", "demo__one-1", *given)

    assert 2 == ended.status, ended.err
    assert f"error: demo__one-1: {said}" in ended.err.replace("image sha", "sha")
    with read_only(place / "runs/r") as ledger:
        assert [] == list(ledger.gradings())


def test_logs_that_cannot_be_stored_are_told_before_anything_is_graded(grader: Shell, place: Path) -> None:
    """No suite is paid for whose log would be lost."""
    (place / "runs/r").mkdir(parents=True)
    (place / "runs/r/logs").write_text("in the way")

    ended = grader(*GRADE, "--state-dir", "state")

    assert 2 == ended.status, ended.err
    assert "r/logs: cannot be made or written (File exists), and logs are kept there" in ended.err
    with read_only(place / "runs/r") as ledger:
        assert [] == list(ledger.gradings())


def finished_run(place: Path) -> None:
    with opened(place / "runs" / "r", asked("demo__one-1"), asked("demo__two-2"), asked("three", "n")) as ledger:
        ledger.append([grading("demo__one-1", reasons=("fine \x1b[31m",))])
        ledger.append([grading("demo__two-2", Outcome.UNRESOLVED), grading("demo__two-2")])


def test_report_prints_a_table_and_sums_that_add_up(grader: Shell, place: Path) -> None:
    """Each asked grading is a line, models have their own sums, a contradiction is said, and no escape gets through."""
    finished_run(place)

    ended = grader("report", "r")

    assert 0 == ended.status
    assert "demo__one-1" in ended.out
    assert "not run" in ended.out
    assert "contradiction: demo__two-2 (m) was unresolved and resolved" in ended.out
    assert "n: 1 expected = 0 resolved" in ended.out
    assert "3 expected = 2 resolved + 0 unresolved" in ended.out.splitlines()[-1]
    assert "\x1b" not in ended.out


def test_report_as_json_holds_the_same_sums(grader: Shell, place: Path) -> None:
    """A script reads the denominators without parsing a table."""
    finished_run(place)

    told = json.loads(grader("report", "runs/r", "--json").out)

    assert (3, 2, 1) == (told["expected"], told["resolved"], told["not_run"])
    assert {"m", "n"} == told["models"].keys()
    assert ["unresolved", "resolved"] == told["contradictions"][0]["outcomes"]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "swebench"])
def test_report_exports_and_says_where(grader: Shell, place: Path, form: str) -> None:
    """The path of what was written is the only line on stdout."""
    finished_run(place)

    ended = grader("report", "r", "--export", "out", "--format", form)

    assert 0 == ended.status, ended.err
    assert (place / ended.out.strip()).exists()


def test_a_closed_stdout_is_no_traceback(place: Path) -> None:
    """`grader report r | true` ends quietly."""
    finished_run(place)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "grader.cli", "report", "r"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)

    assert (141, b"") == (done.returncode, done.stderr)


def in_a_shell(place: Path, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of `line`, in which `grader` is the command and `$GRADE` begins a run of two refused tasks."""
    setting = f'grader() {{ {sys.executable} -m grader.cli "$@"; }}; GRADE="{" ".join(GRADE)} --state-dir state"; '
    return subprocess.run(
        ["bash", "-c", setting + line],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


LOST = "error: standard output cannot be written (No space left on device); mend that, then give the same command again"


@pytest.mark.parametrize("command", ["--help", "tasks list tasks.jsonl", "$GRADE", "$GRADE --json"])
def test_a_stdout_that_takes_nothing_is_one_line_and_keeps_what_was_recorded(place: Path, command: str) -> None:
    """Results for a full disk are told as such; a run gives its sum, and what it has recorded stays."""
    done = in_a_shell(place, f"grader {command} > /dev/full")

    assert (4, LOST) == (done.returncode, done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr
    if command.startswith("$GRADE"):
        assert "2 expected = " in done.stderr
        with read_only(place / "runs/r") as ledger:
            assert 2 == len(list(ledger.gradings()))


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("grader tasks list tasks.jsonl >&-", 0),
        ("grader $GRADE --json >&-", 3),
        ("grader $GRADE --json 2>&- | cat; exit ${PIPESTATUS[0]}", 3),
        ("grader $GRADE --json 2>/dev/full | cat; exit ${PIPESTATUS[0]}", 3),
        ("grader $GRADE <&- >&- 2>&-", 3),
        ("grader grade 2>/dev/full", 2),
        ("grader grade 2>&-", 2),
    ],
)
def test_a_closed_or_full_stream_costs_only_what_is_said_there(place: Path, line: str, status: int) -> None:
    """The run goes its way and ends with its own status; no file of the run takes the place of a closed stream."""
    done = in_a_shell(place, line)

    assert (status, False) == (done.returncode, "Traceback" in done.stderr)
    if "$GRADE" in line:
        assert (2 if "| cat" in line else 0) == len(done.stdout.splitlines())
        with read_only(place / "runs/r") as ledger:
            assert 2 == len(list(ledger.gradings()))


def test_a_stdout_that_is_not_utf_8_gets_every_line(place: Path) -> None:
    """What it cannot encode is escaped: in a table by Python's rules, in JSON by JSON's."""
    model = "modèle-模型"
    write_lines(place / "p.jsonl", [{"instance_id": "demo__one-1", "model_name_or_path": model, "model_patch": ""}])
    table = in_a_shell(place, "grader $GRADE --patches p.jsonl", PYTHONIOENCODING="ascii")
    lines = in_a_shell(place, "grader $GRADE --patches p.jsonl --json", PYTHONIOENCODING="ascii")

    assert (3, 3) == (table.returncode, lines.returncode), table.stderr + lines.stderr
    assert r"mod\xe8le-\u6a21\u578b" in table.stdout
    assert model == json.loads(lines.stdout)["model_name_or_path"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("wrong"), 2),
        (ProviderUnavailable("no namespaces"), 2),
        (ImageError("no such image"), 2),
        (CreateError("no room", phase="start"), 4),
        (LedgerUnwritable("disk full"), 4),
        (ExceptionGroup("several", [ExceptionGroup("inner", [ProviderUnavailable("no namespaces")])]), 2),
    ],
)
def test_errors_we_know_are_one_line(capfd: pytest.CaptureFixture[str], error: Exception, status: int) -> None:
    """Also out of a task group, an error is its message and its exit status."""
    assert status == _launched(lambda: _raise(error))
    err = capfd.readouterr().err
    assert err.startswith("error: ")
    assert 1 == len(err.splitlines())


def test_a_defect_is_not_hidden() -> None:
    """An error that nobody foresaw keeps its traceback."""
    with pytest.raises(ZeroDivisionError):
        _launched(lambda: _raise(ZeroDivisionError()))


def test_debugging_shows_the_traceback(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """GRADER_DEBUG=1 is for those who look for a defect."""
    monkeypatch.setenv("GRADER_DEBUG", "1")

    assert 2 == _launched(lambda: _raise(UsageError("wrong")))
    assert "Traceback" in capfd.readouterr().err


def _raise(error: Exception) -> None:
    raise error


def _launched(body: Callable[[], object]) -> int:
    from cyclopts import App

    from grader.console import launch

    app = App(name="x")
    app.default(body)
    return launch(app, [])


def test_a_ctrl_c_while_the_command_imports_is_one_as_well() -> None:
    """It ends with 130 and no traceback, however early it comes."""
    script = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            raise KeyboardInterrupt
from importlib import import_module
main = import_module(sys.argv[2]).main
sys.meta_path.insert(0, Interrupting())
sys.exit(main(sys.argv[3:]))
"""
    for words in (
        ("cyclopts", "grader.cli", "report", "none"),
        ("grader.console", "grader.cli", "report", "none"),
        ("grader.ledger", "grader.cli", "report", "none"),
        ("cyclopts", "studies.cli", "compare", "none", "other"),
        ("grader.ledger", "studies.cli", "compare", "none", "other"),
    ):
        done = subprocess.run([sys.executable, "-c", script, *words], cwd=REPOSITORY, capture_output=True, check=False)
        assert (130, False) == (done.returncode, b"Traceback" in done.stderr), words


def test_help_and_version_import_no_sandbox_and_no_tables() -> None:
    """The first screen is quick: nothing that only a command needs is loaded."""
    script = (
        "import sys; from grader.cli import main; main(['--help']); heavy = {'pydantic', 'anyio', 'pyarrow',"
        " 'datasets', 'scipy', 'structlog', 'sandbox'}; print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)

    assert "grade " in done.stdout
    assert "[]" == done.stdout.splitlines()[-1]


def test_the_version_names_the_code(grader: Shell) -> None:
    """`--version` is what the verdicts carry."""
    assert f"grader {code_revision()}" == grader("--version").out.strip()


def test_outside_a_checkout_the_revision_follows_the_files(tmp_path: Path) -> None:
    """An installed copy is known by its content: one changed byte is another revision."""
    (tmp_path / "grader").mkdir()
    (tmp_path / "grader" / "a.py").write_text("x = 1\n")
    before = code_revision(tmp_path)
    (tmp_path / "grader" / "a.py").write_text("x = 2\n")

    assert before != code_revision(tmp_path)
    assert code_revision(tmp_path).endswith(f"+files.{files_digest(tmp_path)[:12]}")


def test_in_a_checkout_the_revision_is_the_commit_and_says_when_it_is_dirty(tmp_path: Path) -> None:
    """A verdict given by changed code does not carry the name of the unchanged."""
    (tmp_path / "grader").mkdir()
    (tmp_path / "grader" / "a.py").write_text("x = 1\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True)
    clean = code_revision(tmp_path)
    (tmp_path / "grader" / "b.py").write_text("")

    assert clean.endswith(f"+g{commit.stdout.strip()}")
    assert f"{clean}.dirty" == code_revision(tmp_path)


def test_without_the_extra_one_sentence_says_what_to_install(place: Path) -> None:
    """`kubernetes` is an extra: where it is absent the command ends with 2 and the install command."""
    script = (
        "import sys; sys.modules['kubernetes'] = None; from grader.cli import main; "
        "sys.exit(main(['grade', '--taskset', 'tasks.jsonl', '--run', 'r', '--only', 'demo__one-1', "
        "'--provider', 'kubernetes', '--images', 'images.jsonl']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=place, env=environment, capture_output=True, text=True, check=False
    )

    assert 2 == done.returncode, done.stderr
    assert ["error: the Kubernetes client is not installed: pip install 'sandman-grader[kubernetes]'"] == [
        line for line in done.stderr.splitlines() if not line.startswith("note")
    ]


def test_the_script_of_the_readme_runs(place: Path) -> None:
    """Saved to a file as it stands, it does what it says."""
    script = (REPOSITORY / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    (place / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(place / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert r"0 b'hello\n'" in done.stdout.splitlines(), done.stderr
