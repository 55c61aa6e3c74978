"""Make a docker archive of one layer: `mkimage.py NAME:TAG OUT.tar LAYER.tar ENTRYPOINT...`. Same input, same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import tarfile
from pathlib import Path


def main(name: str, out: str, layer: str, *entrypoint: str) -> None:
    """Write the archive."""
    layer_bytes = Path(layer).read_bytes()
    digest = hashlib.sha256(layer_bytes).hexdigest()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
        "os": "linux",
        "config": {
            "Entrypoint": entrypoint,
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    config_bytes = json.dumps(config, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(config_bytes).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(out, "w") as archive:
        for path, data in (
            (config_name, config_bytes),
            (f"{digest}/layer.tar", layer_bytes),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def add_layer(below: Path, layer: bytes, name: str, out: Path) -> None:
    """Write the docker archive `below` with one more layer, as image `name`, to `out`."""
    digest = hashlib.sha256(layer).hexdigest()
    with tarfile.open(below) as source, tarfile.open(out, "w") as target:

        def put(path: str, data: bytes) -> None:
            member = tarfile.TarInfo(path)
            member.size = len(data)
            target.addfile(member, io.BytesIO(data))

        (manifest,) = json.loads(_read(source, "manifest.json"))
        config = json.loads(_read(source, manifest["Config"]))
        for path in manifest["Layers"]:
            target.addfile(source.getmember(path), source.extractfile(path))
        config["rootfs"]["diff_ids"].append(f"sha256:{digest}")
        text = json.dumps(config).encode()
        config_name = f"{hashlib.sha256(text).hexdigest()}.json"
        layers = [*manifest["Layers"], f"{digest}/layer.tar"]
        put(layers[-1], layer)
        put(config_name, text)
        put("manifest.json", json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": layers}]).encode())


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
