"""Runs a page's Python blocks one after the other in one module, as somebody typing them would.

Reads one JSON object a line, `{"name", "line", "text"}`, and answers each with `{"error"}`, null or a traceback.
"""

import contextlib
import json
import sys
import traceback
import types


def main() -> None:
    """Answers until the input ends."""
    page = types.ModuleType("page")
    sys.modules["page"] = page  # annotations of classes are looked up in their module
    sys.path.insert(0, "")
    answers = sys.stdout
    for request in map(json.loads, sys.stdin):
        error = None
        try:
            with contextlib.redirect_stdout(sys.stderr):
                text = "\n" * (request["line"] - 1) + request["text"]
                exec(compile(text, request["name"], "exec"), vars(page))  # noqa: S102
        except BaseException:  # a page may call sys.exit, which is wrong as well
            error = traceback.format_exc()
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
