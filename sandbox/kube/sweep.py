"""One run of the janitor, as a program: `python -m sandbox.kube.sweep`. For the CronJob, and for who has no `grader`.

Settings are the provider's own defaults: inside a cluster the pod's service account and namespace, else `$KUBECONFIG`.
Prints one JSON line. Exit status 0: done; 4: some pods could not be deleted, or the server could not be asked.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict

from sandbox.config import KubernetesConfig
from sandbox.errors import SandboxError
from sandbox.kube.api import ApiFailure, open_api
from sandbox.kube.janitor import Swept, sweep


async def sweep_once(config: KubernetesConfig) -> Swept:
    """Delete what dead runs left in the config's namespace. Raises `SandboxError`."""
    async with open_api(config) as api:
        try:
            return await sweep(api, grace_s=config.grace_s)
        except ApiFailure as failure:
            raise SandboxError(
                f"pods and leases of namespace {api.namespace} cannot be listed: {failure}; "
                "`grader doctor --provider kubernetes` says what is missing"
            ) from failure


def main() -> int:
    """Run it; the exit status."""
    try:
        swept = asyncio.run(sweep_once(KubernetesConfig()))
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 4
    print(json.dumps(asdict(swept)))
    return 4 if swept.failed else 0


if __name__ == "__main__":
    sys.exit(main())
