"""Tools for an agent in a sandbox, bash and edit, with the schemas that model APIs take.

    reply = await call(box, name, arguments)      # of a model's tool call; text for the model
    openai_tools(), anthropic_tools()             # what to tell the model

A mistake of the model's is an answer that says so, never an exception. Trouble with the sandbox is a `SandboxError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sandbox import Sandbox
from sandbox.errors import CommandRefused, FileRefused

MAX_SHOWN_BYTES = 30_000
"""Output beyond this loses its middle, and says so. Lines of a file beyond this are not shown: fewer are asked for."""


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"has a lone surrogate at character {error.start}, which no file can hold") from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]
"""JSON can say halves of characters, and models do."""


class Bash(BaseModel):
    """Run a command in a persistent bash shell: directory, variables and background processes last for the next."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Text = Field(description="The command. Its standard input is empty.")
    timeout_s: float = Field(default=120.0, gt=0, le=3600, description="Seconds until it and its children are killed.")


class Edit(BaseModel):
    """View or edit a text file. Every byte outside of an edit stays as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Literal["view", "create", "replace", "insert", "undo"] = Field(
        description="view lines; create a new file; replace a text that is in the file exactly once; insert lines"
        " behind a line; undo the last edit of the file"
    )
    path: Text = Field(description="Absolute path.", pattern="^/")
    text: Text = Field(default="", description="create: the whole file. insert: the lines. replace: the new text.")
    old: Text = Field(default="", description="replace: the text to be replaced, exactly as it stands in the file.")
    first_line: int = Field(default=1, ge=1, description="view: the first line, from 1.")
    last_line: int | None = Field(default=None, ge=1, description="view: the last line. Without it, to the end.")
    after_line: int = Field(default=0, ge=0, description="insert: the line to insert behind. 0 inserts at the top.")


TOOLS: Mapping[str, type[BaseModel]] = {"bash": Bash, "edit": Edit}


@dataclass(frozen=True)
class Reply:
    """What a tool call gives the model."""

    text: str
    is_error: bool
    """The call could not be carried out as asked. A command that failed is no error."""


def openai_tools() -> list[dict[str, Any]]:
    """The tools in the form of OpenAI's chat completions (`tools=`)."""
    return [
        {"type": "function", "function": {"name": name, "description": _about(tool), "parameters": _schema(tool)}}
        for name, tool in TOOLS.items()
    ]


def anthropic_tools() -> list[dict[str, Any]]:
    """The tools in the form of Anthropic's messages (`tools=`)."""
    return [{"name": name, "description": _about(tool), "input_schema": _schema(tool)} for name, tool in TOOLS.items()]


def _about(tool: type[BaseModel]) -> str:
    return " ".join((tool.__doc__ or "").split())


def _schema(tool: type[BaseModel]) -> dict[str, Any]:
    schema = tool.model_json_schema()
    schema.pop("description", None)
    schema.pop("title", None)
    for about in schema["properties"].values():
        about.pop("title", None)
    return schema


async def call(box: Sandbox, name: str, arguments: Mapping[str, Any]) -> Reply:
    """Carry out a model's tool call. Raises `SandboxError` for trouble that is not the model's."""
    tool = TOOLS.get(name)
    if tool is None:
        return Reply(f"there is no tool {name!r}; there are {', '.join(TOOLS)}", True)
    try:
        asked = tool.model_validate(arguments)
        return await (bash(box, asked) if isinstance(asked, Bash) else edit(box, asked))  # type: ignore[arg-type]
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return Reply(f"the arguments do not fit: {wrong}", True)
    except (FileRefused, CommandRefused) as error:
        return Reply(str(error), True)


async def bash(box: Sandbox, asked: Bash) -> Reply:
    """Run a command and show its output and how it ended."""
    ended = await box.run(asked.command, timeout_s=asked.timeout_s, max_output_bytes=MAX_SHOWN_BYTES)
    text = ended.output.decode("utf-8", "replace")
    if ended.truncated:
        cut = len(ended.output) - len(ended.output) // 2  # the head has the odd byte
        head, tail = (part.decode("utf-8", "replace") for part in (ended.output[:cut], ended.output[cut:]))
        text = f"{head}\n[{ended.output_bytes - len(ended.output)} bytes left out]\n{tail}"
    notes = [f"exit code {ended.exit_code}"]
    notes += [f"killed after {asked.timeout_s:g} s"] if ended.timed_out else []
    notes += ["the shell ended and was started again"] if ended.shell_restarted else []
    return Reply(f"{text.rstrip()}\n[{', '.join(notes)}]".lstrip("\n"), False)


async def edit(box: Sandbox, asked: Edit) -> Reply:
    """View or edit, and say what is there now."""
    edits = box.edit
    match asked.command:
        case "view":
            view = await edits.view(asked.path, first=asked.first_line, last=asked.last_line)
            if len(view.text.encode()) > MAX_SHOWN_BYTES:
                return Reply(_too_much(asked, view.first, view.last), True)
            return Reply(_numbered(view.text, view.first) + f"[{view.lines} lines]", False)
        case "create":
            done = await edits.create(asked.path, asked.text)
        case "replace":
            done = await edits.replace(asked.path, asked.old, asked.text)
        case "insert":
            done = await edits.insert(asked.path, asked.after_line, asked.text)
        case "undo":
            done = await edits.undo(asked.path)
    return Reply(f"{asked.path}: lines {done.first_line} to {done.last_line} are new", False)


def _too_much(asked: Edit, first: int, last: int) -> str:
    return (
        f"{asked.path}: lines {first} to {last} have more than {MAX_SHOWN_BYTES} bytes; give first_line and last_line"
        " so that fewer are shown, or cut a very long line with bash"
    )


def _numbered(text: str, first: int) -> str:
    """The lines as edits count them: a line ends at a line feed, and at nothing else that Unicode ends lines with."""
    lines = text.removesuffix("\n").split("\n") if text else []
    return "".join(f"{number:6}\t{line.removesuffix(chr(13))}\n" for number, line in enumerate(lines, first))
