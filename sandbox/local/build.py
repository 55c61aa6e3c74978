"""Building a recipe's image: fetch, unpack, commit, install, each inside a sandbox that has the network.

    async with open_provider(LocalConfig()) as provider:
        image = await build(provider, store, plan, progress=print)

The law: nothing of a recipe runs outside a sandbox; an archive is used only with the hash that the recipe names; an
image is stored only if every step succeeded and what was installed is what the recipe pins. One plan on one base is
built once, whoever asks and however many at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from sandbox.errors import ImageError
from sandbox.local.host import REFERENCE
from sandbox.local.image import StoredImage
from sandbox.local.pythons import PythonChoice, choose_python, python_layer
from sandbox.local.recipe import (
    CONSTRAINTS,
    SCRATCH,
    VENV,
    Archive,
    BuildPlan,
    baseline_command,
    fetch_command,
    install_pins_command,
    parse_installed,
    python_check_command,
    settle_command,
    unpack_command,
    venv_command,
)
from sandbox.local.registry import Registry, certificates_inside, this_machines_registry
from sandbox.local.stack import OPAQUE, LayerStack, is_whiteout, remove_tree
from sandbox.local.store import ImageRecord, ImageStore, LayerRecord, find_python, now
from sandbox.outlast import in_thread
from sandbox.provider import Sandbox
from sandbox.spec import Egress

STEP_TIMEOUT_S = 1800.0
LOG_LINES = 30
_NOT_KEPT = ("tmp", "var/tmp", "run", "dev", "proc", "sys", "root/.cache", "var/cache", "var/log")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Progress = Callable[[str], None]


class BuildProvider(Protocol):
    """What the builder needs of a provider."""

    @property
    def host_image(self) -> StoredImage:
        """The host's own programs as an image."""
        ...

    def build_sandbox(
        self, image: StoredImage, upper: Path, *, egress: Egress, env: Mapping[str, str] | None, workdir: str | None
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox whose changes stay in the directory `upper`, in overlayfs form, after it has ended."""
        ...


async def build(
    provider: BuildProvider, store: ImageStore, plan: BuildPlan, *, progress: Progress = lambda _: None
) -> StoredImage:
    """The image of `plan`: from the store, or built now. `progress` gets a line per step.

    Raises `ImageError` with the step, its exit code and the end of its log; nothing is stored then.
    """
    base = provider.host_image
    if plan.base != base.reference:
        base = await anyio.to_thread.run_sync(store.resolve, plan.base)
    choice = await anyio.to_thread.run_sync(_choose, base, plan)
    layer = await anyio.to_thread.run_sync(python_layer, store, choice) if choice.prefix else None
    digest = plan.digest(_base_identity(base), layer.digest if layer else choice.version)
    async with _alone(store, digest):
        with contextlib.suppress(ImageError):
            return store.stored(store.get(digest))
        progress(f"{plan.name}: building on {plan.base} with Python {choice.version}")
        with ExitStack() as held, store.staging() as staging:
            for used in [layer.digest if layer else None, None if base.host_programs else base.digest]:
                if used is not None:
                    held.enter_context(store.hold(used))
            job = _Job(provider, store, plan, base, choice, layer, this_machines_registry(), progress)
            return await job.run(digest, staging)


def check(store: ImageStore, plan: BuildPlan) -> None:
    """Raise `ImageError` where `build` would before its first step: for want of the base, or of the host's Python."""
    if plan.base == REFERENCE:
        choose_python(plan.python)
    else:
        store.check(plan.base)


@dataclass(frozen=True)
class _Job:
    provider: BuildProvider
    store: ImageStore
    plan: BuildPlan
    base: StoredImage
    choice: PythonChoice
    layer: ImageRecord | None
    registry: Registry
    progress: Progress

    async def run(self, digest: str, staging: Path) -> StoredImage:
        archive = await self._archive(staging) if isinstance(self.plan.source, Archive) else None
        upper = staging / "upper"
        upper.mkdir()
        image = self._image()
        async with self._sandbox(image, upper) as box:
            found = await self._step(box, "python", python_check_command(self.choice.executable))
            await self._source(box, archive)
            commit, installed = await self._install(box)
        await in_thread(clean_upper, upper)
        notes = {
            "python": self.choice.note or self.choice.version,
            "base": f"{self.plan.base} ({self.base.digest})",
            "base_commit": commit,
            "packages": str(len(installed)),
        }
        if found != self.choice.version:
            notes["python"] = f"asked for {self.plan.python}, used the base's {found}"
        return await in_thread(self._put, digest, upper, image, notes)

    def _image(self) -> StoredImage:
        """The base with the Python's layer, and the environment that the finished image has."""
        layers = self.base.layers
        if self.layer is not None:
            layers = (*layers, self.store.layer_path(self.layer.layers[0]))
        path = f"{VENV}/bin:{self.base.env.get('PATH', _DEFAULT_PATH)}"
        env = {**self.base.env, "PATH": path, "VIRTUAL_ENV": VENV, **self.plan.env}
        python = self.base.python or self.choice.executable
        return replace(self.base, layers=layers, env=env, workdir=self.plan.workdir, python=python)

    def _sandbox(self, image: StoredImage, upper: Path) -> AbstractAsyncContextManager[Sandbox]:
        env = {
            **self.registry.inside(SCRATCH),
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_CONSTRAINT": CONSTRAINTS,
            "PIP_CACHE_DIR": f"{SCRATCH}/pip-cache",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INPUT": "1",
        }
        return self.provider.build_sandbox(image, upper, egress="open", env={**image.env, **env}, workdir="/")

    async def _archive(self, staging: Path) -> Path:
        """The verified release archive, from the store's downloads or fetched now."""
        archive = self.plan.source
        assert isinstance(archive, Archive)
        kept = self.store.downloads / archive.sha256 / archive.file
        if kept.is_file() and await in_thread(_sha256, kept) == archive.sha256:
            return kept
        self.progress(f"{self.plan.name}: fetching {archive.file}")
        upper, fetched = staging / "fetch", staging / "fetched"
        upper.mkdir()
        image = replace(self._image(), env={**self.base.env, **self.plan.env})
        async with self._sandbox(image, upper) as box:
            await self._prepare(box, "")
            await self._step(box, "fetch", fetch_command(archive, self.choice.executable))
            await box.download(f"{SCRATCH}/fetched", fetched)
        await in_thread(remove_tree, upper)
        return await in_thread(self._keep, fetched, kept, archive)

    def _keep(self, fetched: Path, kept: Path, archive: Archive) -> Path:
        files = sorted(path for path in fetched.iterdir() if path.is_file() and not path.is_symlink())
        names = ", ".join(path.name for path in files) or "nothing"
        if len(files) != 1:
            raise self._failure("fetch", f"the registry gave {names} for {archive.requirement}, not one archive")
        found = _sha256(files[0])
        if found != archive.sha256:
            raise self._failure("fetch", f"{names} has the SHA-256 {found}, and the recipe names {archive.sha256}")
        kept.parent.mkdir(exist_ok=True)
        files[0].rename(kept)
        return kept

    async def _prepare(self, box: Sandbox, constraints: str) -> None:
        await self._step(box, "prepare", f"mkdir -p {SCRATCH}")
        await box.write(CONSTRAINTS, constraints.encode())
        if self.registry.certificates is not None:
            await box.write(certificates_inside(SCRATCH), self.registry.certificates.read_bytes())

    async def _source(self, box: Sandbox, archive: Path | None) -> None:
        await self._prepare(box, self.plan.constraints)
        source = self.plan.source
        if isinstance(source, Archive):
            assert archive is not None
            await box.upload(archive, f"{SCRATCH}/{source.file}")
            await self._step(box, "unpack", unpack_command(source, self.choice.executable, self.plan.workdir))
        else:
            await box.upload(source.path, self.plan.workdir)
            leftovers = f"find {self.plan.workdir} -name __pycache__ -type d -prune -exec rm -rf {{}} +"
            await self._step(box, "unpack", leftovers)
        await self._step(box, "baseline", baseline_command(self.plan.workdir))

    async def _install(self, box: Sandbox) -> tuple[str, dict[str, str]]:
        """Runs the install commands; gives the commit that the tree is at, and what is installed."""
        await self._step(box, "environment", venv_command(self.choice.executable))
        await self._step(box, "activate", f"cd {self.plan.workdir} && . {VENV}/bin/activate")
        for number, command in enumerate(self.plan.install, start=1):
            self.progress(f"{self.plan.name}: install {number} of {len(self.plan.install)}")
            await self._install_step(box, f"install {number}", command)
        installed = await self._installed_as_pinned(box)
        commit = await self._step(box, "settle", settle_command(self.plan.workdir))
        return commit.splitlines()[-1], installed

    async def _installed_as_pinned(self, box: Sandbox) -> dict[str, str]:
        """What is installed, after putting right what the commands left otherwise than pinned."""
        list_command = f"{VENV}/bin/python -m pip list --format=freeze 2>/dev/null"
        installed = parse_installed(await self._step(box, "list", list_command))
        differing = self.plan.differing_pins(installed)
        if not differing:
            return installed
        self.progress(f"{self.plan.name}: putting right {', '.join(differing)}")
        await self._step(box, "pins", install_pins_command([pin.partition(" ")[0] for pin in differing]))
        installed = parse_installed(await self._step(box, "list", list_command))
        differing = self.plan.differing_pins(installed)
        if differing:
            raise self._failure("pins", f"not installed as pinned: {', '.join(differing)}")
        return installed

    async def _install_step(self, box: Sandbox, step: str, command: str) -> None:
        """One install command, with the pins as constraints. pip applies constraints to what a package needs only to be
        built, too, where the pins may contradict it: a command that fails is run once more without. What it then
        installed is still compared with the pins."""
        try:
            await self._step(box, step, command)
        except ImageError as error:
            if not self.plan.constraints or error.facts.get("shell_restarted"):
                raise
            self.progress(f"{self.plan.name}: {step} failed with the pins as constraints; once more without")
            await self._step(box, step, "unset PIP_CONSTRAINT")
            await self._step(box, step, command)
            await self._step(box, step, f"export PIP_CONSTRAINT={CONSTRAINTS}")

    async def _step(self, box: Sandbox, step: str, command: str) -> str:
        result = await box.run(command, timeout_s=STEP_TIMEOUT_S)
        output = result.output.decode(errors="replace")
        if result.exit_code == 0 and not result.timed_out and not result.shell_restarted:
            return output.strip()
        ended = f"ended with exit code {result.exit_code}"
        if result.timed_out:
            ended = f"did not end within {STEP_TIMEOUT_S:.0f} s"
        elif result.shell_restarted:
            ended = f"ended the shell with exit code {result.exit_code}"
        tail = "\n".join(f"    {line}" for line in output.splitlines()[-LOG_LINES:])
        raise self._failure(
            step,
            f"{ended}; its log ends:\n{tail}\n",
            exit_code=result.exit_code,
            shell_restarted=result.shell_restarted,
        )

    def _failure(self, step: str, what: str, **facts: object) -> ImageError:
        return ImageError(
            f"recipe {self.plan.name}, step `{step}`: {what}; mend the recipe or the registry's reach and try again",
            step=step,
            recipe=self.plan.name,
            **facts,
        )

    def _put(self, digest: str, upper: Path, image: StoredImage, notes: Mapping[str, str]) -> StoredImage:
        own = LayerRecord(digest=f"sha256:{_hash(f'upper {digest}')}", size_bytes=_tree_size(upper))
        below: tuple[LayerRecord, ...] = () if self.base.host_programs else self.store.get(self.base.digest).layers
        if self.layer is not None:
            below = (*below, *self.layer.layers)
        record = ImageRecord(
            digest=digest,
            name=self.plan.name,
            kind="recipe",
            layers=(*below, own),
            env=image.env,
            workdir=image.workdir,
            python=image.python,
            host_programs=self.base.host_programs,
            architecture=os.uname().machine,
            notes=notes,
            created=now(),
        )
        return self.store.put(record, {own.digest: upper})


def _base_identity(base: StoredImage) -> str:
    """What of the base decides an image built on it. Of a host that is its release and C library: an update of some
    other program of the host changes no layer of ours, and must not have every recipe built again."""
    if not base.host_programs:
        return base.digest
    release: dict[str, str] = {}
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
    told = [release.get(field, "") for field in ("ID", "VERSION_ID")]
    return " ".join(["host", platform.machine(), *told, *platform.libc_ver()])


def _choose(base: StoredImage, plan: BuildPlan) -> PythonChoice:
    """On a base of its own programs a Python of this machine's system is of no use: the base's own is taken."""
    if base.host_programs:
        return choose_python(plan.python)
    line = ".".join(plan.python.split(".")[:2])
    stack = LayerStack(base.layers)
    own = next((path for path in (f"/usr/local/bin/python{line}", f"/usr/bin/python{line}") if stack.find(path)), "")
    if plan.python.count(".") == 0:
        own = find_python(stack, base.env)
    try:
        choice = choose_python(plan.python, system=())
    except ImageError:
        if own:
            return PythonChoice(plan.python, own, None, "")
        raise
    return PythonChoice(plan.python, own, None, "") if own and choice.version != plan.python else choice


@asynccontextmanager
async def _alone(store: ImageStore, digest: str) -> AsyncIterator[None]:
    """Only one builder of an image at a time, over all processes."""
    path = store.root / "staging" / f"build-{digest.removeprefix('sha256:')[:24]}.lock"
    while True:
        lock = path.open("ab")
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock.fileno()).st_nlink:
                break  # else the builder before us has just removed the file that we locked
        lock.close()
        await anyio.sleep(0.2)
    try:
        yield
    finally:
        path.unlink()
        lock.close()


def clean_upper(upper: Path) -> None:
    """Take out of a finished sandbox's changes what an image does not hold: caches, temporary files, mount points."""
    for name in _NOT_KEPT:
        folder = upper / name
        if not folder.is_symlink() and folder.is_dir():
            remove_tree(folder)
    for entry in upper.rglob("*"):
        if entry.is_symlink() or is_whiteout(entry):
            continue
        for attribute in os.listxattr(entry):
            if attribute.startswith("user.overlay.") and attribute != OPAQUE:
                os.removexattr(entry, attribute)
    for left in list(_special(upper)):
        left.unlink()
    upper.chmod(0o755)


def _special(tree: Path) -> Iterator[Path]:
    """Sockets and FIFOs that a build left."""
    for folder, _, files in os.walk(tree):
        for name in files:
            mode = Path(folder, name).lstat().st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                yield Path(folder, name)


def _tree_size(tree: Path) -> int:
    sizes = (Path(folder, name).lstat().st_size for folder, _, files in os.walk(tree) for name in files)
    return sum(sizes)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
