"""`python -m kanawa_runtime.launch.local FOLDER OPTIONS`: the supervisor in the background."""

import json
import os
import sys
from pathlib import Path

from kanawa.cli.output import write_message
from kanawa.config import from_json


def main(folder: str, options: str) -> int:
    """Runs the job in `folder` with the launcher's options as JSON; returns the gang's exit code.

    In a child that this process leaves behind: the process that submits a job may end.
    """
    launcher = from_json(json.loads(options)).build()
    if os.fork():
        return 0
    return int(launcher.supervise(Path(folder), write_message))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
