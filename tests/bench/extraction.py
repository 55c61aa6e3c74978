"""`python -m tests.bench.extraction` tries every kind of edit with our extraction and with the commands of its peers,
measures it on a real repository, and writes both into docs/extraction.md.

`--table` and `--times` do one of the two. What is measured needs an image of a repository in the local store.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import resource
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from grader import apply
from grader.extract import Extraction, extract
from grader.extraction.baseline import Baseline, record
from grader.extraction.compare import differences
from grader.extraction.exclusions import Exclusions
from grader.patch import EMPTY, Patch, parse
from sandbox import LocalConfig, Provider, Sandbox, SandboxSpec, open_provider
from sandbox.local.scratch import state_directory
from sandbox.local.store import ImageStore
from sandbox.manifest import Kind, Manifest
from tests.grader.edits import EDITS, Edit, write_tree
from tests.grader.growth import peak_kib
from tests.grader.tasks import Seeded

PAGE = Path("docs/extraction.md")
SPEC = SandboxSpec(image="host")
STEP_S = 10
LOOK_S = 0.002
HUGE = {"a sparse file of a terabyte"}
"""No copy of the tree can be made in sensible time."""

_NO_NESTED = "find . -type d -name .git -not -path ./.git -prune -exec rm -rf {} +; "
_NO_BINARIES = (
    "git status --porcelain | grep -E '^(M| M|\\?\\?|A| A)' | cut -c4- | while read -r f; do"
    ' if [ -f "$f" ] && { file "$f" | grep -q executable || git check-attr binary "$f" | grep -q \'binary: set\'; };'
    ' then git rm -qf "$f" 2>/dev/null || rm -f "$f"; fi; done; '
)
_PRISTINE = (
    "mkdir -p $OWN/objects/info $OWN/refs; echo $BASE >$OWN/HEAD; echo $PWD/.git/objects >$OWN/objects/info/alternates;"
    ' own() { GIT_DIR=$OWN GIT_WORK_TREE=$PWD GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 git "$@"; };'
    " own read-tree $BASE && own ls-files --others -z -- . ':(exclude,glob)**/node_modules/**'"
    " ':(exclude,glob)**/*.egg-info/**' >$OWN/new; [ ! -s $OWN/new ] || own --literal-pathspecs add -N -f"
    " --pathspec-from-file=$OWN/new --pathspec-file-nul; own diff --binary --no-color --no-ext-diff --no-textconv"
    " --no-renames --src-prefix=a/ --dst-prefix=b/ $BASE -- ."
)


@dataclass(frozen=True)
class Peer:
    """A system's way to the patch: the commands that it runs, and what it makes of their output."""

    name: str
    command: str
    """`$BASE` is the base commit, `$OWN` a free path."""
    text: bool = True
    """It decodes the patch as text."""
    strips: bool = False
    """It strips white space off both ends, and adds a final newline later."""

    def patch(self, output: bytes) -> bytes:
        if self.text:
            output = output.decode("utf-8", "replace").replace("\r\n", "\n").encode()
        return output.strip() + b"\n" if self.strips else output


PEERS = (
    Peer("`git diff`", "git diff", text=False),
    Peer("`git diff HEAD --binary`", "git diff HEAD --binary", text=False),
    Peer("`add -A; diff --cached`", "git add -A && git diff --cached", text=False),
    Peer("SWE-agent, R2E-Gym", "git add -A && git diff --cached"),
    Peer(
        "OpenHands",
        _NO_NESTED + "git add -A && { " + _NO_BINARIES + " git diff --no-color --cached $BASE; }",
        strips=True,
    ),
    Peer(
        "OpenHands benchmarks",
        "git add -A && git -c user.name=o -c user.email=o commit --no-verify -qm edits >/dev/null; git diff $BASE HEAD",
        strips=True,
    ),
    Peer("a runner's own git directory", _PRISTINE, text=False),
)
SOURCES = """\
What the columns run: SWE-agent 1 (`tools/review_on_submit_m`) and R2E-Gym (`get_patch`) stage all and read the staged
diff as text. OpenHands 0.x (`complete_runtime`) removes nested git directories and files that it takes for binary
first (it asks `file`, which calls many a Python source "executable" where it is installed, as here); its newer
benchmarks commit; both strip the diff and end it with a newline again. "A runner's own git directory" is the hardest of
the public ways that we found (DeepSWE's capture): a pristine directory that borrows the repository's objects, its own
index and configuration, ignored files included. "Wrong" has the number of paths that a grading would see other than the
agent left them, in silence. "No patch": the commands failed, or did not end within 10 s. What our own declaration
leaves out is held against nobody."""


async def asked_of_all(provider: Provider, folder: Path, edit: Edit) -> list[str]:
    """What our extraction and each peer make of one edit, in words."""
    seeded = Seeded(provider, write_tree(folder / "repo", edit.ships))
    async with seeded.sandbox(SPEC) as box:
        baseline = await record(box, "/testbed")
        await box.run(f"cd /testbed && {edit.edit}", timeout_s=60)
        ours = await extract(box, baseline, seeded)
        if edit.name in HUGE:
            return [_ours(ours), *["not asked"] * len(PEERS)]
        base = (await _fresh_commit(seeded)).decode()
        patches = [await _peers_patch(box, peer, at, base) for at, peer in enumerate(PEERS)]
        wanted = await box.baseline("/testbed")
    judged: dict[bytes | None, str] = {None: "no patch"}
    async with seeded.sandbox(SPEC) as fresh:
        for at, patch in enumerate(patches):
            if patch not in judged:
                assert patch is not None
                judged[patch] = await _judged(fresh, baseline, patch, f"/copies/{at}", wanted)
    return [_ours(ours), *(judged[patch] for patch in patches)]


def _ours(extraction: Extraction) -> str:
    if not extraction.faithful:
        return "said: " + ", ".join(sorted({d.what.replace("_", " ") for d in extraction.differences if d.matters}))
    notes = sorted({difference.what.replace("_", " ") for difference in extraction.differences})
    return "exact" + (f", noted: {', '.join(notes)}" if notes else "")


async def _fresh_commit(seeded: Seeded) -> bytes:
    async with seeded.sandbox(SPEC) as box:
        return (await box.run("cd /testbed && git rev-parse HEAD", timeout_s=20)).output.strip()


async def _peers_patch(box: Sandbox, peer: Peer, at: int, base: str) -> bytes | None:
    """What the peer's commands say of a copy of the agent's tree. None: they failed or did not end."""
    ran = await box.run(
        f"mkdir -p /copies && cp -a /testbed /copies/{at} && cd /copies/{at} && export BASE={base} OWN=/tmp/own-{at}"
        f" && timeout {STEP_S} bash -c {_quoted(peer.command)} 2>/dev/null",
        timeout_s=60,
        max_output_bytes=1 << 25,
        session=f"peer{at}",
    )
    return None if ran.exit_code != 0 or ran.truncated else peer.patch(ran.output)


async def _judged(fresh: Sandbox, baseline: Baseline, patch: bytes, root: str, wanted: Manifest) -> str:
    parsed = parse(patch)
    if not isinstance(parsed, Patch):
        return "refused"
    await fresh.run(f"mkdir -p /copies && cp -a /testbed {root}", timeout_s=60, session="judge")
    applied = await apply.apply(fresh, parsed, EMPTY, workdir=root, base_commit="HEAD")
    if not isinstance(applied, apply.Applied):
        return "refused"
    given = await fresh.baseline(root)
    found = differences(wanted, given, exclusions=Exclusions(), tracked=baseline.tracked)
    wrong = sum(difference.matters for difference in found)
    return f"wrong ({wrong})" if wrong else "exact"


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


async def table() -> list[str]:
    """The lines of the table, and a line of sums."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="sandman-extraction-") as folder:
        async with open_provider(LocalConfig(state_dir=Path(folder) / "state")) as provider:
            for at, edit in enumerate(EDITS):
                answers = await asked_of_all(provider, Path(folder) / str(at), edit)
                rows.append((edit.name, answers))
                print(edit.name, answers, sep=": ", file=sys.stderr)
    columns = list(zip(*(answers for _, answers in rows), strict=True))
    exact = [sum(answer.startswith("exact") for answer in column) for column in columns]
    said = sum(answer.startswith("said") for answer in columns[0])
    head = ["the agent's edit", "ours", *(peer.name for peer in PEERS)]
    return [
        f"{len(rows)} kinds of edits. Ours: {exact[0]} exact, {said} not faithful and said, "
        f"{len(rows) - exact[0] - said} silently wrong.",
        "",
        "| " + " | ".join(head) + " |",
        "| --- " * len(head) + "|",
        *(f"| {name} | {' | '.join(answers)} |" for name, answers in rows),
        f"| **exact** | {' | '.join(f'**{count}**' for count in exact)} |",
    ]


WORK = """cd /testbed && git ls-files '*.py' | head -300 | tail -20 | while read -r f; do echo '# x' >>"$f"; done
mkdir -p new && for i in 1 2 3 4 5; do echo "x = $i" >new/m$i.py; done
rm -f README.rst; head -c 100000 /dev/urandom >new/b.bin
python3 -c 'import compileall; compileall.compile_dir("django", quiet=2)' 2>/dev/null"""


async def times(rounds: int = 7) -> list[str]:
    """Extraction with proof on a repository of Django's size: lines for the page, or one that says what is missing."""
    config = LocalConfig()
    store = ImageStore(state_directory(config.state_dir))
    images = [image for image in store.list() if "Django" in image.name]
    if not images:
        return ["No image of Django is in the local store: not measured."]
    walls = []
    async with open_provider(config) as provider, provider.sandbox(SandboxSpec(image=images[0].digest)) as box:
        baseline = await record(box, "/testbed")
        size = sum(entry.size for entry in baseline.manifest.values() if entry.kind is Kind.FILE)
        await box.run(WORK, timeout_s=120)
        for _ in range(rounds):
            began = asyncio.get_running_loop().time()
            extraction = await extract(box, baseline, provider)
            walls.append(asyncio.get_running_loop().time() - began)
            assert extraction.faithful, extraction.differences
    spent = [float((await _apart("--spent", images[0].digest, str(count)))[0][0]) for count in (1, 1 + rounds)]
    phases = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in extraction.phases_s.items())
    return [
        f"{images[0].name}: {len(baseline.manifest)} paths, {size / 1e6:.0f} MB. The agent changed "
        f"{len(extraction.carried)} files and compiled the package "
        f"({sum(each.entries for each in extraction.excluded)} cache files left out).",
        "",
        f"{rounds} extractions with proof: median {statistics.median(walls):.2f} s, best {min(walls):.2f} s, worst "
        f"{max(walls):.2f} s. Processor time of one, of this process and of all in both sandboxes: "
        f"{(spent[1] - spent[0]) / rounds:.2f} s. The last one's phases: {phases}.",
        "",
        *await _memory(images[0].digest),
    ]


async def _apart(*arguments: str) -> tuple[list[str], _Gits]:
    """The last words of this module, run with these arguments in a process of its own, and what its gits took."""
    command = (sys.executable, "-m", "tests.bench.extraction", *arguments)
    ran = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    told = asyncio.create_task(ran.communicate())
    gits = _Gits()
    while not told.done():
        gits.look(ran.pid)
        await asyncio.sleep(LOOK_S)
    said, _ = await told
    return said.decode().splitlines()[-1].split(), gits


@dataclass
class _Gits:
    """The most memory (KiB) that a git of a process's had: by looking at the peaks of those that run."""

    here: int = 0
    in_sandboxes: int = 0

    def look(self, pid: int) -> None:
        """`pid` runs git on this host itself; those further down are a sandbox's."""
        for child in _children(pid):
            self.here = max(self.here, _git_peak_kib(child))
            below = _children(child)
            while below:
                self.in_sandboxes = max(self.in_sandboxes, *map(_git_peak_kib, below))
                below = [each for one in below for each in _children(one)]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _git_peak_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        if status.startswith("Name:\tgit\n") and "VmHWM:" in status:
            return int(status.partition("VmHWM:")[2].split()[0])
    return 0


async def _spent(image: str, rounds: str) -> None:
    """Print the processor time of a rollout with so many extractions, its sandboxes included: they are our children."""
    async with open_provider(LocalConfig()) as provider, provider.sandbox(SandboxSpec(image=image)) as box:
        baseline = await record(box, "/testbed")
        await box.run(WORK, timeout_s=120)
        for _ in range(int(rounds)):
            await extract(box, baseline, provider)
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(sum(usage.ru_utime + usage.ru_stime for usage in usages))


CARRIED = (
    ("1 file of 1 MB", "head -c 1000000 /dev/urandom >a"),
    ("24 files of 1 MB", "for i in $(seq 24); do head -c 1000000 /dev/urandom >f$i; done"),
    ("24 files of 1 MB, text", "for i in $(seq 24); do head -c 740000 /dev/urandom | base64 >f$i; done"),
    ("1 file of 15 MB", "head -c 15000000 /dev/urandom >a"),
    ("1 file of 15 MB, text", "head -c 11100000 /dev/urandom | base64 >a"),
    ("1 file of 15 MB, one line", "head -c 11100000 /dev/urandom | base64 -w 0 >a"),
)


async def _memory(image: str) -> list[str]:
    """What an extraction takes, by what is carried."""
    rows = [
        "| what is carried | this process, before | its growth | git on this host, peak | git in the sandbox, peak |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, command in CARRIED:
        peaks, gits = await _apart("--memory", image, command)
        before, after = map(int, peaks)
        shown = [f"{kib / 1024:.0f} MB" for kib in (before, after - before, gits.here, gits.in_sandboxes)]
        rows.append(f"| {name} | {' | '.join(shown)} |")
    return rows


async def _one(image: str, command: str) -> None:
    """Print the peak of this process, in KiB, before and after an extraction of what `command` makes."""
    async with open_provider(LocalConfig()) as provider, provider.sandbox(SandboxSpec(image=image)) as box:
        baseline = await record(box, "/testbed")
        await box.run(f"cd /testbed && {command}", timeout_s=120)
        before = peak_kib()
        extraction = await extract(box, baseline, provider)
        assert extraction.faithful, extraction.differences
        after = peak_kib()
    print(before, after)


def put(section: str, lines: list[str]) -> None:
    """Replace what stands between a section's two marks on the page."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {section} -->\n", f"<!-- end of {section} -->\n"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    when = datetime.datetime.now(datetime.UTC).date().isoformat()
    load = os.getloadavg()[0]
    head = f"Written by `python -m tests.bench.extraction` on {when}: {os.cpu_count()} cores, load {load:.1f}, "
    head += f"niceness {os.nice(0)}.\n\n"
    PAGE.write_text(before + begin + head + "\n".join(lines) + "\n" + end + after, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Ask, measure, and write the page."""
    if arguments[:1] in (["--memory"], ["--spent"]):
        asyncio.run((_one if arguments[0] == "--memory" else _spent)(*arguments[1:]))
        return 0
    if arguments != ["--table"]:
        put("times", asyncio.run(times()))
    if arguments != ["--times"]:
        put("table", [SOURCES, "", *asyncio.run(table())])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
