"""Learns byte-pair merges from counted pieces, updating pair counts incrementally.

The pair to merge comes from a heap with stale entries; a merge touches only the pieces that hold
the pair. Ties go to the smaller pair of ids, so the result depends on the counts alone.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping

from kanawa_runtime.data.tokenizers.byte_alphabet import BASE_TOKENS

Pair = tuple[int, int]


def merge_pair(ids: list[int], pair: Pair, merged: int) -> list[int]:
    """Returns `ids` with each occurrence of `pair`, from the left, replaced by `merged`."""
    first, second = pair
    result: list[int] = []
    index, last = 0, len(ids) - 1
    while index <= last:
        if ids[index] == first and index < last and ids[index + 1] == second:
            result.append(merged)
            index += 2
        else:
            result.append(ids[index])
            index += 1
    return result


class _PairCounts:
    """Counts of adjacent pairs over weighted pieces, and which pieces hold each pair."""

    def __init__(self, counts: Mapping[bytes, int]) -> None:
        ordered = sorted((piece, count) for piece, count in counts.items() if len(piece) > 1)
        self.pieces = [list(piece) for piece, _ in ordered]
        self.weights = [count for _, count in ordered]
        self.totals: dict[Pair, int] = defaultdict(int)
        self.holders: dict[Pair, set[int]] = defaultdict(set)
        for index, (ids, weight) in enumerate(zip(self.pieces, self.weights, strict=True)):
            for pair in zip(ids, ids[1:], strict=False):
                self.totals[pair] += weight
                self.holders[pair].add(index)
        self.forbidden: set[Pair] = set()
        self.heap = [(-total, pair) for pair, total in self.totals.items()]
        heapq.heapify(self.heap)

    def most_frequent(self) -> Pair | None:
        """Returns the pair with the highest count; None when no pair occurs twice."""
        while self.heap:
            negative, pair = heapq.heappop(self.heap)
            if negative > -2:
                return None
            if self.totals.get(pair) == -negative:
                return pair
        return None

    def forbid(self, pair: Pair) -> None:
        """Leaves the pair apart for good."""
        self.totals.pop(pair)
        self.forbidden.add(pair)

    def merge(self, pair: Pair, merged: int) -> None:
        """Replaces `pair` by `merged` in every piece, and brings the counts up to date."""
        changed: set[Pair] = set()
        for index in self.holders.pop(pair):
            ids, weight = self.pieces[index], self.weights[index]
            new = merge_pair(ids, pair, merged)
            if len(new) == len(ids):  # An earlier merge took the pair from this piece.
                continue
            self.pieces[index] = new
            for old_pair in zip(ids, ids[1:], strict=False):
                self.totals[old_pair] -= weight
                changed.add(old_pair)
            for new_pair in zip(new, new[1:], strict=False):
                self.totals[new_pair] += weight
                self.holders[new_pair].add(index)
                changed.add(new_pair)
        del self.totals[pair]
        for other in changed - self.forbidden:
            if self.totals.get(other, 0) > 1:
                heapq.heappush(self.heap, (-self.totals[other], other))


def learn_merges(counts: Mapping[bytes, int], num_merges: int, first_id: int) -> list[Pair]:
    """Returns up to `num_merges` pairs in order of merging; merge i makes id `first_id + i`.

    `counts` maps pieces to how often they occur. Fewer merges return when no pair occurs twice any more. No two
    merges make the same bytes: a vocabulary maps texts to ids, and the second one could not be written down.
    """
    pairs = _PairCounts(counts)
    merges: list[Pair] = []
    tokens = list(BASE_TOKENS)
    made: set[bytes] = set()
    while len(merges) < num_merges:
        pair = pairs.most_frequent()
        if pair is None:
            break
        token = tokens[pair[0]] + tokens[pair[1]]
        if token in made:
            pairs.forbid(pair)
            continue
        made.add(token)
        tokens.append(token)
        pairs.merge(pair, first_id + len(merges))
        merges.append(pair)
    return merges
