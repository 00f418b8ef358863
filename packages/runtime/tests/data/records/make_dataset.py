"""Writes the fixture `saved_dataset`, as Hugging Face `datasets` saves a DatasetDict.

Made with datasets 5.2.0: python make_dataset.py packages/runtime/tests/data/records/saved_dataset
"""

import sys

from datasets import Dataset, DatasetDict


def rows(split: str, count: int) -> Dataset:
    """Returns rows in reversed order of what is stored: `save_to_disk` must write what the dataset shows."""
    stored = Dataset.from_dict({"text": [f"{split} {i}" for i in range(count)], "n": list(range(count))})
    return stored.select(range(count - 1, -1, -1))


if __name__ == "__main__":
    whole = DatasetDict({"train": rows("train", 6), "test": rows("test", 2)})
    whole.save_to_disk(sys.argv[1], num_shards={"train": 2, "test": 1})
