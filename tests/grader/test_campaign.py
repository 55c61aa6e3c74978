from __future__ import annotations

import re
from pathlib import Path

import pytest

from grader.campaign import Conditions, load, load_place
from grader.errors import UsageError
from sandbox import KubernetesConfig, LocalConfig, SandboxSpec

GOOD = """
taskset = "tasks.jsonl"
run = "nightly"
recipes = "recipes.jsonl"
patches = "patches/all.jsonl"
only = ["a", "b"]

[conditions]
egress = "open"
time_zone = "UTC"

[provider]
state_dir = "state"

[limits]
concurrency = 7
"""


def write(directory: Path, text: str | bytes) -> Path:
    file = directory / "campaign.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_paths_in_the_file_are_relative_to_the_file(tmp_path: Path) -> None:
    """A campaign file can be used from any working directory."""
    campaign = load(write(tmp_path, GOOD), {})

    assert str(tmp_path / "tasks.jsonl") == campaign.taskset
    assert tmp_path / "recipes.jsonl" == campaign.recipes
    assert str(tmp_path / "patches/all.jsonl") == campaign.patches
    assert isinstance(campaign.provider, LocalConfig)
    assert tmp_path / "state" == campaign.provider.state_dir


def test_flags_win_over_the_file_one_by_one(tmp_path: Path) -> None:
    """A flag replaces its own setting and no other."""
    campaign = load(write(tmp_path, GOOD), {"conditions": {"egress": "denied", "locale": None}, "only": ["c"]})

    assert "denied" == campaign.conditions.egress
    assert "UTC" == campaign.conditions.time_zone
    assert campaign.conditions.locale is None
    assert ("c",) == campaign.only
    assert 7 == campaign.limits.concurrency


def test_words_and_hub_ids_are_no_paths(tmp_path: Path) -> None:
    """`reference`, `empty` and the id of a data set on the hub are left as they are."""
    campaign = load(write(tmp_path, 'taskset = "org/name"\nrun = "r"\npatches = "empty"'), {})

    assert ("org/name", "empty") == (campaign.taskset, campaign.patches)


def test_flags_alone_make_a_campaign() -> None:
    """No file is needed, and paths in flags stay relative to the working directory."""
    campaign = load(None, {"taskset": "tasks.jsonl", "run": "r", "provider": {"state_dir": None}})

    assert ("tasks.jsonl", "local") == (campaign.taskset, campaign.provider.type)


BASE = 'taskset = "t.jsonl"\nrun = "r"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(BASE + "[conditions]\negres = 'open'", "did you mean `egress`?", id="unknown key"),
        pytest.param(
            BASE + "zzzz = 1", "known here: provider, conditions, limits, taskset", id="unknown key without near one"
        ),
        pytest.param(BASE + "[conditions]\negress = 'no'", "`conditions.egress` is 'no'", id="not a choice"),
        pytest.param(BASE + "[limits]\nconcurrency = 'x'", "`limits.concurrency` is 'x'", id="wrong type"),
        pytest.param(BASE + "[limits]\nconcurrency = 0", "`limits.concurrency` is 0", id="out of range"),
        pytest.param(BASE + "conditions = 3", "`conditions` is 3", id="table expected"),
        pytest.param(BASE + "recipes = 3", "`recipes` is 3", id="path expected"),
        pytest.param(
            BASE + "[rewards.flag_costs]\npatch_steer_tests = 0.5",
            "no flag is named `patch_steer_tests`; near: `patch_steers_tests`; correct it",
            id="no flag",
        ),
        pytest.param(BASE + "[rewards.flag_costs]\nzzzz = 1", "`zzzz`; docs/rewards.md has all", id="no near flag"),
        pytest.param(
            BASE + "[rewards.flag_costs]\nlog_truncated = -1",
            "`rewards.flag_costs.log_truncated` is -1: input should be greater than or equal to 0",
            id="a flag that pays",
        ),
        pytest.param(
            BASE + "[rewards.flag_costs]\nlog_truncated = inf", "should be a finite number", id="an endless cost"
        ),
        pytest.param('taskset = "t.jsonl"', "`run` is not given; add --run", id="missing"),
        pytest.param('taskset = "t.jsonl"\nrun = "../up"', "`run` is '../up'", id="run is no path"),
        pytest.param("taskset = ", "is not TOML", id="bad TOML"),
        pytest.param("a = " + "[" * 100_000, "is nested too deeply", id="deep TOML"),
        pytest.param(b"run = '\xff'", "is not UTF-8 text (byte 7)", id="not text"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_file_key_and_remedy(tmp_path: Path, text: str | bytes, said: str) -> None:
    """Every mistake in a campaign file is told in the words of the file."""
    file = write(tmp_path, text)

    with pytest.raises(UsageError) as caught:
        load(file, {"conditions": {"time_zone": "UTC"}})

    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("section", "setting", "said"),
    [
        ("conditions", "user = 4294967295", "less than or equal to 4294967294"),
        ("conditions", "memory_mib = 1", "greater than or equal to 16"),
        ("conditions", "memory_mib = 100000000000000000000", "less than or equal to 4294967296"),
        ("conditions", "processes = 1", "greater than or equal to 16"),
        ("conditions", "processes = 4194305", "less than or equal to 4194304"),
        ("conditions", "shm_mib = 100000000000000000000", "less than or equal to 4294967296"),
        ("conditions", "cpu_quota = 1e-7", "greater than or equal to 0.01"),
        ("conditions", "cpu_quota = 1e30", "less than or equal to 8192"),
        ("conditions", "visible_cpus = 100000000000000000000", "less than or equal to 8192"),
        ("conditions", "open_files = 100000000000000000000", "less than or equal to 1099511627776"),
        ("conditions", r'locale = "a\u0000b"', "holds a NUL"),
        ("conditions", 'locale = ""', "is empty"),
        ("conditions", 'kernel = ""', "is empty"),
        ("conditions", 'architecture = ""', "is empty"),
        ("conditions", 'runtime_class = ""', "is empty"),
        ("conditions", 'tzdata_version = ""', "is empty"),
        ("conditions", 'visible_cpus = "1"', "valid integer"),
        ("conditions", "hash_seed = true", "valid integer"),
        ("conditions", "attempts = 3.0", "valid integer"),
        ("conditions", "ipv6 = 1", "valid boolean"),
        ("conditions", "test_time_limit_s = true", "valid number"),
        ("limits", "concurrency = true", "valid integer"),
        ("limits", 'grading_timeout_s = "9"', "valid number"),
        ("rewards", "resolved = true", "valid number"),
        ("rewards", 'timed_out = "0"', "valid number"),
    ],
)
def test_a_value_that_cannot_work_is_refused(tmp_path: Path, section: str, setting: str, said: str) -> None:
    """What no sandbox can be made with, and what is of another type, is a mistake in the file, with what is allowed."""
    with pytest.raises(UsageError) as caught:
        load(write(tmp_path, f"{BASE}[{section}]\n{setting}"), {})

    told = str(caught.value)
    assert told.startswith(f"{tmp_path}/campaign.toml: `{section}.{setting.partition(' ')[0]}` is ")
    assert said in told
    assert 1 == len(told.splitlines())


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ('"A=B" = "c"', "'A=B' is no name of an environment variable; correct it or leave it out"),
        ('"" = "c"', "'' is no name of an environment variable"),
        ('"9A" = "c"', "'9A' is no name"),
        (r'A = "b\u0000c"', "holds a NUL"),
    ],
)
def test_an_environment_is_one_that_a_shell_takes(tmp_path: Path, environment: str, said: str) -> None:
    """As in a recipe; what the variables then do is for whoever declares them to say."""
    with pytest.raises(UsageError, match=re.escape(said)):
        load(write(tmp_path, f"{BASE}[conditions.environment]\n{environment}"), {})
    campaign = load(write(tmp_path, f'{BASE}[conditions.environment]\nPATH = "/nowhere"\nEMPTY = ""'), {})
    assert {"PATH": "/nowhere", "EMPTY": ""} == campaign.conditions.environment


@pytest.mark.parametrize("name", ["cpu_quota", "memory_mib", "processes", "open_files", "shm_mib", "user"])
def test_what_is_declared_has_the_bounds_of_a_sandbox(name: str) -> None:
    """Whatever a campaign may declare can be asked of a provider."""
    assert SandboxSpec.model_fields[name].annotation == Conditions.model_fields[name].annotation
    assert SandboxSpec.model_fields[name].metadata == Conditions.model_fields[name].metadata


def test_settings_that_deny_each_other_are_refused(tmp_path: Path) -> None:
    """What one campaign declares of the grader and sets otherwise is told before any sandbox, both together."""
    text = (
        BASE + "[conditions]\nattempts = 3\ntest_time_limit_s = 100\n[limits]\nattempts = 2\ngrading_timeout_s = 99.5"
    )
    file = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load(file, {})
    assert [
        f"{file}: `conditions.attempts` is 3 and `limits.attempts` is 2; declare what the limit says, or nothing",
        f"{file}: `conditions.test_time_limit_s` is 100 and `limits.grading_timeout_s` is 99.5, which would cut the"
        " tests' time; give the grading more, or the tests less",
    ] == str(caught.value).splitlines()
    assert 3 == load(file, {"limits": {"attempts": 3, "grading_timeout_s": 100}}).conditions.attempts


def test_two_mistakes_are_told_together(tmp_path: Path) -> None:
    """A person corrects a file once, not once per mistake."""
    file = write(tmp_path, BASE + "a = 1\nb = 2")

    with pytest.raises(UsageError, match=r"`a` is not a setting.*\n.*`b` is not a setting"):
        load(file, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A campaign file that is not there is named."""
    with pytest.raises(UsageError, match=r"none\.toml: cannot be read"):
        load(tmp_path / "none.toml", {})


def test_a_campaign_names_its_provider_and_that_provider_s_settings(tmp_path: Path) -> None:
    """`type` chooses; each provider has settings of its own, and its paths are relative to the file."""
    text = BASE + "[provider]\ntype = 'kubernetes'\nnamespace = 'a'\nkubeconfig = 'kube'\n[provider.pacing]\nburst = 3"
    campaign = load(write(tmp_path, text), {"provider": {"type": None, "namespace": "b", "state_dir": None}})

    assert isinstance(campaign.provider, KubernetesConfig)
    assert ("b", tmp_path / "kube", 3) == (
        campaign.provider.namespace,
        campaign.provider.kubeconfig,
        campaign.provider.pacing.burst,
    )


def test_a_grading_has_time_for_its_tests_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    """Whoever asks for a longer time limit alone does not have to know of the other."""
    file = write(tmp_path, BASE)
    asked = {"conditions": {"test_time_limit_s": 7200.0}}
    assert 3600 == load(file, {}).limits.grading_timeout_s
    assert 14400 == load(file, asked).limits.grading_timeout_s
    assert 7300 == load(file, {**asked, "limits": {"grading_timeout_s": 7300.0}}).limits.grading_timeout_s
    with pytest.raises(UsageError, match=r"is 7200 and `limits\.grading_timeout_s` is 3600"):
        load(file, {**asked, "limits": {"grading_timeout_s": 3600.0}})


def test_a_home_directory_is_no_folder_beside_the_file(tmp_path: Path) -> None:
    """`~` in the file is the user's home."""
    campaign = load(write(tmp_path, BASE + "[provider]\nstate_dir = '~/state'"), {})

    assert isinstance(campaign.provider, LocalConfig)
    assert Path("~/state").expanduser() == campaign.provider.state_dir


def test_a_place_alone_needs_no_task_set(tmp_path: Path) -> None:
    """The doctor looks at a provider without a campaign; a file that is given must be a whole one."""
    assert "kubernetes" == load_place(None, {"provider": {"type": "kubernetes"}}).provider.type
    with pytest.raises(UsageError, match="`taskset` is not given"):
        load_place(write(tmp_path, 'run = "r"'), {})


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        pytest.param("type = 'moon'", "`provider.type` is 'moon': it must be `local` or `kubernetes`", id="unknown"),
        pytest.param("namespace = 'x'", "not a setting of the local provider but of the kubernetes one", id="local"),
        pytest.param("type = 'kubernetes'\nstate_dir = 'x'", "but of the local one; say --provider local", id="kube"),
        pytest.param("type = 'kubernetes'\nnamespce = 'x'", "did you mean `namespace`?", id="misspelt"),
        pytest.param("type = 'kubernetes'\npacing = {brst = 3}", "`provider.pacing.brst` is not", id="inner"),
        pytest.param("type = 'kubernetes'\ntolerations = [{kye = '3'}]", "did you mean `key`?", id="in a list"),
        pytest.param("type = 'kubernetes'\nport = 80", "`provider.port` is 80", id="out of range"),
    ],
)
def test_a_mistake_in_a_provider_is_told_in_the_words_of_the_file(tmp_path: Path, provider: str, said: str) -> None:
    """Names are those of the file, and a setting of the other provider is said to be one."""
    with pytest.raises(UsageError) as caught:
        load(write(tmp_path, f"{BASE}[provider]\n{provider}"), {})

    assert said in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())
