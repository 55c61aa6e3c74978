"""Images on the node of `up`, which is this machine: named, taken off, and looked for where there are none."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.cluster.conftest import KUBE_DIR

CONTAINERD = KUBE_DIR / "run" / "containerd.sock"


def ctr(*words: str) -> str:
    """What containerd's own command says of the node's images."""
    command = ["ctr", "-a", str(CONTAINERD), "-n", "k8s.io", "images", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def name_by_digest(image: str) -> str:
    """Name an image that the node has by its digest too, as specs must."""
    reference = f"{image.rpartition(':')[0]}@{ctr('ls', f'name=={image}').splitlines()[1].split()[2]}"
    ctr("tag", "--force", image, reference)
    return reference


def forget(reference: str) -> None:
    """Take an image that `name_by_digest` named off the node, under all of its names."""
    digest = reference.partition("@")[2]
    rows = ctr("ls").splitlines()[1:]
    ctr("rm", *(row.split()[0] for row in rows if row.split()[2] == digest))


@contextlib.contextmanager
def a_registry(answers: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """A registry on this machine that has nothing: its address. `answers` are status and code by repository."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, code = next((answers[name] for name in answers if f"/{name}/" in self.path), (200, ""))
            body = json.dumps({"errors": [{"code": code, "message": code.lower()}]} if code else {}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
