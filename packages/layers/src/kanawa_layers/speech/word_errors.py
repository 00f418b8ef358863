"""Word error rate: the fewest words to change, insert or delete, over the words that were said."""

from collections.abc import Hashable, Iterable, Sequence

from kanawa.errors import UsageError


def edit_distance(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> int:
    """Returns the fewest changes, insertions and deletions that make one of the other (Levenshtein 1966)."""
    row = list(range(len(hypothesis) + 1))
    for i, said in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, heard in enumerate(hypothesis, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (said != heard))
    return row[-1]


def word_error_rate(references: Iterable[str], hypotheses: Iterable[str]) -> float:
    """Returns the errors over all texts divided by the words of the references; words are separated by spaces.

    Above 1 where much is inserted. Raises UsageError for references without a word.
    """
    pairs = [(said.split(), heard.split()) for said, heard in zip(references, hypotheses, strict=True)]
    words = sum(len(said) for said, _ in pairs)
    if not words:
        message = "the references have no words, so there is no word error rate"
        raise UsageError(message)
    return sum(edit_distance(said, heard) for said, heard in pairs) / words
