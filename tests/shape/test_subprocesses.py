"""What is started in Python runs our modules and never those of the working folder."""

import ast

#: Either keeps the working folder off the path: `-I` isolates, `-P` leaves out the first entry.
SAFE = {"-P", "-I"}


def started(tree) -> list[tuple[int, list[str]]]:
    """Returns the lists of words that begin with this interpreter, as texts, each with its line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
            found.append((node.lineno, [ast.unparse(word) for word in node.elts[1:]]))
    return found


def unsafe(tree) -> list[int]:
    """Returns the lines that start Python with the working folder on its path."""
    return [line for line, words in started(tree) if not {word.strip("'") for word in words} & SAFE]


def test_no_process_takes_modules_from_the_working_folder(sources):
    found = [f"{source.where}:{line}" for source in sources for line in unsafe(source.tree)]
    assert not found, "start them with -P: " + ", ".join(found)


def test_a_planted_one_is_seen(sources):
    assert sum(len(started(source.tree)) for source in sources) >= 7
    assert unsafe(ast.parse("run([sys.executable, '-m', 'kanawa.cli'])")) == [1]
    assert unsafe(ast.parse("run([sys.executable, '-P', '-m', 'kanawa.cli'])")) == []
