"""From a Hugging Face folder and chat.jsonl to a folder that transformers loads, and that answers and stops.

    python benchmarks/chat_in_three_commands.py --torch PYTHON [--steps 200]

The folder is the random Llama of `trl_folder.py`; the conversations are four questions with an answer each, over and
over, so that a few steps learn them by heart. After two of the three commands, training and export, transformers writes
an answer greedily; the third command does the same here. Exits 1 unless both give the right answer to each question and
end with the template's stop token.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from trl_folder import write_model

ANSWERS = {"the fox": "jumps over seven dogs", "the dog": "the lazy ships", "a ship": "sail brown", "seven": "quick"}
MODEL = {"vocab": 384, "width": 64, "layers": 2, "heads": 4, "kv_heads": 2}
THEIRS = """
import json, sys, transformers
folder, questions = sys.argv[1], json.loads(sys.argv[2])
model = transformers.AutoModelForCausalLM.from_pretrained(folder)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
answers = []
for question in questions:
    asked = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                          return_tensors="pt", return_dict=True)
    ids = model.generate(**asked, max_new_tokens=40, do_sample=False)[0, asked["input_ids"].shape[1]:].tolist()
    answers.append([tokenizer.decode(ids, skip_special_tokens=True), tokenizer.convert_ids_to_tokens(ids[-1])])
print("\\n" + json.dumps(answers))
"""


def command(*words: str) -> str:
    """Runs a command line; returns its output."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-500:]}{done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    """Runs the three commands and both libraries; prints what they answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", required=True, help="the Python of an environment with transformers")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    kanawa = str(Path(sys.executable).with_name("kanawa"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_model(folder / "model", **MODEL)
        roles = ("user", "assistant")
        pairs = [[{"role": r, "content": c} for r, c in zip(roles, p, strict=True)] for p in ANSWERS.items()]
        lines = [json.dumps({"messages": pair}) + "\n" for pair in pairs * 200]
        (folder / "chat.jsonl").write_text("".join(lines))
        sets = ("batch_size=4", "data.sequence_length=128", "data.validation_one_in=0", "evaluation.every_steps=100000")
        peak = "learner.schedule.peak=0.005"
        command(
            kanawa, "train", str(folder / "model"), "--modify", "sft", "--data", str(folder / "chat.jsonl"), "--run",
            str(folder / "run"), "--steps", str(args.steps), *(x for one in (*sets, peak) for x in ("--set", one)),
        )  # fmt: skip
        command(kanawa, "convert", "to-hf", str(folder / "run"), str(folder / "export"))
        told = command(args.torch, "-c", THEIRS, str(folder / "export"), json.dumps(list(ANSWERS)))
        theirs = [tuple(answer) for answer in json.loads(told.splitlines()[-1])]
        asked = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in ANSWERS]
        words = [x for prompt in asked for x in ("--prompt", prompt)]
        wrote = command(
            kanawa, "generate", str(folder / "export"), *words, "--max-tokens", "40", "--temperature", "0", "--json"
        )  # fmt: skip
        ours = [json.loads(line)["text"] for line in wrote.splitlines()]
        right = True
        for (question, answer), (text, last), mine in zip(ANSWERS.items(), theirs, ours, strict=True):
            right = right and text == answer == mine.removesuffix("<|im_end|>") and last == "<|im_end|>"
            sys.stdout.write(f"{question!r}: transformers {text!r}, ended by {last}; kanawa {mine!r}\n")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
