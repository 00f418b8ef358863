"""Quick places beside the run's own: memory that outlives a process, a host's disk, another bucket."""

import hashlib
from pathlib import Path

import jax
from kanawa.config import Config, Size
from kanawa.contracts import Lease, Storage, is_address, open_storage
from kanawa.errors import UsageError
from kanawa.local_path import local_path

from kanawa_runtime.checkpoint.roots.directory import DirectoryRoot
from kanawa_runtime.checkpoint.roots.objects import ObjectRoot
from kanawa_runtime.checkpoint.roots.root import Root
from kanawa_runtime.storage.local import LocalStorage, open_folder

#: With the run's identity, so that a place that several runs share mixes none of them.
RUN_ID = "run_id"


class Tier(Config):
    """Saves every `every_steps` at a folder of each host's own, and keeps the newest `keep_last` there.

    `place` is an address that opens a folder: `ram:///kanawa`, or `file:///mnt/nvme/checkpoints`. A restart restores
    the newest sound step of all places, so what a tier saved is gone on from where its host is still there.
    """

    place: str = "ram:///tier"
    every_steps: Size = 10
    keep_last: Size = 2


def open_tier(tier: Tier, directory: Path | str, lease: Lease | None) -> Root:
    """Returns the place of a tier for this process of a run; raises UsageError for one that is no folder of a host."""
    if not is_address(tier.place):
        message = f"the tier {tier.place!r} is no address; expected ram:///NAME or file:///FOLDER"
        raise UsageError(message)
    identity = (lease.facts if lease is not None else {}).get(RUN_ID, str(directory))
    folder = hashlib.sha256(str(identity).encode()).hexdigest()[:16]
    address = f"{tier.place.rstrip('/')}/{folder}/{jax.process_index()}"
    storage = open_storage(address)
    if not isinstance(storage, LocalStorage):
        message = (
            f"the tier {tier.place} is not a folder of a host; expected ram:///NAME or file:///FOLDER. A bucket is a "
            "run's own place: give it as --run"
        )
        raise UsageError(message)
    storage.makes_parents = True
    return DirectoryRoot(storage, is_private=True, name=tier.place)


def open_root(directory: Path | str, lease: Lease | None) -> Root:
    """Returns the run's own place."""
    if isinstance(directory, Path):
        return DirectoryRoot(open_folder(directory), lease)
    storage: Storage = open_storage(directory)
    if isinstance(storage, LocalStorage):
        return DirectoryRoot(open_folder(local_path(storage.root)), lease)
    return ObjectRoot(storage, lease)
