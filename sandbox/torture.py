"""The torture suite: what a persistent shell must answer to commands that break naive ones.

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    async def test_torture(case, box):
        await run_case(box, case)

Cases are data. Each runs in a session of its own in any object with the `Sandbox` protocol's `run`. A case marked
`needs_isolation` may signal every process that it can see: run it only where that is the sandbox's own.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from sandbox.spec import ExecResult


class Runs(Protocol):
    """What the torture suite needs of a sandbox."""

    async def run(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        max_output_bytes: int = 1 << 20,
        session: str = "main",
    ) -> ExecResult: ...


@dataclass(frozen=True)
class Step:
    """One command and what its result must be. None: not checked."""

    command: str | bytes
    output: bytes | None = None
    """The whole output."""
    has: bytes | None = None
    """A part of the output."""
    exit_code: int | None = 0
    restarted: bool = False
    timed_out: bool = False
    truncated: bool = False
    output_bytes: int | None = None
    stdin: bytes = b""
    timeout_s: float = 60.0
    max_output_bytes: int = 1 << 20
    within_s: float | None = None


@dataclass(frozen=True)
class Case:
    """Commands of one session, in order."""

    name: str
    steps: tuple[Step, ...]
    needs_isolation: bool = False
    slow: bool = False
    """It moves a gigabyte or makes many files: minutes on a busy machine."""


async def run_case(box: Runs, case: Case) -> None:
    """Run a case. Raises AssertionError that names the case, the command and what differs."""
    for step in case.steps:
        begun = time.monotonic()
        result = await box.run(
            step.command,
            timeout_s=step.timeout_s,
            stdin=step.stdin,
            max_output_bytes=step.max_output_bytes,
            session=f"torture {case.name}",
        )
        differences = _differences(step, result, time.monotonic() - begun)
        if differences:
            raise AssertionError(f"{case.name}: {step.command!r}: {'; '.join(differences)}; got {_shown(result)}")


def _differences(step: Step, result: ExecResult, took_s: float) -> list[str]:
    expected = {
        "exit_code": step.exit_code,
        "output": step.output,
        "shell_restarted": step.restarted,
        "timed_out": step.timed_out,
        "truncated": step.truncated,
        "output_bytes": step.output_bytes,
    }
    found = [
        f"{name} should be {value!r}"
        for name, value in expected.items()
        if value is not None and getattr(result, name) != value
    ]
    if step.has is not None and step.has not in result.output:
        found.append(f"{step.has!r} should be in the output")
    if step.within_s is not None and took_s > step.within_s:
        found.append(f"it took {took_s:.2f} s, not under {step.within_s:g} s")
    return found


def _shown(result: ExecResult) -> str:
    output = result.output if len(result.output) < 400 else result.output[:200] + b" ... " + result.output[-200:]
    return (
        f"exit_code={result.exit_code} output={output!r} restarted={result.shell_restarted}"
        f" timed_out={result.timed_out} truncated={result.truncated} output_bytes={result.output_bytes}"
    )


async def run_parallel_sessions(box: Runs, sessions: int = 50) -> None:
    """Run as many sessions at once, each with a state and an output of its own. Raises AssertionError."""

    async def one(number: int) -> None:
        first = f"x={number}; cd /usr; export Y=$x; f() {{ echo f$x; }}; sleep 1; echo $x"
        for command, expected in (
            (first, f"{number}\n"),
            ('echo "$x $PWD $Y $(f)"', f"{number} /usr {number} f{number}\n"),
        ):
            result = await box.run(command, timeout_s=120, session=f"parallel {number}")
            if result.output != expected.encode():
                raise AssertionError(f"session {number}: {command!r} should give {expected!r}; got {_shown(result)}")

    await asyncio.gather(*(one(number) for number in range(sessions)))


def _case(name: str, *steps: Step, needs_isolation: bool = False, slow: bool = False) -> Case:
    return Case(name, steps, needs_isolation, slow)


S = Step

STATE = (
    _case("a directory survives", S("cd /usr"), S("pwd", b"/usr\n")),
    _case("a plain variable survives", S("x='a  b'"), S('echo "$x"', b"a  b\n")),
    _case("an exported variable survives", S("export x=1"), S("sh -c 'echo $x'", b"1\n")),
    _case("a function survives", S("f() { echo in-f $1; }"), S("f 7", b"in-f 7\n")),
    _case("an alias survives", S("alias hi='echo hello'"), S("hi", b"hello\n")),
    _case("an array survives", S("a=(1 'two 2')"), S('echo "${#a[@]} ${a[1]}"', b"2 two 2\n")),
    _case(
        "options survive", S("set -o pipefail; shopt -s nullglob"), S("false | true; shopt -q nullglob", exit_code=0)
    ),
    _case("the last status survives", S("(exit 7)", exit_code=7), S("echo $?", b"7\n"), S("echo $?", b"0\n")),
    _case("declare is not made local", S("declare y=3"), S("echo $y", b"3\n")),
    _case(
        "a background job survives", S("sleep 30 &"), S("jobs -r | wc -l", b"1\n"), S("kill %1; wait %1", exit_code=143)
    ),
    _case(
        "a descriptor that a command opened survives", S("exec 3< <(echo kept)"), S("read x <&3; echo $x", b"kept\n")
    ),
    _case("a trap survives", S("trap 'echo caught' USR1"), S("kill -USR1 $$; :", b"caught\n"), S("trap - USR1")),
    _case("umask survives", S("umask 027"), S("umask", b"0027\n")),
    _case("OLDPWD survives", S("cd /usr; cd /"), S("cd -", b"/usr\n")),
)

ENDS = (
    _case("exit is a result", S("exit 3", exit_code=3, restarted=True), S("echo on", b"on\n")),
    _case("exit 0 is a result", S("exit", exit_code=0, restarted=True), S("echo on", b"on\n")),
    _case(
        "a new shell has the directory and the environment",
        S("cd /usr; export A='1 2'"),
        S("exit 1", exit_code=1, restarted=True),
        S('pwd; echo "$A"', b"/usr\n1 2\n"),
    ),
    _case(
        "a new shell has what the ending command set",
        S("cd /usr; export A='1 2'; unset B; exit 3", exit_code=3, restarted=True),
        S('pwd; echo "$A"', b"/usr\n1 2\n"),
    ),
    _case(
        "a new shell has it under an exit trap of the user's",
        S("trap 'echo bye $?; exit 9' EXIT"),
        S("cd /usr; export A=x; set -e; (exit 4)", b"bye 4\n", exit_code=9, restarted=True),
        S('pwd; echo "$A"', b"/usr\nx\n"),
    ),
    _case(
        "a shell that was terminated has told its directory",
        S("cd /usr; kill -TERM $$; sleep 5", exit_code=143, restarted=True),
        S("pwd", b"/usr\n"),
    ),
    _case(
        "a killed shell leaves what was known",
        S("cd /usr"),
        S("cd /; kill -9 $$", exit_code=137, restarted=True),
        S("pwd", b"/usr\n"),
    ),
    _case(
        "a killed shell leaves the directory in which it was seen",
        S("cd /usr"),
        S("cd /usr/bin; sleep 0.3; echo seen; sleep 0.3; kill -9 $$", exit_code=137, restarted=True),
        S("pwd", b"/usr/bin\n"),
    ),
    _case(
        "a shell that a time-out must kill leaves its directory",
        S("f=$(mktemp -u); mkfifo $f; cd /usr; export KEPT=1"),
        S("cd /usr/bin; : < $f", exit_code=None, restarted=True, timed_out=True, timeout_s=0.5),
        S("echo $PWD $KEPT", b"/usr/bin 1\n"),
    ),
    _case("output before exit is kept", S("echo last; exit 4", b"last\n", exit_code=4, restarted=True)),
    _case(
        "set -e ends the shell", S("set -e; false; echo no", b"", exit_code=1, restarted=True), S("echo on", b"on\n")
    ),
    _case("set -e of an earlier call ends it too", S("set -e"), S("false", exit_code=1, restarted=True)),
    _case("set -e spares conditions", S("set -e; if false; then :; fi; false || echo ok; set +e", b"ok\n")),
    _case(
        "set -e spares a list whose last status is exempt",
        S("set -e; false && true", b"", exit_code=1),
        S("echo $?", b"1\n"),
        S("! true", exit_code=1),
        S("false || (exit 3)", b"", exit_code=3, restarted=True),
    ),
    _case(
        "an exit trap speaks under set -e",
        S("trap 'echo bye; echo err >&2' EXIT"),
        S("set -e; false; echo no", b"bye\nerr\n", exit_code=1, restarted=True),
    ),
    _case(
        "an ERR trap fires once",
        S("trap 'echo ERR' ERR; false", b"ERR\n", exit_code=1),
        S("false || true; ! true", b"", exit_code=1),
        S("trap - ERR"),
    ),
    _case("set -u ends the shell", S("set -u; echo $nope", has=b"nope", exit_code=None, restarted=True)),
    _case("exec replaces the shell", S("exec echo replaced", b"replaced\n", restarted=True), S("echo on", b"on\n")),
    _case("exec true", S("exec true", restarted=True), S("echo on", b"on\n")),
    _case("exec of what does not exist", S("exec /no/such", exit_code=127, restarted=True), S("echo on", b"on\n")),
    _case("the shell kills itself", S("kill -9 $$", exit_code=137, restarted=True), S("echo on", b"on\n")),
    _case("the shell terminates itself", S("kill -TERM $$; sleep 5", exit_code=143, restarted=True, within_s=4)),
    _case("a segmentation fault is 139", S("sh -c 'kill -SEGV $$'", exit_code=139)),
    _case("a subshell's exit is no end", S("(exit 5)", exit_code=5), S("echo on", b"on\n")),
    _case("an exit trap speaks", S("trap 'echo bye' EXIT; exit 2", b"bye\n", exit_code=2, restarted=True)),
    _case("not found is 127", S("no_such_command_here", has=b"not found", exit_code=127)),
    _case("not executable is 126", S("/etc/passwd", exit_code=126)),
)

TEXT = (
    _case("a syntax error", S("if then", has=b"syntax error", exit_code=2), S("echo on", b"on\n")),
    _case("an unclosed single quote", S("echo 'abc", has=b"unexpected EOF", exit_code=2), S("echo on", b"on\n")),
    _case("an unclosed double quote", S('echo "abc', exit_code=2), S("echo on", b"on\n")),
    _case("an unclosed substitution", S("echo $(echo", exit_code=None), S("echo on", b"on\n")),
    _case("an unclosed brace", S("{ echo a;", exit_code=2), S("echo on", b"on\n")),
    _case("an unclosed heredoc", S("cat <<X\nbody", has=b"body"), S("echo on", b"on\n")),
    _case(
        "an unfinished list",
        S("echo a &&", has=b"syntax error", exit_code=2),
        S("f()", exit_code=2),
        S("echo on", b"on\n"),
    ),
    _case("a shift that looks like a heredoc", S("echo $((1<<3)); (exit 3)", b"8\n", exit_code=3)),
    _case("a heredoc", S("cat <<'X'\n$a 'b'\nX", b"$a 'b'\n")),
    _case("a trailing backslash", S("echo a\\", has=b"a"), S("echo on", b"on\n")),
    _case("a comment", S("echo a # ' \" $(", b"a\n"), S("# only", b"")),
    _case("an empty command", S("", b""), S("\n\n", b"")),
    _case("quotes of both kinds", S("echo \"it's\" '\"'", b"it's \"\n")),
    _case("history characters", S("echo '!!' \"!x\" !y", b"!! !x !y\n")),
    _case("break and continue outside a loop", S("break; continue; echo a", has=b"a"), S("echo on", b"on\n")),
    _case("return outside a function", S("return 3", exit_code=None), S("echo on", b"on\n")),
    _case("many lines", S("for i in 1 2; do\n  echo $i\ndone\necho end", b"1\n2\nend\n")),
    _case("bytes that are no UTF-8", S(b"printf '%s' '\xff\xfe' | od -An -tx1", b" ff fe\n")),
    _case("a long command", S("x=" + "a" * 100_000 + "; echo ${#x}", b"100000\n")),
    _case("a command that looks like a report", S("printf 'S0 1\\0'; printf 'S0 1\\0' >&2", b"S0 1\0S0 1\0")),
    _case(
        "a report forged on every descriptor",
        S(
            'for fd in $(seq 3 99); do { printf "S0 1\\0" >&$fd; } 2>/dev/null; done; '
            "for f in /proc/$$/fd/*; do sh -c \"printf 'S0 1\\\\0' > $f\" 2>/dev/null; done; exit 9",
            exit_code=9,
            restarted=True,
        ),
        S("echo on", b"on\n"),
    ),
)

STREAMS = (
    _case("stdin is empty", S("cat", b""), S("read x; echo $?", b"1\n")),
    _case("stdin is what was given", S("cat", b"a\0b\xff\n", stdin=b"a\0b\xff\n"), S("cat", b"")),
    _case("stdin that nobody reads", S("true", stdin=b"x" * 500_000), S("cat", b"second", stdin=b"second")),
    _case("much stdin", S("wc -c", b"5000000\n", stdin=b"x" * 5_000_000)),
    _case("a command does not eat the next one", S("cat > /dev/null"), S("echo next", b"next\n")),
    _case("stdout and stderr keep their order", S("echo 1; echo 2 >&2; echo 3", b"1\n2\n3\n")),
    _case("every byte passes", S("printf '\\0\\1\\r\\n\\377'", b"\0\1\r\n\xff")),
    _case("no final newline is added", S("printf abc", b"abc")),
    _case("a closed stdout does not last", S("exec 1>&-; echo lost", exit_code=None), S("echo on", b"on\n")),
    _case("a redirected stdout does not last", S("exec >/dev/null; echo lost", b""), S("echo on", b"on\n")),
    _case("xtrace shows the command only", S("set -x; : a", has=b": a"), S(": b; set +x", b"++ : b\n++ set +x\n")),
    _case("process substitution", S("cat <(echo a) <(echo b)", b"a\nb\n"), S("echo x > >(cat); wait", exit_code=0)),
    _case("a pipeline's status", S("false | true"), S("true | false", exit_code=1)),
    _case(
        "a background child holds the pipe",
        S("sleep 30 & echo started", b"started\n", within_s=5),
        S("kill $!", exit_code=0),
    ),
    _case(
        "a background child goes on writing",
        S("(while sleep 0.01; do echo noise || exit; done) & p=$!; echo ok", has=b"ok", within_s=5),
        S("sleep 0.5; kill -0 $p && kill $p", exit_code=0),
    ),
    _case(
        "output in full at the answer",
        S("seq 200000 | tail -n 1; seq 100000", output_bytes=588_902, max_output_bytes=1 << 20, truncated=False),
    ),
    _case(
        "much output keeps head and tail",
        S(
            "echo first; head -c 20000000 /dev/zero; echo last",
            has=b"\0last\n",
            truncated=True,
            output_bytes=20_000_011,
            max_output_bytes=1000,
        ),
    ),
    _case("no output is wanted", S("echo abc", b"", truncated=True, output_bytes=4, max_output_bytes=0)),
)

TIME = (
    _case(
        "a time-out returns what was written",
        S("true"),  # a machine with much to do may take half a second to start a shell
        S("echo a; sleep 60", has=b"a\n", exit_code=None, timed_out=True, timeout_s=0.5, within_s=8),
    ),
    _case(
        "a time-out keeps the shell",
        S("x=5"),
        S("sleep 60", exit_code=143, timed_out=True, timeout_s=0.5),
        S("echo $x", b"5\n"),
    ),
    _case(
        "nothing runs after a time-out",
        S("f=$(mktemp)"),
        S("sleep 60; echo bad > $f", exit_code=None, timed_out=True, timeout_s=0.5),
        S("cat $f; rm $f", b""),
    ),
    _case(
        "a builtin loop",
        S("x=6"),
        S("while :; do :; done", exit_code=None, timed_out=True, timeout_s=0.5, within_s=8),
        S("echo on", b"on\n"),
    ),
    _case(
        "a tree that ignores TERM",
        S("n=$RANDOM$RANDOM"),
        S(
            "trap '' TERM; (trap '' TERM; sleep 61.$n) & sleep 62.$n",
            exit_code=None,
            timed_out=True,
            timeout_s=0.5,
            within_s=8,
        ),
        S('pgrep -fx "sleep 6[12].$n"', b"", exit_code=1),
    ),
    _case(
        "setsid and double forks die too",
        S("n=$RANDOM$RANDOM"),
        S(
            "(setsid sleep 71.$n &); (nohup sleep 72.$n >/dev/null 2>&1 &); sleep 73.$n",
            exit_code=None,
            timed_out=True,
            timeout_s=0.5,
        ),
        S('pgrep -fx "sleep 7[123].$n"', b"", exit_code=1),
    ),
    _case(
        "an earlier background job outlives a time-out",
        S("sleep 81 & p=$!"),
        S("sleep 82", exit_code=None, timed_out=True, timeout_s=0.5),
        S("kill -0 $p && kill $p", exit_code=0),
    ),
    _case("an exec that never ends", S("exec sleep 91", exit_code=None, timed_out=True, restarted=True, timeout_s=0.5)),
    _case(
        "bounded memory under yes",
        S("true"),
        S("yes", exit_code=None, timed_out=True, truncated=True, timeout_s=1.0, max_output_bytes=4096, within_s=10),
    ),
)

LIMITS = (
    _case("no HOME", S("unset HOME; cd; echo on", has=b"on", exit_code=None), S("echo on", b"on\n")),
    _case("no PATH", S("PATH=; /bin/true; echo on", b"on\n"), S("echo still", b"still\n")),
    _case("IFS", S("IFS=0123456789"), S("x='a1b'; printf '%s,' $x; unset IFS", b"a,b,")),
    _case("posix mode", S("set -o posix"), S("echo on; set +o posix", b"on\n")),
    _case("few descriptors", S("ulimit -Sn 64; echo on", b"on\n"), S("echo still", b"still\n")),
    _case("a deleted directory", S('d=$(mktemp -d); cd "$d"; rmdir "$d"'), S("cd /; pwd", b"/\n")),
    _case(
        "a large environment", S("export BIG=$(head -c 100000 /dev/zero | tr '\\0' x)"), S("echo ${#BIG}", b"100000\n")
    ),
    _case(
        "a hostile environment", S("export PYTHONPATH=/x PYTHONHOME=/x LD_PRELOAD=/no.so"), S("echo on", has=b"on\n")
    ),
    _case(
        "everything that can be killed is killed",
        S("sleep 50 & (kill -9 -1); wait; echo after", exit_code=None, restarted=True, within_s=10),
        S("echo on", b"on\n"),
        needs_isolation=True,
    ),
    _case(
        "pkill python",
        S("pkill -f pyth[o]n; pkill -9 -f exec[d]; pkill -INT -f pyth[o]n; kill 1; echo on", b"on\n"),
        needs_isolation=True,
    ),
    _case(
        "chains of forks that no list of processes can catch",  # 8 at a time, 2,000 each
        S("chain() { if (($1)); then chain $(($1 - 1)) & fi; }"),
        S(
            "for i in 1 2 3 4 5 6 7 8; do chain 2000 & done; sleep 60",
            exit_code=None,
            timed_out=True,
            timeout_s=1.0,
            within_s=60,
        ),
        S("sleep 0.2; jobs -r; ls /proc | grep -c '^[0-9]'", exit_code=None, within_s=5),
    ),
    _case(
        "chains of forks that leave their session at each link",  # 4 at a time, 100,000 each
        S("sleep 86 & p=$!"),
        S(
            """for i in 1 2 3 4; do
            if type perl; then
                perl -MPOSIX -e '
                    $SIG{TERM} = "IGNORE";
                    for (1..100000) { fork and POSIX::_exit(0); POSIX::setsid() }
                ' &
            else
                python3 -I -S -c '
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(100000):
    os.fork() and os._exit(0)
    os.setsid()' &
            fi; done > /dev/null; sleep 60""",
            exit_code=None,
            timed_out=True,
            timeout_s=1.0,
            within_s=30,
        ),
        S(
            "read -r _ _ _ _ a < /proc/loadavg; sleep 0.5; read -r _ _ _ _ b < /proc/loadavg; echo pids $((b - a))",
            has=b"pids 1\n",  # bash may tell first that a job of its own was killed
        ),
        S("kill $p && echo on", has=b"on\n"),
        needs_isolation=True,
    ),
    _case(
        "a fork bomb of eight generations",  # bounded by itself: root is exempt from `ulimit -u`
        S("bomb() { if (($1)); then bomb $(($1 - 1)) & bomb $(($1 - 1)) & fi; sleep 60; }"),
        S("bomb 7", exit_code=None, timed_out=True, timeout_s=2.0, within_s=60),
        S("echo on", b"on\n"),
        needs_isolation=True,
    ),
)

LARGE = (
    _case(
        "a gigabyte of output",
        S(
            "echo first; head -c 1000000000 /dev/zero; echo last",
            has=b"\0last\n",
            truncated=True,
            output_bytes=1_000_000_011,
            max_output_bytes=1 << 16,
            timeout_s=600.0,
        ),
        S("echo on", b"on\n"),
        slow=True,
    ),
    _case(
        "a hundred thousand files",
        S('d=$(mktemp -d); cd "$d"; seq 100000 | xargs touch; ls | wc -l', b"100000\n", timeout_s=600.0),
        S("set -- *; echo $#; x=(*); echo ${#x[@]}; ls | tail -n 1", b"100000\n100000\n99999\n", timeout_s=600.0),
        S('cd /; rm -rf "$d"; echo on', b"on\n", timeout_s=600.0),
        slow=True,
    ),
)

CASES: tuple[Case, ...] = STATE + ENDS + TEXT + STREAMS + TIME + LIMITS + LARGE
