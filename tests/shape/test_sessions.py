"""What pages, workflows and scripts tell people to run exists."""

import ast
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALL = re.compile(r"nox -s ((?:\"[^\"]+\"|[a-z_]+(?: (?=[a-z_]))?)+)")
READ = ("*.md", ".ci/run", ".github/**/*.yml", "noxfile.py", "pytest.ini")


def sessions() -> dict[str, bool]:
    """Returns the sessions of the noxfile; whether each has a docstring."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {f.name: ast.get_docstring(f) is not None for f in functions if _is_session(f)}


def _is_session(function: ast.FunctionDef) -> bool:
    return any("session" in ast.unparse(decorator) for decorator in function.decorator_list)


def named(text: str) -> set[str]:
    """Returns the sessions that a text tells to run; `tests(core)` counts as `tests`."""
    text = re.sub(r"nox -s \$\{\{[^}]*\}\}", "", text)
    names = (name for match in CALL.findall(text) for name in re.findall(r'"[^"]+"|[a-z_]+', match))
    return {name.strip('"').split("(")[0] for name in names}


def test_every_session_named_anywhere_exists():
    listing = subprocess.run(["git", "ls-files", "-z", *READ], cwd=ROOT, check=True, capture_output=True, text=True)
    pages = [ROOT / name for name in listing.stdout.split("\0") if name]
    known = set(sessions())
    unknown = {f"{page.relative_to(ROOT)}: {name}" for page in pages for name in named(page.read_text()) - known}
    assert len(pages) > 20
    assert not unknown, "\n".join(sorted(unknown))


def test_the_nightly_workflow_runs_sessions_that_exist():
    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    (listed,) = re.findall(r"session: \[(.+)\]", text)
    assert set(listed.split(", ")) <= set(sessions())


def test_ci_runs_what_the_contributing_page_lists():
    rows = re.findall(r"^\| `([a-z]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert set(rows) == named((ROOT / ".ci" / "run").read_text())
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "- run: .ci/run" in workflow
    tested = set(re.findall(r'"(3\.\d+)"', workflow))
    classified = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "packages/core/pyproject.toml").read_text()))
    assert tested == classified, "the matrix tests the versions that the wheels claim"


def test_every_session_says_what_it_is():
    silent = [name for name, documented in sessions().items() if not documented]
    assert not silent


def test_named_sessions_are_seen():
    assert named('`nox -s lint types` and `nox -s "tests(core)" -- -k x`') == {"lint", "types", "tests"}


def test_the_quickstart_ends_with_the_samples_that_the_readme_shows():
    """Three short ones, of prompts and by draws with which a model of this size doesn't repeat itself."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    values = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    prompts, sampling = (ast.literal_eval(values[name]) for name in ("PROMPTS", "SAMPLING"))
    shown = (ROOT / "README.md").read_text()
    assert len(prompts) == 3 and all(prompt in shown for prompt in prompts)
    drawn = dict(zip(sampling[::2], map(float, sampling[1::2]), strict=True))
    assert drawn["--max-tokens"] <= 40 and drawn["--temperature"] >= 0.6
    (session,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "quickstart"]
    assert "*prompts, *SAMPLING" in ast.unparse(session)
