"""Put a submission's patch and the task's own tests into a sandbox's work tree.

The law: until the suite starts nothing of the patch is executed, so no hook, filter, attribute driver or configuration
that it brings may run, and what the script prints may be believed. Three patches' worth of steps, in this order:

1.  On the pristine tree, in a private index: the test patch is applied to the base version of the task's test files.
    The results are kept aside and hashed, out of reach of the submission.
2.  The submission's patch, by the first rung of the official ladder that takes it whole: `git apply`, `git apply
    --reject`, `patch --fuzz=5`. Each later rung works on a fresh copy of the touched files, so that what a rung leaves
    behind cannot poison the next, and only its success reaches the work tree.
3.  Whatever the submission left at the test files' paths goes; the files that were kept aside take their place. They
    are hashed again where they now lie, and this module compares.

git runs on a private git directory that only borrows the repository's objects, so the repository's own configuration
and hooks are never read. Not covered: files that steer the tests and are no test files (`conftest.py` and its kin);
`grader.tamper` lists them.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from grader.patch import Patch
from grader.patchtext import PIECE, PatchText
from sandbox import Sandbox, SandboxError

SESSION = "grader"
"""The shell session of the grader's own commands: the tests' session never sees them."""

_ROOM_BYTES = 1024 * 1024
"""A disk with no room for this much, and the patches twice, may be why a patch was refused."""


class Rung(StrEnum):
    """The step of the ladder that took the patch."""

    EMPTY = "empty"
    GIT_APPLY = "git apply"
    GIT_APPLY_REJECT = "git apply --reject"
    PATCH_FUZZ = "patch --fuzz=5"


@dataclass(frozen=True)
class Applied:
    """The work tree is ready for the tests."""

    rung: Rung
    restored: tuple[str, ...]
    """The task's test files, now as the test patch makes them."""


@dataclass(frozen=True)
class PatchRefused:
    """No rung takes the submission's patch. `words` is what git and patch said."""

    words: str


@dataclass(frozen=True)
class TaskUnfit:
    """The task cannot be graded on this image: `why`, and what git said. It is not the submission's fault."""

    why: str
    words: str


ApplyResult = Applied | PatchRefused | TaskUnfit


async def apply(
    box: Sandbox,
    patch: Patch,
    test_patch: Patch,
    *,
    test_files: Sequence[str] = (),
    workdir: str,
    base_commit: str,
    timeout_s: float = 120.0,
) -> ApplyResult:
    """Apply `patch`, then put the task's test files in place. `workdir` is the top of a git work tree.

    The task's test files are those that `test_patch` touches, and `test_files`, relative to `workdir`.
    `base_commit` names the commit whose test files count; where the image does not hold it, HEAD's do. Raises
    `SandboxError` when the steps cannot be carried out, or a test file is then not what the test patch makes of it.
    """
    private = f"/tmp/.grader-{secrets.token_hex(8)}"
    tests = tuple(dict.fromkeys([*test_patch.touched, *map(os.fsencode, test_files)]))
    # Official eval scripts end a test patch with a newline too: it stands in a here-document.
    test_data = test_patch.data if test_patch.changes else b""
    if test_patch.changes and not test_data.endswith(b"\n"):
        test_data += b"\n"
    commit = base_commit if re.fullmatch(r"[0-9a-f]{7,64}", base_commit) else "HEAD"
    room = _ROOM_BYTES + 2 * (len(test_data) + patch.text.size)
    at_once = patch.text.size <= PIECE
    if not at_once:
        await _send_ahead(box, patch.text, private, timeout_s)
    result = await box.run(
        f"bash -c {shlex.quote(_SCRIPT)} apply {private} {shlex.quote(workdir)} {commit} {len(test_data)} {room}",
        stdin=_listed(tests) + _listed(patch.touched) + test_data + (patch.data if at_once else b""),
        timeout_s=timeout_s,
        session=SESSION,
    )
    if result.timed_out:
        raise SandboxError(f"applying the patches did not end within {timeout_s:g} s; look at the image's git and disk")
    return _result(result.output, patch, tests)


async def _send_ahead(box: Sandbox, text: PatchText, private: str, timeout_s: float) -> None:
    """Put a large patch where the script looks for it, in pieces: what is sent is copied several times on its way."""
    for piece in text.pieces():
        sent = await box.run(
            f"(umask 077 && mkdir -p {private} && cat >>{private}/agent.patch)",
            stdin=piece,
            timeout_s=timeout_s,
            session=SESSION,
        )
        if sent.exit_code != 0 or sent.timed_out:
            words = sent.output.decode("utf-8", "replace").strip()
            raise SandboxError(f"the sandbox did not take the patch; make room where its files lie. It said: {words!r}")


def _listed(paths: tuple[bytes, ...]) -> bytes:
    """Each path ended by NUL, and an empty one at the end."""
    return b"".join(path + b"\0" for path in (*paths, b""))


def _result(output: bytes, patch: Patch, tests: tuple[bytes, ...]) -> ApplyResult:
    """Read what the script printed: `key value` lines, an empty line, then what git and patch said."""
    head, _, tail = output.partition(b"\n\n") if b"\n\n" in output else (b"", b"", output)
    words = tail.decode("utf-8", "replace").strip()
    facts = dict(line.split(b" ", 1) for line in head.split(b"\n") if b" " in line)
    match facts.get(b"end"):
        case b"no git work tree":
            return TaskUnfit("the image has no git work tree where the task's plan says", words)
        case b"no room":
            raise SandboxError(
                "the sandbox's disk is full, so no patch could be applied; make room where its files lie"
            )
        case b"test patch refused":
            return TaskUnfit("the test patch does not apply to the base", words)
        case b"no patch program":
            return TaskUnfit("the image has no `patch` program, which might have taken what git refuses; add it", words)
        case b"patch refused":
            return PatchRefused(words)
        case b"done":
            expected, found = facts.get(b"expected", b"").split(), facts.get(b"found", b"").split()
            hashes = zip(tests, expected, found, strict=True)
            wrong = [path for path, want, have in hashes if want != have]
            if wrong:
                names = ", ".join(_shown(wrong))
                raise SandboxError(
                    f"test files are not as the test patch makes them: {names}; look at the image's disk"
                )
            rung = Rung(facts[b"rung"].decode()) if patch.changes else Rung.EMPTY
            return Applied(rung, _shown(tests))
    raise SandboxError(f"the apply script broke off; the image needs bash, git and coreutils. It said: {words!r}")


def _shown(paths: tuple[bytes, ...] | list[bytes]) -> tuple[str, ...]:
    return tuple(path.decode("utf-8", "backslashreplace") for path in paths)


# Arguments: the private directory, the work tree, the base commit, the test patch's length in bytes, the bytes that a
# disk has room for if it is not to blame. On stdin: the test files' paths, the paths that the submission touches, the
# test patch, the submission's patch unless it was sent ahead.
_SCRIPT = r"""
private=$1 tree=$2 commit=$3 test_bytes=$4 room=$5
words=$private/words
tests=() touched=()

receive() {
  umask 077
  mkdir -p "$private/tests" "$private/git/objects/info" "$private/git/refs" || return
  local path
  while IFS= read -r -d '' path && [ -n "$path" ]; do tests+=("$path"); done
  while IFS= read -r -d '' path && [ -n "$path" ]; do touched+=("$path"); done
  cat >"$private/both" &&
    head -c "$test_bytes" "$private/both" >"$private/test.patch" &&
    tail -c "+$((test_bytes + 1))" "$private/both" >>"$private/agent.patch"
}

environment() {
  local name
  for name in $(compgen -e GIT_) POSIXLY_CORRECT PATCH_GET SIMPLE_BACKUP_SUFFIX VERSION_CONTROL TMPDIR; do
    unset "$name"
  done
  export LC_ALL=C HOME=$private XDG_CONFIG_HOME=$private
  export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_NO_LAZY_FETCH=1 GIT_TERMINAL_PROMPT=0
  umask 022
  ulimit -v 4194304  # KiB: what a delta of a few bytes can unfold to has no other bound
}

say() { printf '%s\n' "$@"; }

end() {  # the closing lines: how it ended, then what the tools said
  say "end $1" ""
  head -c 65536 "$words"
}

private_git() {  # a git directory of our own that borrows the repository's objects
  local found
  found=$(GIT_DIR=$tree/.git git rev-parse --git-path objects "HEAD^{commit}" 2>>"$words") || return
  head=${found##*$'\n'} found=${found%$'\n'*}
  case $found in /*) ;; *) found=$tree/$found ;; esac
  printf '%s\n' "$found" >"$private/git/objects/info/alternates"
  printf '%s\n' "$head" >"$private/git/HEAD"
  printf '[core]\n%s\n' 'repositoryformatversion = 0' 'bare = false' 'autocrlf = false' >"$private/git/config"
  export GIT_DIR=$private/git GIT_INDEX_FILE=$private/index
}

hashes() {  # of the listed test files under $1, in order; "-" where there is none
  local path sum
  for path in "${tests[@]}"; do
    sum=-
    if [ -L "$1/$path" ]; then
      sum=$(readlink -n -- "$1/$path" | sha256sum) sum=link:${sum%% *}
    elif [ -f "$1/$path" ]; then
      sum=$(sha256sum <"$1/$path") sum=${sum%% *}
    fi
    printf ' %s' "$sum"
  done
}

keep_tests() {  # step 1: the test files as the test patch makes them, into $private/tests
  git cat-file -e "$commit^{commit}" 2>/dev/null || commit=$head
  [ ${#tests[@]} -gt 0 ] || return 0
  git --literal-pathspecs ls-tree -r -z --full-tree "$commit" -- "${tests[@]}" 2>>"$words" |
    git update-index -z --index-info 2>>"$words" || return
  if [ "$test_bytes" -gt 0 ]; then
    git apply --cached --verbose --whitespace=nowarn "$private/test.patch" >>"$words" 2>&1 || return
  fi
  git --literal-pathspecs ls-files -z -- "${tests[@]}" |
    git checkout-index -z --stdin --prefix="$private/tests/" 2>>"$words"
}

stage() {  # a fresh copy of the files that the patch touches, into $private/stage
  local path done rest
  rm -rf "$private/stage" && mkdir "$private/stage" || return
  for path in "${touched[@]}"; do
    done= rest=$path
    while [ "$rest" != "${rest#*/}" ]; do
      done+=${rest%%/*}
      if [ -L "$done" ]; then printf '%s lies beyond a symbolic link\n' "$path" >>"$words"; return 1; fi
      if [ -f "$done" ]; then cp -a -- "$done" "$private/stage/$done"; continue 2; fi
      [ -d "$done" ] || continue 2
      mkdir -p -- "$private/stage/$done"
      done+=/ rest=${rest#*/}
    done
    if [ -e "$path" ] || [ -L "$path" ]; then cp -a -- "$path" "$private/stage/$path" || return; fi
  done
}

unstage() {  # the staged files take the place of the touched ones
  local path
  for path in "${touched[@]}"; do rm -rf -- "./$path"; done
  cp -a -- "$private/stage/." .
}

refused() {  # $1 is refused, unless what refused it is a full disk; nothing is removed before this is known
  if head -c "$room" /dev/zero >"$private/room"; then end "$1"; else end "no room"; fi
}

climb() {  # step 2: prints nothing, sets rung; status 2: what could not be tried might have taken the patch
  local log=$private/rung.log patch=$private/agent.patch
  rung="git apply"
  [ ${#touched[@]} -gt 0 ] || return 0
  say "\$ git apply --verbose" >>"$words"
  GIT_WORK_TREE=$tree git apply --verbose "$patch" >>"$words" 2>&1 && return

  rung="git apply --reject"
  say "\$ git apply --verbose --reject" >>"$words"
  if stage && (cd "$private/stage" && GIT_WORK_TREE=$PWD git apply --verbose --reject "$patch") >>"$words" 2>&1; then
    unstage; return
  fi

  rung="patch --fuzz=5"
  say "\$ patch --batch --fuzz=5 -p1" >>"$words"
  if ! type -P patch >/dev/null; then
    grep -q "^error: .*: No such file or directory$" "$words" || return 2
    say "a file is missing, so that the patch program, which this image lacks, would refuse it too" >>"$words"
    return 1
  fi
  stage && (cd "$private/stage" &&
    patch --unified --get=0 --batch --fuzz=5 --no-backup-if-mismatch --reject-file=- -p1 -i "$patch") >>"$words" 2>&1 &&
    unstage
}

clear_way() {  # every parent of $1 becomes a directory of this tree
  local done= rest=$1
  while [ "$rest" != "${rest#*/}" ]; do
    done+=${rest%%/*}
    if [ -L "$done" ] || { [ -e "$done" ] && [ ! -d "$done" ]; }; then rm -f -- "./$done"; fi
    done+=/ rest=${rest#*/}
  done
}

place_tests() {  # step 3
  local path
  for path in "${tests[@]}"; do
    clear_way "$path"
    if [ -e "$path" ] || [ -L "$path" ]; then rm -rf -- "./$path"; fi
    if [ -e "$private/tests/$path" ] || [ -L "$private/tests/$path" ]; then
      case $path in */*) [ -d "${path%/*}" ] || mkdir -p -- "./${path%/*}" || return ;; esac
      cp -P -p -- "$private/tests/$path" "./$path" || return
    fi
  done 2>>"$words"
}

main() {
  environment
  : >"$words"
  cd "$tree" 2>>"$words" && private_git || { end "no git work tree"; return; }
  keep_tests || { refused "test patch refused"; return; }
  expected=$(hashes "$private/tests")
  : >"$words"
  climb
  case $? in 0) ;; 2) refused "no patch program"; return ;; *) refused "patch refused"; return ;; esac
  place_tests
  say "rung $rung" "expected$expected" "found$(hashes .)"
  end "done"
}

receive && main 2>>"$words"
cd / && rm -rf "$private"
exit 0
"""
