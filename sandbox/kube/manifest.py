"""What is sent to the server: the pod of one sandbox, execd's ConfigMap, and the marks by which ours are known. Pure.

A pod of ours has no Service, no service links, no service-account token, and restarts never. Its image is named by
digest and used as it is: execd comes from a read-only ConfigMap volume under `/dev`, which every container has fresh,
and runs as PID 1 on the image's own Python, which bash finds. Only the token's hash is in the pod.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox.bundle import daemon_argv
from sandbox.config import KubernetesConfig
from sandbox.errors import ImageError
from sandbox.spec import SandboxSpec

PREFIX = "sandman-grader"
"""Of every label, annotation and object name of ours."""

SANDBOX_LABEL = f"{PREFIX}/sandbox"
RUN_LABEL = f"{PREFIX}/run"
LEASE_LABEL = f"{PREFIX}/lease"
NONCE_LABEL = f"{PREFIX}/nonce"
EGRESS_LABEL = f"{PREFIX}/egress"
WORKER_LABEL = f"{PREFIX}/worker"
"""On the pods of workers, which the network policy lets in. Never on a sandbox."""
FACTS_ANNOTATION = f"{PREFIX}/labels"

CONTAINER = "sandbox"
MOUNT = "/dev/sandman"
ZIPAPP_KEY = "execd.pyz"
BOOT_KEY = "boot.py"
CONFIG_FD = 9
DEFAULT_SHM_MIB = 64

DEFAULT_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
"""What commands see where the image does not say otherwise; as in the local provider."""

LAUNCH = f"""shopt -s execfail
for python; do
  python=$(type -P -- "$python") || continue
  exec "$python" -I -S -B {MOUNT}/{BOOT_KEY}
done
echo "sandman: this image has none of the Pythons that the provider knows; name one in \\`pythons\\`" >&2
exit 127"""
"""Run by the image's bash: becomes the first Python that is there."""

NO_PYTHON_EXIT = 127

_BY_DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Mark:
    """Who a pod is. All of it is chosen before the request."""

    name: str
    nonce: str
    run: str
    lease: str


@dataclass(frozen=True)
class ImageRef:
    """An image as a node pulls it."""

    reference: str
    digest: str
    """`sha256:<hex>`."""


def image_ref(image: str, images: Mapping[str, str]) -> ImageRef:
    """The reference that goes into the pod. Raises `ImageError` where it is not fixed by a digest."""
    reference = images.get(image, image)
    if not _BY_DIGEST.fullmatch(reference):
        raise ImageError(
            f"image {image!r}: a cluster takes `name@sha256:<64 hex digits>` only; name it so, or give the reference "
            "of the same image under `images` of the provider's config",
            reference=image,
        )
    return ImageRef(reference, reference.partition("@")[2])


def pod(
    spec: SandboxSpec, config: KubernetesConfig, mark: Mark, *, token_sha256: str, config_map: str
) -> dict[str, Any]:
    """The pod of one sandbox, as JSON. Raises `ImageError`."""
    labels = {
        **{name: value for name, value in config.labels.items() if not name.startswith(f"{PREFIX}/")},
        "app.kubernetes.io/managed-by": PREFIX,
        SANDBOX_LABEL: "true",
        RUN_LABEL: mark.run,
        LEASE_LABEL: mark.lease,
        NONCE_LABEL: mark.nonce,
        EGRESS_LABEL: spec.egress,
    }
    annotations = {**config.annotations, FACTS_ANNOTATION: json.dumps(dict(spec.labels), sort_keys=True)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": mark.name, "labels": labels, "annotations": annotations},
        "spec": {
            **_placement(config),
            "restartPolicy": "Never",
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "hostname": "sandbox",
            "terminationGracePeriodSeconds": config.grace_s,
            "activeDeadlineSeconds": _active_deadline_s(spec, config),
            "volumes": [
                {"name": "execd", "configMap": {"name": config_map, "defaultMode": 0o444}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_shm_mib(spec)}Mi"}},
            ],
            "containers": [_container(spec, config, mark, token_sha256)],
        },
    }


def _container(spec: SandboxSpec, config: KubernetesConfig, mark: Mark, token_sha256: str) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": image_ref(spec.image, config.images).reference,
        "imagePullPolicy": "IfNotPresent",  # a digest cannot go stale
        "command": ["bash", "-c", LAUNCH, "sandman", *config.pythons],
        "env": [{"name": "SANDMAN_START", "value": _escaped(_start(spec, config, mark, token_sha256))}],
        "resources": resources(spec, config),
        "volumeMounts": [
            {"name": "execd", "mountPath": MOUNT, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
        "securityContext": _security(spec),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _security(spec: SandboxSpec) -> dict[str, Any]:
    """System calls are filtered unless the spec says otherwise, as in local sandboxes."""
    security: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["MKNOD", "AUDIT_WRITE"]},
        "seccompProfile": {"type": "Unconfined" if spec.seccomp == "unconfined" else "RuntimeDefault"},
    }
    if spec.user is not None:
        security |= {"runAsUser": spec.user, "runAsGroup": spec.user}
    return security


def _start(spec: SandboxSpec, config: KubernetesConfig, mark: Mark, token_sha256: str) -> str:
    """What boot.py reads. Its docstring is the protocol."""
    argv = daemon_argv("python", f"{MOUNT}/{ZIPAPP_KEY}", listen=f"0.0.0.0:{config.port}", config_fd=CONFIG_FD)
    document = {
        "token_sha256": token_sha256,
        "env": dict(spec.env),
        "workdir": spec.workdir,
        "lifetime_s": spec.lifetime_s,
    }
    start = {
        "argv": argv,
        "config_fd": CONFIG_FD,
        "document": document,
        "defaults": DEFAULT_ENV,
        "cpus": spec.cpus,
        "umask": spec.umask,
        "open_files": spec.open_files,
        "pick": int(hashlib.sha256(mark.nonce.encode()).hexdigest()[:8], 16),
    }
    return json.dumps(start, separators=(",", ":"), sort_keys=True)


def _escaped(value: str) -> str:
    """As an `env` value: Kubernetes expands `$(NAME)` there, and `$$` stands for `$`."""
    return value.replace("$", "$$")


def resources(spec: SandboxSpec, config: KubernetesConfig) -> dict[str, Any]:
    """The container's requests, by which the scheduler finds a node, and limits."""
    requests = {
        "cpu": f"{round(1000 * (spec.cpu_quota or spec.cpus or config.default_cpu_request))}m",
        "memory": f"{spec.memory_mib or config.default_memory_request_mib}Mi",
    }
    limits: dict[str, str] = {}
    if spec.cpu_quota is not None or spec.cpus is not None:
        limits["cpu"] = requests["cpu"]
    if spec.memory_mib is not None:
        limits["memory"] = requests["memory"]
    if config.ephemeral_storage_mib is not None:
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = f"{config.ephemeral_storage_mib}Mi"
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _placement(config: KubernetesConfig) -> dict[str, Any]:
    """Spread over hosts as evenly as the scheduler can without leaving a pod pending, and what the config asks for."""
    placement: dict[str, Any] = {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {SANDBOX_LABEL: "true"}},
            }
        ]
    }
    if config.node_selector:
        placement["nodeSelector"] = dict(config.node_selector)
    if config.tolerations:
        placement["tolerations"] = [one.model_dump(exclude_none=True) for one in config.tolerations]
    if config.pull_secrets:
        placement["imagePullSecrets"] = [{"name": name} for name in config.pull_secrets]
    if config.runtime_class is not None:
        placement["runtimeClassName"] = config.runtime_class
    if config.priority_class is not None:
        placement["priorityClassName"] = config.priority_class
    return placement


def _active_deadline_s(spec: SandboxSpec, config: KubernetesConfig) -> int:
    """The kubelet ends the pod then, whoever has forgotten it. It counts from the node's first look, the pull included;
    execd itself keeps to the lifetime."""
    budgets = config.budgets
    return math.ceil(spec.lifetime_s + budgets.pull_s + budgets.start_s + budgets.daemon_s)


def _shm_mib(spec: SandboxSpec) -> int:
    return spec.shm_mib or spec.memory_mib or DEFAULT_SHM_MIB


def config_map(zipapp: bytes, boot: bytes) -> dict[str, Any]:
    """execd as a ConfigMap, named by its content: two versions never meet under one name."""
    digest = hashlib.sha256(zipapp + b"\0" + boot).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{PREFIX}-execd-{digest[:16]}",
            "labels": {"app.kubernetes.io/managed-by": PREFIX},
            "annotations": {f"{PREFIX}/sha256": digest},
        },
        "immutable": True,
        "binaryData": {ZIPAPP_KEY: b64encode(zipapp).decode(), BOOT_KEY: b64encode(boot).decode()},
    }
