"""Steps in an object store, which can't rename: `commits.json` says which of them count.

That is the object of the writer's lease. One conditional write both proves the token and adds the step, so a
commit of a process that lost the lease fails, however late it comes; and what that process wrote carries its token in
the name, so it never mixes with what others wrote.
"""

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Collection
from typing import Any

from kanawa.contracts import CheckpointError, Lease, ObjectMissingError, Storage, StorageError

from kanawa_runtime import faults
from kanawa_runtime.checkpoint.errors import CheckpointDamagedError, CheckpointUnreadableError
from kanawa_runtime.checkpoint.layout import is_step_name
from kanawa_runtime.checkpoint.manifest import COMMIT, Manifest, brief, commit_text, encoded, parsed
from kanawa_runtime.checkpoint.roots.root import Root
from kanawa_runtime.storage.lease import StorageLease, sound_facts

logger = logging.getLogger(__name__)

COMMITS = "commits.json"
STEPS = "steps"
_TOKEN = re.compile(r"[0-9]+[^/]*/t(?P<token>[0-9]+)[-.]")


class ObjectRoot(Root):
    """Step prefixes in a bucket, and the record of those that count."""

    def __init__(self, storage: Storage, lease: Lease | None = None, *, name: str = "") -> None:
        super().__init__(storage, name=name)
        self._run_lease = lease

    @property
    def where(self) -> str:
        """The address."""
        return self.storage.address

    def open(self, recorded: Collection[int]) -> dict[int, str]:
        """Removes uncommitted objects. A committed step that is damaged is reported when it is read."""
        counted = self._steps()
        lost: dict[int, str] = {}
        if STEPS not in self._lease.facts:
            # Rebuilt from the commit files: nothing is removed now.
            self._lease.record(lambda facts: facts.update({STEPS: counted}))
            return lost
        sizes = self.storage.sizes()
        unknown = [key for key in sizes if key.partition("/")[0] not in counted and _is_ours(key)]
        for name in self._lease.facts.get("aside", ()):
            # A crash may have cut the copying short, when the step was struck from the record already.
            half = [key for key in unknown if key.partition("/")[0] == name.partition(".")[0]]
            for key in half:
                if f"{name}/{key.partition('/')[2]}" not in sizes:
                    self.storage.copy(key, f"{name}/{key.partition('/')[2]}")
        if unknown:
            logger.info("removed %d objects of unfinished checkpoints in %s", len(unknown), self.where)
            self.storage.delete(unknown)
        return lost

    def steps(self) -> list[int]:
        """Returns the steps on record."""
        return sorted(int(step) for step in self._steps())

    def manifest(self, step: int) -> Manifest:
        """Returns the manifest on record."""
        try:
            entry = self._steps()[str(step)]
            where = f"{step}/{entry['manifest']}"
            return parsed(self.storage.read(where), entry["sha256"], str(step), f"{self.where}/{where}")
        except ObjectMissingError as error:
            raise CheckpointDamagedError(brief(error)) from error
        except StorageError as error:
            raise CheckpointUnreadableError(brief(error)) from error

    def make_room(self, step: int) -> None:
        """Removes a step of that number; a run that fell back past it reaches the number again."""
        if str(step) in self._lease.facts.get(STEPS, {}):
            self.delete(step)

    def commit(self, manifest: Manifest) -> None:
        """Writes manifest and commit file, and then the record, which alone makes the step count."""
        step, data = manifest.step, encoded(manifest)
        name = f"t{manifest.token}.manifest.json"
        self.write(step, name, data)
        # For copies of the prefix in a folder, where there is no such record.
        self.write(step, COMMIT, commit_text(step, data, name))
        faults.reached("pre_commit")
        entry = {"manifest": name, "sha256": hashlib.sha256(data).hexdigest()}
        self._lease.record(lambda facts: facts.setdefault(STEPS, {}).update({str(step): entry}))

    def discard(self, step: int) -> None:
        """Removes the objects that this holder wrote for a step."""
        if str(step) in self._lease.facts.get(STEPS, {}):
            return
        own = f"{step}/t{self._lease.token}"
        self.storage.delete([key for key in self.storage.sizes(f"{step}/") if key.startswith((f"{own}-", f"{own}."))])

    def delete(self, step: int) -> None:
        """Strikes a step from the record, then removes its objects."""
        self._lease.record(lambda facts: facts[STEPS].pop(str(step), None))
        self.storage.delete(list(self.storage.sizes(f"{step}/")))

    def set_aside(self, step: int, reason: str) -> str:
        """Strikes a step from the record and copies its objects to `STEP.REASON/`."""
        keys = list(self.storage.sizes(f"{step}/"))
        name, count = f"{step}.{reason}", 1
        while name in self._lease.facts.get("aside", {}):
            count += 1
            name = f"{step}.{reason}-{count}"

        def strike(facts: dict[str, Any]) -> None:
            facts.setdefault("aside", {})[name] = facts.get(STEPS, {}).pop(str(step), {})

        self._lease.record(strike)
        for key in keys:
            self.storage.copy(key, f"{name}/{key.partition('/')[2]}")
        self.storage.delete(keys)
        return f"{self.where}/{name}"

    # --- inside ------------------------------------------------------------------------------------------------

    @property
    def _lease(self) -> Lease:
        if self._run_lease is None:
            message = f"the checkpoints in {self.where} can't be changed without the run's lease; open the run to write"
            raise CheckpointError(message)
        return self._run_lease

    def _steps(self) -> dict[str, Any]:
        """Returns {step: {manifest, sha256}} on record; of the commit files, where the record is gone."""
        facts = None
        with contextlib.suppress(ObjectMissingError):
            facts = sound_facts(self.storage.read(COMMITS))
        if facts is not None and STEPS in facts:
            return dict(facts[STEPS])
        return commit_files(self.storage)


def _is_ours(key: str) -> bool:
    step, _, name = key.partition("/")
    return is_step_name(step) and (name == COMMIT or _TOKEN.match(key) is not None)


def commit_files(storage: Storage) -> dict[str, Any]:
    """Returns {step: {manifest, sha256}} by the commit files at a place."""
    steps = {}
    for key in storage.sizes():
        step, _, name = key.partition("/")
        if name == COMMIT and is_step_name(step):
            try:
                commit = json.loads(storage.read(key))
                steps[step] = {"manifest": commit["manifest"], "sha256": commit["manifest_sha256"]}
            except (ValueError, KeyError, TypeError, ObjectMissingError) as error:
                logger.warning("%s/%s can't be read: %s", storage.address, key, brief(error))
    return steps


def commits_lease(storage: Storage, where: str = "", **options: Any) -> StorageLease:
    """Returns the lease of a run whose checkpoints lie at a storage; not yet taken."""

    def highest_token() -> int:
        tokens = [int(match["token"]) for key in storage.sizes() if (match := _TOKEN.match(key))]
        return max(tokens, default=0)

    return StorageLease(storage, COMMITS, where=where, lowest_token=highest_token, **options)
