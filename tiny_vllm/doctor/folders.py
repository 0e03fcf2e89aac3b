"""Checks of folders: our cache of kernels and models, CuPy's cache, the Hugging Face cache, free space."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from pathlib import Path

from tiny_vllm.cache import cache_root
from tiny_vllm.doctor.finding import Finding, is_root, note, ok, set_variable, why
from tiny_vllm.doctor.machine import Machine, mount_of

NETWORK_DISKS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afs", "lustre", "gpfs", "beegfs", "ceph")
KERNELS_BYTES = 200_000_000  # what compiled kernels may come to
BLOCK = b"x" * 4096  # over quota shows at the first block, not before


def elsewhere() -> str:
    """A folder of the user's own on a local disk."""
    user = os.geteuid() if hasattr(os, "geteuid") else "cache"
    return f"{tempfile.gettempdir()}/tiny-vllm-{user}"


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists: where it would be made."""
    return next((each for each in (folder, *folder.parents) if os.path.lexists(each)), folder)


def why_not_writable(folder: Path) -> OSError | None:
    """None when it can be written to, or made; nothing is left behind."""
    try:
        with tempfile.TemporaryFile(dir=existing(folder)) as file:
            file.write(BLOCK)
            file.flush()
        return None
    except OSError as error:
        return error


def check_cache(machine: Machine) -> Finding:
    consequence = "kernels are compiled anew in every process and no model is kept"
    return _check_folder(cache_root(), "TINY_VLLM_CACHE", consequence)


def check_cupy_cache(machine: Machine) -> Finding | None:
    if not machine.cupy_packages:
        return None
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache").expanduser()
    return _check_folder(folder, "CUPY_CACHE_DIR", "CuPy compiles every kernel anew in every process")


def _check_folder(folder: Path, variable: str, consequence: str) -> Finding:
    error = why_not_writable(folder)
    if error is not None:
        return note(f"{folder} cannot be written ({why(error)}): {consequence}", _mend(folder, variable))
    kind, _ = mount_of(existing(folder))
    if kind in NETWORK_DISKS:
        sentence = f"{folder} is on a network disk ({kind}): slow, and its file locks may not hold"
        return note(sentence, set_variable(variable, elsewhere()))
    return ok(f"{folder} can be written")


def _mend(folder: Path, variable: str) -> str:
    """A folder of somebody else's (an earlier `sudo`) is taken back, any other one is left for another."""
    try:
        owner = folder.stat().st_uid
    except OSError:
        owner = None
    if owner is not None and hasattr(os, "geteuid") and owner != os.geteuid() and not is_root():
        inside_home = folder.is_relative_to(Path.home())
        if inside_home:
            return f'sudo chown -R "$(id -u)" {shlex.quote(str(folder))}'
    return set_variable(variable, elsewhere())


def check_disk(machine: Machine) -> Finding:
    from tiny_vllm.models.smollm2 import PEAK_BYTES, find_smollm2

    folder = existing(cache_root())
    free = shutil.disk_usage(folder).free
    needed = KERNELS_BYTES + (0 if find_smollm2()[1] else PEAK_BYTES)
    if free < needed:
        sentence = f"{folder} has {free // 10**6} MB free, and kernels and the built-in model take {needed // 10**6} MB"
        return note(sentence, set_variable("TINY_VLLM_CACHE", "/a/folder/on/another/disk"))
    return ok(f"{free / 1e9:.1f} GB are free for caches")


def check_model(machine: Machine) -> Finding:
    from tiny_vllm.models.find import folder_bytes
    from tiny_vllm.models.smollm2 import find_smollm2

    folder, whole = find_smollm2()
    fetch = "tiny-vllm fetch"
    if why_not_writable(cache_root()):
        fetch = f"{set_variable('TINY_VLLM_CACHE', elsewhere())} && {fetch}"
    if whole:
        return ok(f"the built-in model is in {folder} ({folder_bytes(folder) // 10**6} MB)")
    if folder.is_dir():
        return note(f"the built-in model in {folder} is damaged or of an older version", fetch)
    return note("the built-in model is not there yet (93 MB to fetch)", fetch)


def check_hub_cache(machine: Machine) -> Finding | None:
    """What the Hugging Face hub's client keeps; None where it keeps nothing."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir()
    except (CacheNotFound, RuntimeError):  # RuntimeError: a container's user without a home
        return None
    models = sum(repo.repo_type == "model" for repo in found.repos)
    sentence = f"{models} model{'s' * (models != 1)} from the Hugging Face hub, {found.size_on_disk / 1e9:.1f} GB"
    if found.warnings:
        return note(f"{sentence}; {len(found.warnings)} of its entries are damaged", "hf cache prune")
    return ok(sentence)
