"""The other side of media_loader.py: the same files by a PyTorch DataLoader with the same decoding.

python media_loader_side.py FOLDER pictures|wav|flac|resampled WORKERS BATCH SECONDS; prints one line of JSON.
"""

import io
import itertools
import json
import math
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

SIZE, RATE, MOST_SECONDS = 224, 16_000, 8.0


def cropped(picture: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Returns a random part of a quarter of the area or more, resized, mirrored in half of the cases."""
    width, height = picture.size
    area = width * height * draw.uniform(0.25, 1.0)
    ratio = math.exp(draw.uniform(-1.0, 1.0) * math.log(4 / 3))
    across, down = math.sqrt(area * ratio), math.sqrt(area / ratio)
    shrink = min(1.0, width / across, height / down)
    across, down = across * shrink, down * shrink
    left, top = draw.uniform(0.0, width - across), draw.uniform(0.0, height - down)
    box = (left, top, left + across, top + down)
    made = picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box=box, reducing_gap=2.0)
    return made.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.uniform() < 0.5 else made


class Pictures(torch.utils.data.Dataset):
    """Files of pictures with the numbers of their folders."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*/*"))
        names = sorted({file.parent.name for file in self._files})
        self._classes = {name: number for number, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        file = self._files[number]
        picture = Image.open(io.BytesIO(file.read_bytes())).convert("RGB")
        pixels = np.array(cropped(picture, np.random.default_rng(number)))
        return torch.from_numpy(pixels), self._classes[file.parent.name]


class Sounds(torch.utils.data.Dataset):
    """Files of sound, padded to one length, with the letters of their texts."""

    def __init__(self, folder: Path) -> None:
        self._items = [json.loads(line) for line in (folder / "speech.jsonl").read_text().splitlines()]
        self._folder = folder

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int, torch.Tensor]:
        import soundfile

        item = self._items[number]
        samples, rate = soundfile.read(self._folder / item["audio"], dtype="float32", always_2d=True)
        samples = samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
        if rate != RATE:
            from scipy.signal import resample_poly

            shared = math.gcd(rate, RATE)
            samples = resample_poly(samples, RATE // shared, rate // shared).astype(np.float32)
        audio = torch.zeros(int(MOST_SECONDS * RATE))
        audio[: samples.size] = torch.from_numpy(samples)
        letters = torch.zeros(128, dtype=torch.int32)
        text = np.frombuffer(item["text"].encode(), np.uint8).astype(np.int32)
        letters[: text.size] = torch.from_numpy(text)
        return audio, samples.size, letters


def main() -> None:
    """Reads batches for a time."""
    folder, kind, workers, batch, seconds = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:6])
    torch.set_num_threads(1)
    dataset = Pictures(Path(folder)) if kind == "pictures" else Sounds(Path(folder))
    options = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=int(batch), shuffle=True, drop_last=True, num_workers=int(workers), **options
    )

    stream, rows = itertools.chain.from_iterable(itertools.repeat(loader)), 0
    next(stream)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        next(stream)
        rows += int(batch)
    taken = time.perf_counter() - begin
    del stream, loader
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    busy = sum(each.ru_utime + each.ru_stime for each in usage)
    found = {"version": f"torch {torch.__version__}", "rows_a_second": rows / taken, "rows": rows, "processor": busy}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
