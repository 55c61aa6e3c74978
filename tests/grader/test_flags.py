"""Claims about `grader.flags`: the one list of flags, against the code that makes them and the page that tells them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import grader
from grader.flags import FLAGS

NAME = "[a-z]+(?:_[a-z]+)+"
ROOT = Path(grader.__file__).parents[1]


def test_the_list_has_every_flag_that_the_code_makes_and_no_other() -> None:
    """A flag that is new is listed, and one that went away is not."""
    files = (ROOT / "grader").rglob("*.py")
    assert set(FLAGS) == {name for file in files for name in made_in(ast.parse(file.read_text()))}


def test_the_page_has_the_list() -> None:
    """docs/rewards.md names them all, with the same words."""
    page = (ROOT / "docs/rewards.md").read_text()
    assert dict(FLAGS) == dict(re.findall(rf"^\| `({NAME})` \| ([^|]*) \|$", page, re.MULTILINE))


def made_in(tree: ast.Module) -> Iterator[str]:
    """Names of flags in a module's text: `name: words`, or the first of tuples in a function that has `f"{name}: "`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(f"{NAME}: ", node.value):
            yield node.value.partition(":")[0]
        if isinstance(node, ast.FunctionDef) and any(map(_joins_a_name, ast.walk(node))):
            firsts = [inner.elts[0] for inner in ast.walk(node) if isinstance(inner, ast.Tuple) and inner.elts]
            words = [first.value for first in firsts if isinstance(first, ast.Constant)]
            yield from (word for word in words if isinstance(word, str) and re.fullmatch(NAME, word))


def _joins_a_name(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) and ast.unparse(node).removeprefix("f")[1:].startswith("{name}: ")
