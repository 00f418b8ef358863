"""All pages that are replayed."""

import pathlib

from replay.page import read

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: Pages that write packages: replayed apart from the others, so that two workers share the work.
YOUR_OWN = "docs/your-own/"

PAGES = {path.relative_to(ROOT).as_posix(): read(path) for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]}
RUN = {name: blocks for name, blocks in PAGES.items() if any(block.is_run for block in blocks)}
ALWAYS = sorted(name for name, blocks in RUN.items() if any(b.is_run and not b.is_nightly for b in blocks))
NIGHTLY = sorted(name for name, blocks in RUN.items() if any(block.is_nightly for block in blocks))
#: Pages that take more than about fifteen seconds, of which a change rarely breaks one alone: replayed each night. The
#: README and a page that writes a package are replayed at every change, however long they take.
LONG = {
    *(f"docs/{name}.md" for name in ("checkpoints-and-resume", "command-line", "conformance-kit", "convert")),
    *(f"docs/{name}.md" for name in ("fine-tuning", "kernels", "writing-a-plugin")),
    *(f"docs/{name}.md" for name in ("index", "launch", "optimizers", "parallelism", "plan", "python")),
    *(f"docs/{name}.md" for name in ("recurrent-layers", "services", "speech", "tuning", "tutorial")),
    *(f"{YOUR_OWN}{name}.md" for name in ("backend", "experiment", "gate", "kernel", "service")),
}
