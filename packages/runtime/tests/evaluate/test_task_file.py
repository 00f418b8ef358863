"""Task files: the keys that are read, and what is said of those that are wrong."""

import json

import pytest
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.evaluate.items import items_of
from kanawa_runtime.evaluate.task import TaskError
from kanawa_runtime.evaluate.task_file import read_task

ROWS = [{"q": f"question {n}", "options": ["yes", "no"], "right": n % 2} for n in range(4)]
CHOICES = {
    "task": "toy",
    "dataset_path": "rows.jsonl",
    "output_type": "multiple_choice",
    "doc_to_text": "{{q}}?",
    "doc_to_choice": "options",
    "doc_to_target": "right",
}
WRITTEN = {
    "task": "toy",
    "dataset_path": "rows.jsonl",
    "output_type": "generate_until",
    "doc_to_text": "q",
    "doc_to_target": "{{options[right]}}",
}


def write(folder, record, rows=ROWS):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "toy.yaml"
    file.write_text(record if isinstance(record, str) else json.dumps(record))  # JSON is YAML
    return file


def test_a_task_becomes_requests(tmp_path):
    items = items_of(read_task(write(tmp_path, {**CHOICES, "description": "About {{q}}: "})))
    assert items[1].requests == (("About question 1: question 1?", " yes"), ("About question 1: question 1?", " no"))
    assert [item.right_choices for item in items] == [(0,), (1,), (0,), (1,)]
    assert items[3].name.startswith("rows.jsonl:4")


def test_examples_come_before_the_question_and_are_never_its_own(tmp_path):
    for seed in range(6):
        task = read_task(write(tmp_path, {**CHOICES, "num_fewshot": 3, "fewshot_seed": seed}))
        for item in items_of(task):
            before, _, question = item.requests[0][0].rpartition("\n\n")
            others = {f"{row['q']}? {row['options'][row['right']]}" for row in ROWS if row["q"] not in question}
            assert set(before.split("\n\n")) == others


def test_examples_are_drawn_by_the_seed(tmp_path):
    rows = [{"q": f"question {n}", "options": ["yes", "no"], "right": n % 2} for n in range(40)]

    def contexts(seed):
        file = write(tmp_path, {**CHOICES, "num_fewshot": 2, "fewshot_seed": seed}, rows)
        return [item.requests[0][0] for item in items_of(read_task(file))]

    assert contexts(1) == contexts(1) != contexts(2)


def test_samples_of_the_file_and_the_first_of_a_split(tmp_path):
    config = {"samples": [{"q": "old", "options": ["a", "b"], "right": 1}]}
    task = read_task(write(tmp_path, {**CHOICES, "num_fewshot": 1, "fewshot_config": config}))
    assert items_of(task)[0].requests[0][0] == "old? b\n\nquestion 0?"
    config = {"sampler": "first_n"}
    task = read_task(write(tmp_path, {**CHOICES, "num_fewshot": 1, "fewshot_config": config}))
    assert [item.requests[0][0] for item in items_of(task)][:2] == [
        "question 1? no\n\nquestion 0?",
        "question 0? yes\n\nquestion 1?",
    ]


def test_what_an_answer_begins_with_stands_before_it_everywhere(tmp_path):
    task = read_task(write(tmp_path, {**CHOICES, "num_fewshot": 1, "gen_prefix": "Answer:"}))
    assert items_of(task)[1].requests[0][0].endswith("\n\nquestion 1? Answer:")
    assert "? Answer: " in items_of(task)[1].requests[0][0].split("\n\n")[0]


def test_a_file_that_includes_another_replaces_its_keys(tmp_path):
    write(tmp_path, {**CHOICES, "dataset_path": "super_glue", "dataset_name": "boolq"})
    over = tmp_path / "over.yaml"
    over.write_text("include: toy.yaml\ndataset_path: rows.jsonl\nlimit: 2\n")
    assert len(items_of(read_task(over))) == 2
    assert len(items_of(read_task(over, limit=3))) == 3


def test_generation_is_greedy_unless_it_is_asked_to_draw(tmp_path):
    def generation(**options):
        return read_task(write(tmp_path, {**WRITTEN, "generation_kwargs": options})).generation

    assert generation().temperature == 0.0 and generation().until == ("\n\n",)
    assert generation(temperature=0.7).temperature == 0.7
    assert generation(temperature=0.7, do_sample=False).temperature == 0.0
    assert generation(max_new_tokens=9, until="x").max_tokens == 9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"doc_to_txt": "q"}, "there is no key 'doc_to_txt'; did you mean 'doc_to_text'"),
        ({"output_type": "multiple_choices"}, "output_type is 'multiple_choices'; did you mean 'multiple_choice'?"),
        ({"doc_to_choice": None}, "doc_to_choice missing; a task of output_type multiple_choice needs doc_to_text"),
        ({"num_fewshot": "three"}, "num_fewshot is 'three', expected a number"),
        ({"num_fewshot": 9}, "num_fewshot is 9, and there are 4 documents to draw them from; 10 are needed"),
        ({"metric_list": [{"metric": "accuracy"}]}, "multiple_choice has no metric 'accuracy'"),
        ({"metric_list": [{"metric": "acc", "ignore_case": True}]}, "the metric acc has no option 'ignore_case'"),
        ({"metric_list": [{"metric": "acc", "aggregation": "perplexity"}]}, "aggregation of acc is 'perplexity'"),
        ({"filter_list": [{"name": "x", "filter": [{"function": "regexp"}]}]}, "there is no filter 'regexp'; did you"),
        (
            {"filter_list": [{"name": "x", "filter": [{"function": "regex", "regex_pattern": "("}]}]},
            "is no expression",
        ),
        ({"process_docs": "x"}, "process_docs needs Python of lm-eval's own"),
        ({"repeats": 4}, "repeats is 4, and each question is asked once"),
        ({"dataset_path": "super_glue"}, "a dataset of a hub, and tasks read files"),
        ({"dataset_path": "json"}, "without dataset_kwargs.data_files"),
        (
            {"test_split": "dev", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}}},
            "no files of the split 'dev'",
        ),
        ({"doc_to_text": "{{question}}"}, "rows.jsonl:1: doc_to_text of"),
        ({"doc_to_text": "{{question}}"}, "'question' is undefined"),
        ({"doc_to_text": "qq"}, "names a field, 'qq', that isn't there"),
        ({"doc_to_text": "qq"}, """for the text itself write "{{'qq'}}\""""),
        ({"doc_to_text": "{% if q %}"}, "doc_to_text is no template"),
        ({"doc_to_target": "{{right + 7}}"}, "rows.jsonl:1: doc_to_target gives 7, expected an index below 2"),
        ({"doc_to_choice": "{{[]}}"}, "rows.jsonl:1: doc_to_choice gives [], expected a list of texts, none of them"),
        ({"doc_to_choice": "{{q}}"}, "doc_to_choice gives 'question 0', expected a list of texts"),
    ],
)
def test_what_is_wrong_is_said_with_the_place_and_what_would_be_right(tmp_path, change, said):
    record = {key: value for key, value in {**CHOICES, **change}.items() if value is not None}
    with pytest.raises(TaskError) as caught:
        items_of(read_task(write(tmp_path, record)))
    assert said in str(caught.value) and "toy.yaml" in str(caught.value)


def test_a_template_that_fails_on_one_row_names_it(tmp_path):
    rows = [*ROWS, {"q": "no options", "right": 0}]
    with pytest.raises(TaskError, match="rows.jsonl:5: doc_to_choice of .* names a field, 'options'"):
        items_of(read_task(write(tmp_path, CHOICES, rows)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("task: [", "not YAML"),
        ("- 1", "holds a list, expected a mapping"),
        ("task: toy\nprocess_results: !function utils.score\n", "line 2 names a Python function, 'utils.score'"),
        ("include: toy.yaml", "include leads back"),
    ],
)
def test_files_that_are_no_task(tmp_path, text, said):
    with pytest.raises(TaskError, match="toy.yaml") as caught:
        read_task(write(tmp_path, text))
    assert said in str(caught.value)


def test_data_that_is_not_there_or_empty(tmp_path):
    with pytest.raises(CorpusError, match="no file matches 'rose.jsonl'.*did you mean 'rows.jsonl'"):
        items_of(read_task(write(tmp_path, {**CHOICES, "dataset_path": "rose.jsonl"})))
    with pytest.raises(TaskError, match="the data of toy holds no documents"):
        items_of(read_task(write(tmp_path, CHOICES, [])))
