"""The scripts that bring the cluster up and take it down, where that can be tried without a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

LIB = Path(__file__).with_name("lib.sh")

RULES = r"""*nat
:PREROUTING ACCEPT [0:0]
:CNI-a38c1e97a138aa0b958c3252 - [0:0]
:CNI-b0b0b0b0b0b0b0b0b0b0b0b0 - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A POSTROUTING -s 10.88.1.123/32 -m comment --comment "name: \"ci\" id: \"9b20\"" -j CNI-a38c1e97a138aa0b958c3252
-A POSTROUTING -s 10.42.0.7/32 -m comment --comment "name: \"theirs\" id: \"77aa\"" -j CNI-b0b0b0b0b0b0b0b0b0b0b0b0
-A POSTROUTING -s 192.0.2.0/24 -m comment --comment "about ci" -j MASQUERADE
-A CNI-a38c1e97a138aa0b958c3252 -d 10.88.0.0/16 -m comment --comment "name: \"ci\" id: \"9b20\"" -j ACCEPT
-A CNI-b0b0b0b0b0b0b0b0b0b0b0b0 ! -d 224.0.0.0/4 -j MASQUERADE
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
"""


@pytest.mark.parametrize("another_kubelet", [False, True])
def test_stop_takes_away_its_own_chains_only(tmp_path: Path, another_kubelet: bool) -> None:
    """Those of our pod network, and the kubelet's unless another had made some before; all else stays in its order."""
    done = subprocess.run(
        ["bash", "-c", f". {LIB}; without_ours {int(not another_kubelet)}"],
        input=RULES,
        env={"PATH": "/usr/bin:/bin", "KUBE_DIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )

    kept = [line for line in RULES.splitlines() if "a38c1e97" not in line]
    kept = [line for line in kept if another_kubelet or "KUBE-" not in line]
    assert kept == done.stdout.splitlines()
