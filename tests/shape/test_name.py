"""The project's name: the one it had before was another project's, and nothing of it is left."""

import subprocess

FORMER = b"sashi" + b"mono"


def test_nothing_of_the_former_name_remains(root):
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    names = [name for name in listing.split(b"\0") if name and (root / name.decode()).is_file()]
    assert names, "git lists the files to look through"
    paths = [name.decode() for name in names if FORMER in name.lower()]
    texts = [name.decode() for name in names if FORMER in (root / name.decode()).read_bytes().lower()]
    assert not paths + texts, "the project is called Kanawa everywhere"
