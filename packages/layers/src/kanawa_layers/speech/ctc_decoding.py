"""Labels from the frames of a model trained with CTC: the best path, and the best labels of a beam of prefixes."""

from collections import defaultdict

import numpy as np

Labels = tuple[int, ...]


def best_path(logits: np.ndarray, num_frames: np.ndarray, *, blank: int = 0) -> list[Labels]:
    """Returns the labels of each row's likeliest alignment: logits [B, T, V], of which `num_frames` [B] count."""
    found = []
    for ids, count in zip(np.argmax(logits, axis=-1), num_frames, strict=True):
        row = ids[: int(count)]
        changed = np.diff(row, prepend=-1) != 0
        found.append(tuple(int(i) for i in row[changed & (row != blank)]))
    return found


def prefix_beam(log_probs: np.ndarray, width: int = 8, *, blank: int = 0) -> list[tuple[Labels, float]]:
    """Returns the `width` likeliest label sequences of log-probabilities [T, V], best first, with their own.

    Sums over alignments of the same labels (Graves 2012; Hannun et al. 2014, arXiv:1408.2873). A beam that holds
    every prefix gives the exact probabilities; a smaller one, lower bounds.
    """
    # For each prefix, the log-probabilities of alignments that end in a blank, and in its last label.
    beam: dict[Labels, tuple[float, float]] = {(): (0.0, -np.inf)}
    for frame in np.asarray(log_probs, np.float64):
        grown: dict[Labels, list[float]] = defaultdict(lambda: [-np.inf, -np.inf])
        # Of one prefix's extensions no more than `width` can stay in the beam, and its repeated label may be weak.
        likely = np.argsort(frame)[::-1][: width + 1]
        for prefix, (after_blank, after_label) in beam.items():
            either = np.logaddexp(after_blank, after_label)
            entry = grown[prefix]
            entry[0] = float(np.logaddexp(entry[0], either + frame[blank]))
            if prefix:
                entry[1] = float(np.logaddexp(entry[1], after_label + frame[prefix[-1]]))
            for label in likely:
                if label != blank:
                    # The same label again is a new one only after a blank.
                    before = after_blank if prefix and prefix[-1] == label else either
                    longer = grown[(*prefix, int(label))]
                    longer[1] = float(np.logaddexp(longer[1], before + frame[label]))
        ranked = sorted(grown.items(), key=lambda item: -np.logaddexp(item[1][0], item[1][1]))
        beam = {prefix: (ends[0], ends[1]) for prefix, ends in ranked[:width]}
    return [(prefix, float(np.logaddexp(ends[0], ends[1]))) for prefix, ends in beam.items()]
