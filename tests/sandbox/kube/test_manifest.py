"""The pod of one sandbox, and how it starts."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.config import KubernetesConfig, Toleration
from sandbox.errors import ImageError
from sandbox.kube.manifest import Mark, config_map, image_ref, pod
from sandbox.spec import SandboxSpec

DIGEST = "sha256:" + "ab" * 32
IMAGE = f"registry.example/team/task@{DIGEST}"
MARK = Mark("sandman-0123456789ab", "f00d", "run-1", "sandman-run-1")


def made(spec: SandboxSpec | None = None, config: KubernetesConfig | None = None) -> dict[str, Any]:
    spec = spec or SandboxSpec(image=IMAGE)
    return pod(spec, config or KubernetesConfig(), MARK, token_sha256="c0ffee", config_map="execd-1")


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    [only] = manifest["spec"]["containers"]
    return dict(only)


def start(manifest: dict[str, Any]) -> dict[str, Any]:
    """What boot.py reads, after the server has expanded `$$`."""
    [variable] = container(manifest)["env"]
    return dict(json.loads(variable["value"].replace("$$", "$")))


def test_a_pod_brings_nothing_of_the_cluster_along() -> None:
    """No service links, no service-account token, no restart, no privilege to gain."""
    spec = made()["spec"]

    assert spec["enableServiceLinks"] is False
    assert spec["automountServiceAccountToken"] is False
    assert "Never" == spec["restartPolicy"]
    assert "serviceAccountName" not in spec
    assert container(made())["securityContext"]["allowPrivilegeEscalation"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()


def test_the_image_is_used_as_it_is_and_named_by_digest() -> None:
    """The reference goes in unchanged; execd comes from a read-only volume under /dev."""
    box = container(made())

    assert IMAGE == box["image"]
    assert {"name": "execd", "mountPath": "/dev/sandman", "readOnly": True} in box["volumeMounts"]
    assert {"name": "execd-1", "defaultMode": 0o444} == made()["spec"]["volumes"][0]["configMap"]


@pytest.mark.parametrize("image", ["host", "name:latest", "name", DIGEST, f"name@{DIGEST[:-1]}", f"a b@{DIGEST}"])
def test_an_image_without_a_digest_is_refused_with_the_remedy(image: str) -> None:
    """What could name another image tomorrow raises `ImageError` that says how to name it."""
    with pytest.raises(ImageError, match="sha256"):
        made(SandboxSpec(image=image))


def test_an_image_of_this_project_is_found_under_its_name_in_the_cluster() -> None:
    """`images` translates a local reference to what the nodes have."""
    found = image_ref("sha256:1", {"sha256:1": IMAGE})

    assert (IMAGE, DIGEST) == (found.reference, found.digest)


def test_the_token_is_not_in_the_pod() -> None:
    """Only the hash that was given is there."""
    assert "c0ffee" == start(made())["document"]["token_sha256"]


def test_resources_are_requested_and_limited() -> None:
    """A named amount is request and limit; where none is named there is a request and no limit."""
    limited = container(made(SandboxSpec(image=IMAGE, cpus=2, memory_mib=512)))["resources"]
    free = container(made())["resources"]

    assert {"cpu": "2000m", "memory": "512Mi"} == limited["requests"] == limited["limits"]
    assert {"requests": {"cpu": "100m", "memory": "256Mi"}} == free


def test_a_quota_goes_before_the_number_of_cpus() -> None:
    """A sandbox may see two CPUs and have the time of a half."""
    spec = SandboxSpec(image=IMAGE, cpus=2, cpu_quota=0.5)

    assert {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"cpu": "500m"}} == container(made(spec))[
        "resources"
    ]
    assert 2 == start(made(spec))["cpus"]


def test_the_user_and_the_filter_of_system_calls_are_the_spec_s() -> None:
    """Filtered unless it says otherwise, as local sandboxes are; the image's own user unless it names one."""
    plain = container(made())["securityContext"]
    other = container(made(SandboxSpec(image=IMAGE, user=1000, seccomp="unconfined")))["securityContext"]

    assert {"type": "RuntimeDefault"} == plain["seccompProfile"]
    assert "runAsUser" not in plain
    assert ("Unconfined", 1000, 1000) == (other["seccompProfile"]["type"], other["runAsUser"], other["runAsGroup"])


def test_shared_memory_is_a_memory_volume_as_large_as_the_limit() -> None:
    """/dev/shm is not the 64 MB of a bare container."""
    manifest = made(SandboxSpec(image=IMAGE, memory_mib=512))

    assert {"medium": "Memory", "sizeLimit": "512Mi"} == manifest["spec"]["volumes"][1]["emptyDir"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container(manifest)["volumeMounts"]
    small = made(SandboxSpec(image=IMAGE, memory_mib=512, shm_mib=32))["spec"]["volumes"][1]["emptyDir"]
    assert "32Mi" == small["sizeLimit"]


def test_pods_spread_over_hosts_without_waiting_for_a_free_one() -> None:
    """The scheduler is asked for an even spread of all sandboxes, softly."""
    [spread] = made()["spec"]["topologySpreadConstraints"]

    assert ("kubernetes.io/hostname", "ScheduleAnyway", 1) == (
        spread["topologyKey"],
        spread["whenUnsatisfiable"],
        spread["maxSkew"],
    )
    assert spread["labelSelector"]["matchLabels"].items() <= made()["metadata"]["labels"].items()


def test_the_kubelet_ends_a_forgotten_pod_after_lifetime_and_budgets() -> None:
    """The active deadline leaves the whole lifetime after the slowest start that the budgets allow."""
    config = KubernetesConfig()
    starting = config.budgets.pull_s + config.budgets.start_s + config.budgets.daemon_s

    assert (
        100 + starting
        <= made(SandboxSpec(image=IMAGE, lifetime_s=99.5))["spec"]["activeDeadlineSeconds"]
        < 101 + (starting)
    )


def test_what_the_cluster_asks_for_is_passed_on() -> None:
    """Node selector, tolerations, pull secrets, classes, labels and annotations come from the config."""
    config = KubernetesConfig(
        node_selector={"pool": "sandboxes"},
        tolerations=(Toleration(key="sandboxes", effect="NoSchedule"),),
        pull_secrets=("registry",),
        runtime_class="gvisor",
        priority_class="low",
        labels={"team": "rl"},
        annotations={"cost": "42"},
    )
    manifest = made(config=config)
    spec = manifest["spec"]

    assert {"pool": "sandboxes"} == spec["nodeSelector"]
    assert [{"key": "sandboxes", "operator": "Exists", "effect": "NoSchedule"}] == spec["tolerations"]
    assert [{"name": "registry"}] == spec["imagePullSecrets"]
    assert ("gvisor", "low") == (spec["runtimeClassName"], spec["priorityClassName"])
    assert "rl" == manifest["metadata"]["labels"]["team"]
    assert "42" == manifest["metadata"]["annotations"]["cost"]


def test_the_configs_labels_cannot_hide_whose_a_pod_is() -> None:
    """A configured label that has one of our names loses."""
    forged = {"sandman-grader/nonce": "forged", "sandman-grader/egress": "open", "sandman-grader/worker": "true"}
    labels = made(SandboxSpec(image=IMAGE, egress="denied"), KubernetesConfig(labels=forged))["metadata"]["labels"]

    assert ("f00d", "denied") == (labels["sandman-grader/nonce"], labels["sandman-grader/egress"])
    assert "sandman-grader/worker" not in labels


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=100), max_size=5))
def test_labels_of_the_caller_are_never_labels_of_the_pod(labels: dict[str, str]) -> None:
    """Any text may be a caller's fact: it is kept in an annotation, where it chooses nothing."""
    metadata = made(SandboxSpec(image=IMAGE, labels=labels))["metadata"]

    assert made()["metadata"]["labels"] == metadata["labels"]
    assert labels == json.loads(metadata["annotations"]["sandman-grader/labels"])


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,9}", fullmatch=True), st.text(max_size=50), max_size=4))
def test_variables_with_dollar_signs_are_not_expanded(env: dict[str, str]) -> None:
    """Kubernetes expands `$(NAME)` in values; what the spec says arrives as written."""
    manifest = made(SandboxSpec(image=IMAGE, env=env))
    [variable] = container(manifest)["env"]

    assert not re.search(r"(?<!\$)(\$\$)*\$\(", variable["value"])
    assert env == start(manifest)["document"]["env"]


def test_the_config_map_is_named_by_its_content() -> None:
    """Another execd is another ConfigMap, and it cannot be changed under running pods."""
    one, two = config_map(b"zip", b"boot"), config_map(b"zip", b"boot2")

    assert one["metadata"]["name"] != two["metadata"]["name"]
    assert one["immutable"] is True
    assert {"execd.pyz": b"zip", "boot.py": b"boot"} == {
        name: base64.b64decode(data) for name, data in one["binaryData"].items()
    }
    assert re.fullmatch(r"[a-z0-9.-]{1,253}", one["metadata"]["name"])


def test_bash_finds_a_python_or_says_that_there_is_none() -> None:
    """Without any of the configured Pythons the container ends with 127 and one sentence."""
    command = container(made(config=KubernetesConfig(pythons=("no-such-python", "/no/such/python3"))))["command"]
    env = {"PATH": os.environ["PATH"]}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20, env=env)

    assert 127 == ended.returncode
    assert "none of the Pythons" in ended.stderr
