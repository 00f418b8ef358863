"""Fine-tunes a random model on conversations with Kanawa, exports it, and has `transformers` answer with the export.

Run by `nox -s parity` with the path of a Python that has transformers and torch. The folder is made by
tests/integration/test_fine_tuning.py's own functions; the answers must be the words asked for, ended by the stop token.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = ("--set", "data.sequence_length=96", "--set", "batch_size=8", "--set", "learner.schedule.peak=0.005")
ANSWER = """
import json, sys, transformers
folder, words = sys.argv[1], sys.argv[2].split()
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder)
answers = {}
for word in words:
    messages = [{"role": "user", "content": f"say {word}"}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = model.generate(**asked, max_new_tokens=20, do_sample=False)[0, asked["input_ids"].shape[1] :].tolist()
    answers[word] = [tokenizer.decode(made[:-1]), tokenizer.decode(made[-1:])]
print(json.dumps(answers))
"""


def main(python: str) -> None:
    """Trains, exports and asks; raises SystemExit where an answer is another."""
    sys.path.insert(0, str(ROOT / "tests" / "integration"))
    from test_fine_tuning import WORDS, write_folder

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_folder(folder)
        asked = ("model", "--modify", "sft", "--data", "chat.jsonl", "--run", "run", "--steps", "120", *SIZES)
        subprocess.run(["kanawa", "train", *asked], cwd=folder, check=True)
        subprocess.run(["kanawa", "convert", "to-hf", "run", "exported"], cwd=folder, check=True)
        command = [python, "-c", ANSWER, str(folder / "exported"), " ".join(WORDS)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answers = json.loads(out.splitlines()[-1])
    wrong = {word: answer for word, answer in answers.items() if answer != [word, "<|im_end|>"]}
    sys.exit(f"transformers answers otherwise: {wrong}" if wrong else 0)


if __name__ == "__main__":
    main(sys.argv[1])
