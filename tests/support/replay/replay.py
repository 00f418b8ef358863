"""Does what a page says, block by block, in an empty folder."""

import dataclasses
import json
import pathlib
import re
import subprocess

from replay.page import Block

WORKER = pathlib.Path(__file__).with_name("worker.py")
BLOCK_SECONDS = 900
_TRAINS = re.compile(r"([A-Z_]+=\S+ )*kanawa train ")
SMALL = "--steps 2 --set batch_size=2 --set data.sequence_length=32 --set evaluation.final_batches=1"


@dataclasses.dataclass(frozen=True)
class Wrong:
    """What a page says and what happens instead."""

    page: str
    line: int
    said: str
    happened: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}:\n{self.said}\n{self.happened}"


class Replay:
    """A page's folder, environment and Python session."""

    def __init__(self, page: str, folder: pathlib.Path, environment: dict[str, str], python: pathlib.Path) -> None:
        self._page, self._folder, self._environment = page, folder, environment
        self._python = python
        self._session: subprocess.Popen | None = None

    def run(self, blocks: list[Block], *, nightly: bool = False) -> Wrong | None:
        """Runs blocks in order; returns the first that isn't true, or None."""
        try:
            for block in blocks:
                wrong = self._do(block) if nightly or not block.is_nightly else None
                if wrong is not None:
                    return Wrong(self._page, block.line, block.text, wrong)
        finally:
            if self._session is not None:
                self._session.communicate()
        return None

    def _do(self, block: Block) -> str | None:
        if block.is_file:
            return self._write(block)
        if not block.is_run:
            return None
        if "given" in block.markers:
            done = self._bash(block.markers["given"])
            if done.returncode:
                return f"what the block is given can't be made:\n{done.stdout}{done.stderr}"
        return self._shell(block) if block.language == "sh" else self._type(block)

    def _write(self, block: Block) -> str | None:
        if "adds to" in block.markers:
            return self._add(block)
        path = self._folder / block.markers["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        return None

    def _add(self, block: Block) -> str | None:
        name, _, anchor = block.markers["adds to"].partition(" after: ")
        path = self._folder / name
        if not path.exists():
            return f"{name} isn't there to be added to"
        lines = path.read_text().splitlines(keepends=True)
        rows = [row for row, line in enumerate(lines, 1) if line.strip() == anchor]
        if anchor and len(rows) != 1:
            return f"{name} has {len(rows)} lines {anchor!r}, expected one"
        place = rows[0] if anchor else len(lines)
        path.write_text("".join([*lines[:place], *([] if anchor else ["\n"]), block.text, *lines[place:]]))
        return None

    def _shell(self, block: Block) -> str | None:
        arguments = block.markers.get("run with", "")
        script = with_arguments(block.text, arguments.replace("small", SMALL))
        done = self._bash(script, block.markers.get("run in", "."))
        printed = f"{done.stdout}\n{done.stderr}"
        expected = int(block.markers.get("exits", "0"))
        if done.returncode != expected:
            return f"exit code {done.returncode}, the page says {expected}:\n{printed[-4000:]}"
        absent = None if block.output is None else missing_line(block.output, printed)
        return None if absent is None else f"the page shows {absent!r}; printed was:\n{printed[-4000:]}"

    def _bash(self, script: str, folder: str = ".") -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", script],
            cwd=self._folder / folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BLOCK_SECONDS,
            check=False,
        )

    def _type(self, block: Block) -> str | None:
        if self._session is None:
            self._session = subprocess.Popen(
                [str(self._python), str(WORKER)],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        request = {"name": self._page, "line": block.line, "text": block.text}
        self._session.stdin.write(json.dumps(request) + "\n")
        self._session.stdin.flush()
        answer = self._session.stdout.readline()
        return json.loads(answer)["error"] if answer else "Python ended"


def with_arguments(script: str, arguments: str) -> str:
    """Returns a script whose every `kanawa train` has some arguments more; the last of an option counts."""
    if not arguments:
        return script
    lines = script.replace("\\\n", " ").splitlines()
    changed = [f"{line.split(' #')[0]} {arguments}" if _TRAINS.match(line) else line for line in lines]
    return "\n".join(changed) + "\n"


def missing_line(shown: str, printed: str) -> str | None:
    """Returns the first line shown that isn't printed after those before it; None if all are."""
    position = 0
    for line in filter(str.strip, shown.splitlines()):
        parts = [r"\s+".join(map(re.escape, part.split())) for part in line.split("…")]
        match = re.compile(r".*?".join(parts)).search(printed, position)
        if match is None:
            return line
        position = match.end()
    return None
