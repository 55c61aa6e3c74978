"""What agents do to a work tree and to git: the table that extraction is tried with, here and beside its peers."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from grader.extraction.compare import What
from sandbox import Sandbox

TREE = """
set -e
mkdir src docs assets
printf 'def add(a, b):\\n    return a + b\\n\\n\\ndef sub(a, b):\\n    return a - b\\n' >src/calc.py
printf 'NAME = "x"\\n' >src/util.py
printf 'Read me.\\n' >README.md
printf 'one\\r\\ntwo\\r\\nthree\\r\\n' >docs/crlf.txt
printf 'caf\\351 \\377\\n' >docs/latin1.txt
printf 'no end' >docs/noeol.txt
printf 'a\\n' >docs/a.md
: >docs/empty.txt
head -c 3000 /dev/zero | tr '\\0' 'z' >docs/long.txt
printf '\\000\\001\\002binary\\377' >assets/data.bin
printf '#!/bin/sh\\necho hi\\n' >run.sh; chmod 755 run.sh
ln -s README.md link
printf '*.log\\nout/\\n' >.gitignore
git init -q
git add -A
git commit -qm base
"""

SUBMODULE = """
git init -q ../lib
printf 'lib 1\\n' >../lib/lib.txt; git -C ../lib add -A; git -C ../lib commit -qm one
git -c protocol.file.allow=always submodule --quiet add "$PWD/../lib" vendor/lib
git commit -qm submodule
printf 'lib 2\\n' >../lib/lib.txt; git -C ../lib commit -qam two
git -C vendor/lib -c protocol.file.allow=always fetch -q
"""

EXACT: frozenset[What] = frozenset()
GIT = "git config user.email a@b.c; git config user.name a; "


@dataclass(frozen=True)
class Edit:
    """A kind of edit: what the image ships beside the tree, what the agent types, and what must be said of it."""

    name: str
    edit: str
    says: frozenset[What] = EXACT
    ships: str = ""
    excludes: bool = False
    """Something is left out by declaration."""
    tags: frozenset[str] = field(default_factory=frozenset)
    """`alone`: not to be paired."""


def _edits(**named: str) -> list[Edit]:
    return [Edit(name.replace("_", " "), edit) for name, edit in named.items()]


EDITS = [
    *_edits(
        nothing="true",
        a_line_changed="sed -i 's/a + b/b + a/' src/calc.py",
        a_new_file="printf 'x = 1\\n' >src/new.py",
        a_file_deleted="rm docs/a.md",
        all_of_a_directory_deleted="rm -r docs",
        staged="echo '# staged' >>src/calc.py; git add -A",
        staged_and_then_changed_again="echo '# staged' >>src/calc.py; git add -A; echo '# later' >>src/calc.py",
        staged_and_then_undone_in_the_tree="cp src/util.py /tmp/u; echo 1 >>src/util.py; git add -A;"
        " cp /tmp/u src/util.py",
        committed=GIT + "echo '# c' >>src/calc.py; git commit -qam work",
        committed_with_new_files=GIT + "echo 'y' >src/y.py; git add -A; git commit -qm work",
        committed_on_a_branch=GIT + "git checkout -qb work; echo '# c' >>src/calc.py; git commit -qam work",
        history_rewritten=GIT + "echo '# a' >>src/calc.py; git commit -qa --amend -m rewritten",
        an_orphan_branch=GIT + "git checkout -q --orphan new; echo '# o' >>src/calc.py; git add -A; git commit -qm new",
        the_work_stashed_away="echo '# s' >>src/calc.py; git -c user.name=a -c user.email=b stash -q",
        a_detached_head_at_an_empty_tree=GIT
        + "git checkout -q $(git commit-tree -m e $(git hash-object -t tree /dev/null)) 2>&1; git checkout -q - -- .;"
        " git checkout -q -; echo '# d' >>src/calc.py",
        intent_to_add="echo new >src/intent.py; git add -N src/intent.py",
        the_index_flags_a_file_unchanged="git update-index --assume-unchanged src/calc.py; echo '# u' >>src/calc.py",
        the_index_flags_a_file_skipped="git update-index --skip-worktree src/calc.py; echo '# u' >>src/calc.py",
        only_the_index_changed="git update-index --chmod=+x src/util.py; git rm -q --cached README.md",
        dot_git_deleted="rm -rf .git; echo '# no git' >>src/calc.py",
        dot_git_made_anew="rm -rf .git; git init -q; " + GIT + "echo '# n' >>src/calc.py; git add -A; git commit -qm n",
        dot_git_locked="echo '# locked' >>src/calc.py; touch .git/index.lock",
        a_broken_index="echo '# broken' >>src/calc.py; echo garbage >.git/index",
        dot_git_made_a_file="rm -rf .git; echo 'gitdir: /nowhere' >.git; echo '# f' >>src/calc.py",
        configured_line_ends="git config core.autocrlf true; git config core.eol crlf; printf 'q\\r\\n' >>src/calc.py",
        configured_modes_off="git config core.fileMode false; chmod +x src/calc.py; git config core.symlinks false",
        configured_diff_output="git config diff.noprefix true; git config color.ui always; git config diff.external"
        " /bin/true; git config diff.mnemonicPrefix true; git config diff.context 0; echo '# d' >>src/calc.py",
        configured_for_the_user="git config --global core.excludesFile /tmp/ex; echo '*' >/tmp/ex;"
        " git config --global core.quotePath false; echo n >src/n.py",
        a_clean_filter="git config filter.f.clean 'sed s/secret//'; echo '*.py filter=f' >.gitattributes;"
        " echo 'secret = 1' >>src/calc.py",
        attributes_that_hide_a_diff="echo '*.py -diff' >.gitattributes; echo '# h' >>src/calc.py",
        attributes_of_the_repository="mkdir -p .git/info; echo '* text eol=lf ident' >.git/info/attributes;"
        " printf 'r\\r\\n$Id$\\n' >>docs/crlf.txt",
        textconv="git config diff.t.textconv 'echo same #'; echo '*.md diff=t' >.gitattributes; echo more >>docs/a.md",
        excludes_of_the_repository="mkdir -p .git/info; echo '*' >.git/info/exclude; echo n >src/n.py",
        ignored_by_a_new_gitignore="echo '*.py' >>.gitignore; echo n >src/n.py",
        hooks="printf '#!/bin/sh\\nexit 1\\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; echo n >n.py",
        environment_variables="export GIT_INDEX_FILE=/tmp/i GIT_EXTERNAL_DIFF=/bin/true GIT_DIR=/nowhere; echo n >n.py",
        a_false_git_first_in_the_path="mkdir -p ~/bin; printf '#!/bin/sh\\nexit 0\\n' >~/bin/git; chmod +x ~/bin/git;"
        " echo 'PATH=~/bin:$PATH' >>~/.bashrc; cp ~/.bashrc ~/.profile; echo n >n.py",
        a_new_binary_file="head -c 5000 /dev/urandom >assets/new.bin",
        a_changed_binary_file="printf '\\377\\000' >>assets/data.bin",
        a_binary_file_made_text="echo text >assets/data.bin",
        a_nul_byte_far_behind="{ head -c 9000 /dev/zero | tr '\\0' 'a'; printf '\\n\\000\\n'; } >src/far.txt",
        renamed="mv src/calc.py src/calculator.py",
        renamed_and_edited="git mv src/calc.py src/moved.py; echo '# r' >>src/moved.py",
        copied="cp src/calc.py src/copy.py; echo '# c' >>src/calc.py",
        two_names_swapped="mv src/calc.py /tmp/c; mv src/util.py src/calc.py; mv /tmp/c src/util.py",
        made_executable="chmod +x src/calc.py",
        no_longer_executable="chmod -x run.sh",
        executable_and_edited="chmod +x src/calc.py; echo '# x' >>src/calc.py",
        a_new_executable="printf '#!/bin/sh\\n' >go.sh; chmod +x go.sh",
        a_new_link="ln -s src/calc.py calc",
        a_link_that_leads_nowhere="ln -s /nowhere/at/all gone; ln -s ../../.. up",
        a_link_pointed_elsewhere="ln -sfn src link",
        a_file_made_a_link="rm README.md; ln -s docs/a.md README.md",
        a_link_made_a_file="rm link; echo 'was a link' >link",
        a_file_made_a_directory="rm README.md; mkdir README.md; echo x >README.md/x",
        a_directory_made_a_file="rm -r docs; echo x >docs",
        a_directory_made_a_link="rm -r docs; ln -s src docs",
        a_link_made_a_directory="rm link; mkdir link; echo x >link/x",
        crlf_lines_edited="sed -i 's/two/2/' docs/crlf.txt",
        all_lines_made_crlf="sed -i 's/$/\\r/' src/calc.py",
        all_lines_made_lf="sed -i 's/\\r$//' docs/crlf.txt",
        a_lone_carriage_return="printf 'a\\rb\\n\\r\\n\\fpage\\n' >>src/util.py",
        a_final_newline_added="echo >>docs/noeol.txt",
        a_final_newline_removed="truncate -s -1 src/util.py",
        edited_without_a_final_newline="printf 'more' >>docs/noeol.txt",
        not_utf8_changed="printf '\\200\\201\\n' >>docs/latin1.txt",
        a_new_file_not_utf8="printf '\\377\\376a\\n' >docs/utf.txt",
        white_space_only="printf ' \\t \\n\\n\\n' >>src/util.py; sed -i 's/return/return /' src/calc.py",
        lines_like_a_patch="printf -- '--- a/x\\n+++ b/x\\n@@ -1 +1 @@\\n-a\\n+b\\n-- \\n2.39\\n' >p.txt;"
        " printf 'diff --git a/q b/q\\n' >>docs/a.md",
        a_very_long_line="head -c 1500000 /dev/zero | tr '\\0' 'y' >docs/line.txt",
        a_path_not_utf8="printf x >$'src/\\xff\\xfe.py'",
        a_path_with_a_newline="printf x >$'src/new\\nline.py'; printf x >$'src/tab\\tcr\\r.py'",
        paths_with_quotes_and_blanks="printf x >'src/a b .py'; printf x >'src/\"q\".py'; printf x >'src/b\\s.py';"
        " printf x >src/-rf; printf x >'src/trail '; printf x >' lead'; mkdir 'd d'; printf x >'d d/{a => b}'",
        paths_like_patterns="printf x >'src/*.py'; printf x >'src/[a].py'; printf x >':(top)x'; printf x >'src/!n'",
        paths_of_other_letters="printf x >'src/ä.py'; printf x >'src/日本.py'; printf x >readme.md; printf x >con",
        a_deep_path="mkdir -p $(printf 'd%.0s/' $(seq 120)); printf x >$(printf 'd%.0s/' $(seq 120))x",
        a_new_empty_file=": >src/__init__.py",
        a_file_emptied=": >src/util.py",
        an_empty_file_filled="echo 1 >docs/empty.txt",
        an_empty_file_deleted="rm docs/empty.txt",
        a_new_ignored_file="mkdir out; echo data >out/data.json; echo log >x.log",
        times_put_back="cp -p src/calc.py /tmp/t; sed -i 's/a + b/a * b/' src/calc.py; touch -r /tmp/t src/calc.py",
        a_thousand_files="mkdir many; for i in $(seq 1000); do echo $i >many/$i; done",
        gitmodules_written="printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = ./x\\n' >.gitmodules",
        a_sparse_checkout="git sparse-checkout set src 2>/dev/null",
        a_work_tree_elsewhere="git worktree add -q /tmp/wt 2>/dev/null; echo '# w' >>src/calc.py",
    ),
    Edit("a shipped untracked file left alone", "echo '# x' >>src/calc.py", ships="echo shipped >local.py"),
    Edit("a shipped untracked file changed", "echo more >>local.py", ships="echo shipped >local.py"),
    Edit("a shipped untracked file deleted", "rm local.py", ships="echo shipped >local.py"),
    Edit("a shipped ignored file changed", "echo more >>ver.log", ships="echo shipped >ver.log"),
    Edit("a shipped change to a tracked file", "echo '# x' >>src/util.py", ships="sed -i 's/a + b/a+b/' src/calc.py"),
    Edit("a submodule's file changed", "echo x >>vendor/lib/lib.txt", ships=SUBMODULE),
    Edit(
        "a submodule at another commit",
        "git -C vendor/lib checkout -q FETCH_HEAD",
        frozenset({What.SUBMODULE}),
        SUBMODULE,
    ),
    Edit("a submodule removed", "rm -rf vendor", frozenset({What.SUBMODULE, What.NESTED_REPOSITORY}), SUBMODULE),
    Edit(
        "a nested repository",
        "mkdir sub; cd sub; git init -q; echo x >x; git add x; git -c user.name=a -c user.email=b commit -qm x; cd ..",
        frozenset({What.NESTED_REPOSITORY}),
    ),
    Edit("an empty nested repository", "git init -q sub", frozenset({What.NESTED_REPOSITORY})),
    Edit(
        "a nested name in other letters", "mkdir -p sub/.GIT; echo x >sub/.GIT/x", frozenset({What.NESTED_REPOSITORY})
    ),
    Edit(
        "a file over the limit",
        "head -c 17M /dev/urandom >big.bin",
        frozenset({What.TOO_LARGE}),
        tags=frozenset({"alone"}),
    ),
    Edit("a sparse file of a terabyte", "truncate -s 1T huge", frozenset({What.TOO_LARGE}), tags=frozenset({"alone"})),
    Edit("a pipe", "mkfifo src/pipe", frozenset({What.SPECIAL_FILE})),
    Edit("a file made a pipe", "rm src/util.py; mkfifo src/util.py", frozenset({What.SPECIAL_FILE})),
    Edit(
        "a socket",
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('src/sock')\"",
        frozenset({What.SPECIAL_FILE}),
    ),
    Edit("a hard link", "ln src/calc.py src/hard.py", frozenset({What.HARD_LINK})),
    Edit("a set-user-id bit", "chmod 4755 run.sh", frozenset({What.SPECIAL_MODE})),
    Edit("other permissions", "chmod 600 src/calc.py; echo '# p' >>src/calc.py", frozenset({What.PERMISSIONS})),
    Edit("a file that its owner may not read", "chmod 000 src/calc.py", frozenset({What.SPECIAL_MODE})),
    Edit("a new empty directory", "mkdir -p empty/inner", frozenset({What.EMPTY_DIRECTORY})),
    Edit("a directory emptied", "rm assets/data.bin", frozenset({What.EMPTY_DIRECTORY})),
    Edit("a shipped empty directory removed", "rmdir tmp", frozenset({What.EMPTY_DIRECTORY}), ships="mkdir tmp"),
    Edit(
        "a file that does not hold still",
        # So large that no look at it is shorter than a writer's wait for a processor.
        'head -c 8000000 /dev/zero >src/moving.txt; for i in 1 2 3; do python3 -c "import os; f = os.open('
        "'src/moving.txt', 1)\nwhile 1: os.pwrite(f, os.urandom(4096), 0)\" & done;"
        " until [ $(head -c 9 src/moving.txt | tr -d '\\0' | wc -c) -gt 0 ]; do sleep 0.01; done",
        frozenset({What.MOVING}),
        tags=frozenset({"alone"}),
    ),
    Edit(
        "a directory that cannot go made a file",
        "rm -r box; echo x >box; echo '# x' >>src/calc.py",
        frozenset({What.KIND, What.EMPTY_DIRECTORY}),
        ships="mkdir -p box/inner; echo x >box/x; git add box; git commit -qm box",
    ),
    Edit("a shipped empty directory made a file", "rmdir box; echo x >box", ships="mkdir box"),
    Edit(
        "a shipped pipe made a directory",
        "rm src/pipe; mkdir src/pipe; echo x >src/pipe/x; echo '# x' >>src/calc.py",
        frozenset({What.SPECIAL_FILE, What.KIND}),
        ships="mkfifo src/pipe",
    ),
    Edit(
        "caches",
        "mkdir -p src/__pycache__ .pytest_cache/v; echo 1 >src/__pycache__/calc.pyc; echo 2 >.pytest_cache/v/x;"
        " echo '# x' >>src/calc.py",
        excludes=True,
    ),
    Edit(
        "shipped caches changed",
        "echo 2 >src/__pycache__/calc.pyc",
        ships="mkdir src/__pycache__; echo 1 >src/__pycache__/calc.pyc",
        excludes=True,
    ),
    Edit(
        "a tracked file named like a cache",
        "echo 2 >src/fixture.pyc",
        ships="echo 1 >src/fixture.pyc; git add -f src; git commit -qm fixture",
    ),
]


def write_tree(path: Path, ships: str = "") -> Path:
    """The repository that every edit begins with, and what an image ships with it."""
    path.mkdir(parents=True)
    who = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.org", "GIT_COMMITTER_NAME": "t"}
    clean = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_COMMITTER_EMAIL": "t@example.org"}
    subprocess.run(
        ["bash", "-ec", "umask 022\n" + TREE + ships],
        cwd=path,
        check=True,
        capture_output=True,
        env={**os.environ, **who, **clean},
    )
    return path


ORACLE = r"""
import hashlib, os, stat, sys
for folder, folders, files in os.walk(b"."):
    folders[:] = [f for f in folders if f.lower() != b".git" or print(os.path.join(folder, f).hex(), "git")]
    for name in folders + files:
        path = os.path.join(folder, name)
        s = os.lstat(path)
        what = "%o" % stat.S_IFMT(s.st_mode)
        if stat.S_ISLNK(s.st_mode):
            what += " " + os.readlink(path).hex()
        elif stat.S_ISREG(s.st_mode):
            small = s.st_size < 1 << 25
            what += " %o " % (s.st_mode & 0o4700)
            what += hashlib.sha256(open(path, "rb").read()).hexdigest() if small else str(s.st_size)
        print(path.hex(), what)
"""


async def seen(box: Sandbox, root: str = "/testbed") -> dict[bytes, str]:
    """The tree by a walk that shares nothing with the daemon's: a program in the sandbox."""
    command = f"cd {root} && exec /usr/bin/env -i PATH=/usr/bin:/bin python3 -I - 2>/dev/null"
    result = await box.run(
        f"({command})", stdin=ORACLE.encode(), timeout_s=60, max_output_bytes=1 << 24, session="oracle"
    )
    assert result.exit_code == 0 and not result.truncated, result
    lines = [line.partition(" ") for line in result.output.decode().splitlines()]
    return {bytes.fromhex(path)[2:]: what for path, _, what in lines}
