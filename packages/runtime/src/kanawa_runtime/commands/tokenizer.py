"""`kanawa tokenizer train`: learns a vocabulary from text, as a folder that other libraries read."""

import argparse
from pathlib import Path

from kanawa.cli.arguments import json_argument
from kanawa.cli.output import write, write_json
from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="tokenizer",
        help="learn a vocabulary from text",
        configure=configure,
        run=run,
        example=(
            "kanawa tokenizer train --data 'mytext/**/*.txt' --vocab-size 8192 --out tokenizers/mine\n"
            "kanawa train llama-tiny --data 'mytext/**/*.txt' --set data.tokenizer_file=tokenizers/mine"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    train = actions.add_parser(
        "train",
        help="byte-pair merges of the files' text, written as tokenizer.json",
        description="Learns byte-pair merges from the text of files and writes a folder with tokenizer.json, "
        "tokenizer_config.json and generation_config.json, which transformers loads and data.tokenizer_file takes.",
    )
    train.add_argument("--data", action="append", required=True, metavar="FILES", help="files of text; repeatable")
    train.add_argument("--vocab-size", type=int, default=8192, metavar="N", help="ids in all (default: 8192)")
    train.add_argument(
        "--sample-bytes", type=int, default=None, metavar="N", help="learn from so many bytes (default: 6,000,000)"
    )
    train.add_argument(
        "--special", action="append", default=[], metavar="TEXT",
        help="a token of its own beside those learned, such as a chat template's '<|user|>'; repeatable",
    )  # fmt: skip
    train.add_argument("--out", required=True, metavar="FOLDER", help="a new or empty folder")
    json_argument(train)


def run(args: argparse.Namespace) -> int:
    """Learns and writes the tokenizer; returns 0."""
    from kanawa_runtime.data.corpus import Corpus
    from kanawa_runtime.data.own_files import own_corpus
    from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer

    if args.action is None:
        message = "say what to do: kanawa tokenizer train --data FILES --out FOLDER"
        raise UsageError(message)
    out = Path(local_path(args.out, "--out"))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        message = f"--out {out} is there already: name a folder that is new or empty"
        raise UsageError(message)
    cfg = BytePairTokenizer.Config(vocab_size=max(1, args.vocab_size - len(args.special)))
    if args.sample_bytes is not None:
        cfg.set(sample_bytes=args.sample_bytes)
    corpus: Corpus = own_corpus(*args.data).set(validation_one_in=0).build()
    learned = cfg.build().fit(document.data for document in corpus.documents("train"))
    text = next(iter(corpus.documents("train"))).data
    ratio = len(text) / max(1, len(learned.encode(text)))
    files = learned.folder_files(args.special)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (out / name).write_bytes(content)
    figures = {"vocab_size": args.vocab_size, "merges": len(learned.merges), "bytes_per_token": ratio}
    if args.json:
        write_json({"out": str(out), **figures})
        return 0
    write(f"{len(learned.merges):,} merges, {args.vocab_size:,} ids, written to {out}")
    write(f"the first text takes {ratio:.2f} bytes a token")
    return 0
