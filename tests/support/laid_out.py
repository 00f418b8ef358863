"""Plugins put into a folder as an installer leaves them, from texts: metadata, entry points and modules, unbuilt."""

import pathlib
import textwrap


def lay_out(
    folder: pathlib.Path,
    name: str,
    entry_points: dict[str, dict[str, str]],
    modules: dict[str, str],
    *,
    version: str = "1.2.3",
    requires: tuple[str, ...] = ("kanawa>=0.1",),
) -> None:
    """Installs a distribution whose package has these modules; `{me}` in values stands for the package's name."""
    package = name.replace("-", "_")
    home = folder / package
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("")
    for module, text in modules.items():
        (home / f"{module}.py").write_text(textwrap.dedent(text))
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    head = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    (info / "METADATA").write_text("\n".join([*head, *(f"Requires-Dist: {each}" for each in requires)]) + "\n")
    groups = [
        f"[kanawa.{group}]\n" + "".join(f"{point} = {value.format(me=package)}\n" for point, value in points.items())
        for group, points in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
