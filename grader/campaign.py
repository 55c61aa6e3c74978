"""A campaign: one frozen config that says what is graded, where, and under which declared conditions.

`load` makes one from a TOML file and flags; flags win. It raises `UsageError` with one sentence for each mistake.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import zoneinfo
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from grader.errors import UsageError
from grader.flags import FLAGS
from grader.tamper import TamperPolicy
from sandbox.config import KubernetesConfig, LocalConfig, ProviderConfig
from sandbox.spec import CpuQuota, Cpus, MemoryMib, OpenFiles, Processes, ShmMib, UserId
from tasksets.images import refuse_no_name, refuse_no_text


def _text(value: str) -> str:
    if not value:
        raise ValueError("is empty")
    refuse_no_text((value,))
    return value


_Words = Annotated[str, AfterValidator(_text)]


class Conditions(BaseModel):
    """Declared run conditions. What is None is not declared: it is recorded as observed, never compared."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    egress: Literal["denied", "open"] | None = "denied"
    """Whether tests may reach any address but loopback."""
    visible_cpus: Cpus | None = None
    """CPUs that the tests may run on (`nproc`, `os.sched_getaffinity`)."""
    cpu_count: Cpus | None = None
    """CPUs that the tests' Python counts (`os.cpu_count()`). In a pod that is the node's number."""
    cpu_quota: CpuQuota | None = None
    """CPU seconds per second that the kernel allows."""
    memory_mib: MemoryMib | None = None
    """Memory limit in MiB that the kernel enforces."""
    processes: Processes | None = None
    """Processes and threads at once that the kernel allows."""
    open_files: OpenFiles | None = None
    """Soft limit of descriptors that one process may have open."""
    shm_mib: ShmMib | None = None
    """Size of `/dev/shm` in MiB."""
    test_time_limit_s: float = Field(default=1800.0, gt=0)
    """Seconds that the suite may run. It is the limit the grader sends, and the probe compares the two."""
    attempts: int | None = Field(default=None, gt=0)
    """Sandboxes that a grading may take, of `limits.attempts`."""
    hash_seed: int | None = Field(default=None, ge=0, le=4294967295)
    """`PYTHONHASHSEED` for the tests. It is read back from hashes that their Python makes."""
    time_zone: str | None = None
    """IANA name, such as `UTC`, of the zone that the tests' Python tells the time in."""
    tzdata_version: _Words | None = None
    """Of the image's zone files, such as `2025b`."""
    locale: _Words | None = None
    """`LC_ALL` and `LANG` for the tests, such as `C.UTF-8`; the image must have it."""
    user: UserId | None = None
    """Numeric user id that runs the tests."""
    umask: str | None = Field(default=None, pattern="^0?[0-7]{3}$")
    """In octal, such as `"022"`."""
    ipv6: bool | None = None
    """Whether tests can listen on `::1`."""
    clock_within_s: float | None = Field(default=None, gt=0)
    """Seconds by which the tests' clock may differ from the grader's."""
    architecture: _Words | None = None
    """As `uname -m` says, such as `x86_64`."""
    kernel: _Words | None = None
    """Release of the kernel or its first parts: `6.1` agrees with `6.1.0-13-amd64`."""
    runtime_class: _Words | None = None
    """What runs the sandbox: `bubblewrap`, or the cluster's runtime class, `default` where the provider names none."""
    seccomp: Literal["filtered", "unconfined"] | None = None
    """Whether the tests' system calls are filtered."""
    environment: Mapping[str, str] | None = None
    """Further variables of the tests' environment, which must have these values once the task's own is activated."""
    image_digest: str | None = Field(default=None, pattern="^sha256:[0-9a-f]{64}$")
    """Of the image, for a campaign whose tasks share one."""

    @field_validator("time_zone")
    @classmethod
    def _is_known_here(cls, name: str | None) -> str | None:
        """A name that is mistyped would be UTC to the tests, and unread to the probe."""
        try:
            if name is not None:
                zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            if zoneinfo.available_timezones():
                raise ValueError("is no time zone that this machine knows; give a name such as `UTC`") from error
        return name

    @field_validator("environment")
    @classmethod
    def _is_a_shells_and_leaves_the_others_their_own(
        cls, environment: Mapping[str, str] | None
    ) -> Mapping[str, str] | None:
        own = {"PYTHONHASHSEED": "hash_seed", "TZ": "time_zone", "LC_ALL": "locale", "LANG": "locale"}
        for name in own.keys() & (environment or {}).keys():
            raise ValueError(f"{name} is declared by `{own[name]}`; use that")
        refuse_no_name(environment or ())
        refuse_no_text((environment or {}).values())
        return environment


_Cost = Annotated[float, Field(ge=0)] | None
_FLAG_COSTS: dict[str, _Cost] = {"results_conflict": None, "channel_noise": None}


class RewardPolicy(BaseModel):
    """From a verdict to a number. No verdict is always None, whatever stands here."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    resolved: float = 1.0
    unresolved: float = 0.0
    patch_rejected: float = 0.0
    timed_out: float | None = 0.0
    """None: a suite that outlives its limit leaves the group."""
    fail_to_pass_share: float = Field(default=0.0, ge=0)
    """What an unresolved grading earns besides, times the share of its FAIL_TO_PASS tests that pass; nothing where a
    PASS_TO_PASS test broke. 0: binary."""
    flag_costs: dict[str, _Cost] = _FLAG_COSTS
    """What a flag of that name (`grader.flags`) takes off what was earned. None: the grading leaves the group. The
    defaults are for what no honest run shows, and stay for flags that are not named; a change of `setup.cfg`
    (`patch_steers_tests`) costs nothing."""

    @field_validator("flag_costs")
    @classmethod
    def _defaults_stay(cls, given: dict[str, float | None]) -> dict[str, float | None]:
        for name in given.keys() - FLAGS.keys():
            near = difflib.get_close_matches(name, FLAGS, n=1)
            raise ValueError(
                f"no flag is named `{name}`; " + (f"near: `{near[0]}`" if near else "docs/rewards.md has all")
            )
        return {**_FLAG_COSTS, **given}


class Limits(BaseModel):
    """Budgets, in seconds unless the name says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    concurrency: int = Field(default=2, gt=0)
    """Gradings in flight at once."""
    attempts: int = Field(default=3, gt=0)
    """Sandboxes per grading: a new one is tried after infrastructure trouble."""
    acquire_timeout_s: float = Field(default=300.0, gt=0)
    """Waiting for a sandbox, all phases of its create included."""
    grading_timeout_s: float = Field(default=3600.0, gt=0)
    """One grading in all: create, probe, apply, suite, stop, every attempt. Where it is not given and the tests may run
    for longer than half of it, it is twice their limit."""
    max_log_mib: int = Field(default=64, gt=0, le=64)
    """Beyond this a log loses its middle and says so. At most 64: the daemon keeps no more of one command's output."""


class Place(BaseModel):
    """Where gradings happen and what they may take: the part of a campaign that `grader doctor` looks at."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: ProviderConfig = LocalConfig()
    """`type` is `local`, which holds where none is given, or `kubernetes`; each has settings of its own."""
    conditions: Conditions = Conditions()
    limits: Limits = Limits()


class Campaign(Place):
    """What `grader grade` runs. A TOML file holds the same names; flags win over it."""

    taskset: str
    """A JSONL or Parquet file, or the id of a data set on the hub."""
    recipes: Path | None = None
    """JSONL of image recipes. A task with a recipe runs on the recipe's image."""
    images: Path | None = None
    """JSONL of `instance_id` and `image`: the image that a task runs on, whatever its row or recipe says of images."""
    patches: str = "reference"
    """`reference`, `empty`, or a JSONL file of `instance_id`, `model_name_or_path`, `model_patch`."""
    only: tuple[str, ...] = ()
    """Task ids to grade; empty means all."""
    admission: Path | None = None
    """An admission file of `grader preflight`. Only tasks that it admits are graded; it must hold for this campaign."""
    run: str
    """Name of the run: its directory holds the ledger and the logs."""
    runs_dir: Path = Path("runs")
    tampering: TamperPolicy = "report"
    """What becomes of a patch that changes tests, their configuration, start-up files or the runner: `report`, `strip`
    or `refuse`. `strip` takes a second sandbox for each such patch."""
    rewards: RewardPolicy = RewardPolicy()

    @field_validator("run")
    @classmethod
    def _is_a_directory_name(cls, run: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run):
            raise ValueError("must be up to 100 letters, digits, `.`, `_` or `-`, and begin with a letter or digit")
        return run


P = TypeVar("P", bound=Place)

_PROVIDERS: Mapping[str, type[BaseModel]] = {"local": LocalConfig, "kubernetes": KubernetesConfig}


def load(file: Path | None, flags: Mapping[str, Any]) -> Campaign:
    """The campaign of a TOML file, with `flags` over it: nested dicts under the names of `Campaign`, None left out.

    Paths in the file are relative to the file, paths in flags to the working directory. Raises `UsageError`.
    """
    return _validated(Campaign, file, flags)


def load_place(file: Path | None, flags: Mapping[str, Any]) -> Place:
    """As `load`, where only the place matters: no task set is needed unless a file is given."""
    return _validated(Place if file is None else Campaign, file, flags)


def _validated(model: type[P], file: Path | None, flags: Mapping[str, Any]) -> P:
    settings = _merged(_read_toml(file) if file else {}, flags)
    try:
        found = model.model_validate(settings)
    except ValidationError as error:
        raise UsageError("\n".join(_sentence(file, dict(one)) for one in error.errors())) from error
    found = _with_time_for_the_tests(found)
    if told := list(_contradictions(found)):
        raise UsageError("\n".join(f"{file}: {one}" if file else one for one in told))
    return found


def _with_time_for_the_tests(place: P) -> P:
    wanted_s = 2 * place.conditions.test_time_limit_s
    if "grading_timeout_s" in place.limits.model_fields_set or wanted_s <= place.limits.grading_timeout_s:
        return place
    return place.model_copy(update={"limits": place.limits.model_copy(update={"grading_timeout_s": wanted_s})})


def _contradictions(place: Place) -> Iterator[str]:
    """What the settings of one campaign declare and themselves deny; each sandbox would find it out anew."""
    conditions, limits = place.conditions, place.limits
    if conditions.attempts not in {None, limits.attempts}:
        yield (
            f"`conditions.attempts` is {conditions.attempts} and `limits.attempts` is {limits.attempts};"
            " declare what the limit says, or nothing"
        )
    if conditions.test_time_limit_s > limits.grading_timeout_s:
        yield (
            f"`conditions.test_time_limit_s` is {conditions.test_time_limit_s:g} and `limits.grading_timeout_s` is"
            f" {limits.grading_timeout_s:g}, which would cut the tests' time; give the grading more, or the tests less"
        )


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        text = file.read_bytes().decode()
        settings = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); name a campaign file in TOML") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except RecursionError as error:
        raise UsageError(f"{file}: is nested too deeply; correct it") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: is not TOML: {error}; correct that line") from error
    return _beside(file.parent, settings)


def _beside(directory: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, with relative paths made relative to the file. A wrong type is left for the model to tell."""

    def moved(value: object) -> object:
        return str(directory / Path(value).expanduser()) if isinstance(value, str) else value

    found = dict(settings)
    for name in {"recipes", "images", "runs_dir", "admission"} & found.keys():
        found[name] = moved(found[name])
    for name, words in (("taskset", ()), ("patches", ("reference", "empty"))):
        value = found.get(name)
        if isinstance(value, str) and value not in words and (name == "patches" or _is_file_name(directory, value)):
            found[name] = moved(value)
    provider = found.get("provider")
    if isinstance(provider, dict):
        paths = {"state_dir", "kubeconfig"} & provider.keys()
        found["provider"] = provider | {name: moved(provider[name]) for name in paths}
    return found


def _is_file_name(directory: Path, value: str) -> bool:
    """Whether a task set is named as a file; else it is the id of a data set on the hub."""
    return Path(value).suffix in {".jsonl", ".json", ".parquet"} or (directory / value).exists()


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        if isinstance(value, Mapping):
            inner = merged.get(name, {})
            # What the file has wrong stays wrong, and is said; a flag does not hide it.
            merged[name] = _merged(inner, value) if isinstance(inner, Mapping) else inner
        elif value is not None:
            merged[name] = value
    return {name: value for name, value in merged.items() if value != {} or name in below}


def _sentence(file: Path | None, error: Mapping[str, Any]) -> str:
    """One mistake that pydantic found, as a person would say it: where, what, and what to do."""
    where = f"{file}: " if file else ""
    location = [str(part) for part in error["loc"]]
    provider = _PROVIDERS.get(location[1]) if location[0] == "provider" and len(location) > 1 else None
    if provider is not None:
        del location[1]  # which of the union's models it is, as pydantic counts
    name = ".".join(location)
    kind, given = error["type"], error.get("input")
    if kind == "missing":
        return f"{where}`{name}` is not given; add --{location[-1]}" + (f" or set it in {file}" if file else "")
    if kind == "union_tag_invalid":
        kinds = " or ".join(f"`{kind}`" for kind in _PROVIDERS)
        return f"{where}`{name}.type` is {error['ctx']['tag']!r}: it must be {kinds}; correct it or leave it out"
    if kind == "extra_forbidden":
        return f"{where}`{name}` is not a setting{_instead(location, provider)}"
    said = str(error["msg"]).removeprefix("Value error, ").removesuffix("; correct it").removesuffix("; remove it")
    return f"{where}`{name}` is {given!r}: {said[:1].lower()}{said[1:]}; correct it or leave it out"


def _instead(location: list[str], provider: type[BaseModel] | None) -> str:
    """What may have been meant by a name that is not known where it stands."""
    own = location[-1]
    for kind, other in _PROVIDERS.items():
        if provider not in {None, other} and len(location) == 2 and own in other.model_fields:
            this = provider.model_fields["type"].default if provider else ""
            return f" of the {this} provider but of the {kind} one; say --provider {kind}, or leave it out"
    known = _names_at(location[:-1], provider)
    near = difflib.get_close_matches(own, known, n=1)
    return f"; did you mean `{near[0]}`?" if near else f"; known here: {', '.join(known)}"


def _names_at(location: list[str], provider: type[BaseModel] | None) -> list[str]:
    model: type[BaseModel] = Campaign
    for part in location:
        if part == "provider" and provider is not None:
            model = provider
            continue
        if part.isdigit():  # a place in a list, whose members are the model that was found
            continue
        inner = next(_models_of(model.model_fields[part].annotation), None) if part in model.model_fields else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            yield candidate
