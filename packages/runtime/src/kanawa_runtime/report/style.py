"""The look of pages and pictures: light and dark by the reader's setting."""

from importlib.resources import files


def _asset(name: str) -> str:
    return files("kanawa_runtime.report").joinpath("assets", name).read_text()


def page_style() -> str:
    """Returns the style sheet of a page."""
    return _asset("colours.css") + _asset("page.css") + _asset("plot.css")


def picture_style() -> str:
    """Returns the style sheet of a plot that stands alone."""
    return _asset("colours.css") + _asset("plot.css")


def pointer_script() -> str:
    """Returns the script that shows values under the pointer."""
    return _asset("pointer.js")
