"""What is read of the server's JSON about pods, as types: checked while it is parsed, and the rest is passed over.

Most of a pod's JSON is what we have sent and what the server notes for itself, and a run reads several for each
sandbox. What a server may leave out is not `Required`; what it may write as null is `| None`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Required, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # the one that pydantic takes before Python 3.12

Raw = bytes | Mapping[str, Any]
"""JSON as it came, or parsed."""

_T = TypeVar("_T")


class RunningJSON(TypedDict, total=False):
    """Of a container that runs."""

    startedAt: str | None


class WaitingJSON(TypedDict, total=False):
    """Of a container that does not run yet."""

    reason: str | None
    message: str | None


class TerminatedJSON(TypedDict, total=False):
    """Of a container that has ended."""

    exitCode: int | None
    reason: str | None
    message: str | None
    startedAt: str | None
    finishedAt: str | None


class StateJSON(TypedDict, total=False):
    """One of the three."""

    running: RunningJSON | None
    waiting: WaitingJSON | None
    terminated: TerminatedJSON | None


class ContainerJSON(TypedDict, total=False):
    """The status of one container."""

    name: Required[str]
    imageID: str | None
    state: StateJSON | None


class ConditionJSON(TypedDict, total=False):
    """`status` is True, False or Unknown, as text."""

    type: Required[str]
    status: Required[str]
    reason: str | None
    message: str | None
    lastTransitionTime: str | None


class StatusJSON(TypedDict, total=False):
    """Of a pod."""

    phase: str | None
    reason: str | None
    message: str | None
    podIP: str | None
    conditions: list[ConditionJSON] | None
    containerStatuses: list[ContainerJSON] | None


class SpecJSON(TypedDict, total=False):
    """Of a pod."""

    nodeName: str | None


class MetadataJSON(TypedDict, total=False):
    """Of any object that exists."""

    name: Required[str]
    uid: Required[str]
    resourceVersion: str | None
    labels: dict[str, str] | None
    creationTimestamp: str | None
    deletionTimestamp: str | None


class PodJSON(TypedDict, total=False):
    """A pod, or its metadata alone."""

    metadata: Required[MetadataJSON]
    spec: SpecJSON | None
    status: StatusJSON | None


ListMetadataJSON = TypedDict("ListMetadataJSON", {"resourceVersion": str | None, "continue": str | None}, total=False)


class PodListJSON(TypedDict, total=False):
    """One page of a list."""

    items: list[PodJSON] | None
    metadata: Required[ListMetadataJSON]


class PodLineJSON(TypedDict):
    """Of a watch: news of a pod."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: PodJSON


class _Mark(TypedDict):
    metadata: ListMetadataJSON


class MarkLineJSON(TypedDict):
    """Of a watch: how far it has come."""

    type: Literal["BOOKMARK"]
    object: _Mark


class _Failure(TypedDict, total=False):
    code: int | None


class ErrorLineJSON(TypedDict):
    """Of a watch: its end."""

    type: Literal["ERROR"]
    object: _Failure


LineJSON = Annotated[PodLineJSON | MarkLineJSON | ErrorLineJSON, Field(discriminator="type")]


class _Involved(TypedDict, total=False):
    name: str | None
    uid: str | None


class EventJSON(TypedDict, total=False):
    """What a component of the cluster noted about an object."""

    reason: str | None
    message: str | None
    lastTimestamp: str | None
    eventTime: str | None
    involvedObject: _Involved | None


class EventListJSON(TypedDict, total=False):
    """One page of a list. Each event is read by itself: one that cannot be is no loss to the others."""

    items: list[Any] | None
    metadata: ListMetadataJSON | None


POD = TypeAdapter[PodJSON](PodJSON)
POD_LIST = TypeAdapter[PodListJSON](PodListJSON)
LINE = TypeAdapter[PodLineJSON | MarkLineJSON | ErrorLineJSON](LineJSON)
EVENT = TypeAdapter[EventJSON](EventJSON)
EVENT_LIST = TypeAdapter[EventListJSON](EventListJSON)


def read(what: TypeAdapter[_T], raw: Raw) -> _T:
    """The JSON as that type. Raises ValueError, which says where it is none."""
    try:
        return what.validate_json(raw) if isinstance(raw, bytes) else what.validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "it"
        raise ValueError(f"the server's JSON is not what it should be: {where}: {first['msg']}") from error
