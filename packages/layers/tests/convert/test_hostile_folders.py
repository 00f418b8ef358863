"""Folders that mean harm, or are damaged: one clear error each, and neither time nor memory spent."""

import dataclasses
import json
import os
import resource
import shutil
import socket
import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kanawa.errors import KanawaError, UsageError
from kanawa.guarded_read import UnreadableFileError
from kanawa_layers.convert.errors import ConvertError, SafetensorsError
from kanawa_layers.convert.huggingface import HuggingFaceStore

FIXTURES = Path(__file__).parents[1] / "fixtures"
SECRET = "the secret of another folder"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(FIXTURES / "llama", tmp_path / "model"))


def says(folder: Path, **values) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def weights_of(folder):
    """Returns the file of a folder's tensors, by its name in either library."""
    (file,) = folder.glob("*model.safetensors")
    return file


def headed(folder: Path, change) -> None:
    """Lets `change` edit the header of the tensors, and writes it before the same bytes."""
    file = weights_of(folder)
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    text = json.dumps(change(header) or header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


@pytest.mark.parametrize("count", [10**9, 10**12, 1e12])
def test_more_layers_than_tensors(folder, count):
    says(folder, num_hidden_layers=count)
    with pytest.raises(UsageError, match=r"num_hidden_layers is 1e\+(09|12), expected at most 2,000, and no more than"):
        HuggingFaceStore().outline(folder)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hidden_size": 10**12}, r"hidden_size is 1e\+12, expected no more than the [\d,]+ elements"),
        ({"vocab_size": 2**62}, "vocab_size is 4.6.*e.18, expected no more than"),
        ({"vocab_size": 10**400}, "vocab_size is a number of hundreds of digits, expected no more than"),
        ({"num_attention_heads": 10**9}, "num_attention_heads is 1e.09, expected no more than"),
        ({"num_local_experts": 10**9}, "num_local_experts is 1e.09, expected at most 100,000"),
        ({"sliding_window_pattern": 10**9}, "sliding_window_pattern is 1e.09, expected at most"),
        ({"layer_types": ["full_attention"] * 5_000}, "layer_types is a list of 5,000, expected at most 2,000"),
        ({"text_config": {"num_layers": 10**9}}, "text_config.num_layers is 1e.09"),
        ({"num_hidden_layers": 0}, "num_layers"),
        ({"num_hidden_layers": -1}, "num_layers"),
        ({"num_hidden_layers": True}, "num_layers"),
        ({"num_hidden_layers": None}, "num_layers"),
        ({"num_hidden_layers": float("nan")}, "num_layers"),
        ({"hidden_size": 0}, "input_dim"),
        ({"num_attention_heads": 0}, "num_heads|ZeroDivision"),
        ({"vocab_size": [64]}, "vocab_size"),
        ({"hidden_act": {"a": 1}}, "activation"),
        ({"rope_scaling": 3}, "has an invalid value"),
        ({"rms_norm_eps": "x"}, "eps"),
        ({"rms_norm_eps": -1.0}, "eps"),
        ({"quantization_config": 5}, "quantised"),
        ({"tie_word_embeddings": "perhaps"}, "tie_word_embeddings is 'perhaps', expected true or false"),
        ({"model_type": "x" * 10_000}, "no installed package knows the model_type"),
    ],
)
def test_values_that_no_config_has(folder, values, said):
    says(folder, **values)
    with pytest.raises(UsageError, match=said) as error:
        HuggingFaceStore().outline(folder)
    told = "\n".join([str(error.value), *getattr(error.value, "__notes__", [])])
    assert "config.json" in told
    assert len(told) < 4_000


def test_a_config_that_never_ends(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")
    with pytest.raises(UnreadableFileError, match="is a link out of its folder, to /dev/zero"):
        HuggingFaceStore().outline(folder)


def test_a_config_too_long(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "x": "x" * 2**25}))
    with pytest.raises(UnreadableFileError, match="is more than 16,777,216 bytes, which no file of that name is"):
        HuggingFaceStore().outline(folder)


def test_a_config_nested_beyond_reading(folder):
    (folder / "config.json").write_text('{"a": ' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(UnreadableFileError, match="nests lists and objects more than 100 deep"):
        HuggingFaceStore().outline(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "directory", "device"])
def test_what_is_no_ordinary_file(folder, name, kind, monkeypatch):
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "socket":
        monkeypatch.chdir(folder)  # its path may have a hundred bytes at most
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(name)
    elif kind == "directory":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to("/dev/zero")
    expected = "is a link out of its folder, to /dev/zero" if kind == "device" else f"is a {kind}, expected an ordinary"
    with pytest.raises(KanawaError, match=expected):
        HuggingFaceStore().outline(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_links_out_of_the_folder(folder, tmp_path, name):
    secret, between = tmp_path / "secret", tmp_path / "between"
    shutil.copy(folder / name, secret) if (folder / name).exists() else secret.write_text(SECRET)
    between.symlink_to(secret)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("../between")
    with pytest.raises(UnreadableFileError, match=f"{name} is a link out of its folder, to {secret}; put the file"):
        HuggingFaceStore().load(folder)


def test_links_in_a_circle(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    with pytest.raises(UsageError, match=r"config\.json"):
        HuggingFaceStore().load(folder)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/b", "..", ".", "", "x" * 300, "a\0b", "\ud800", "a\nb"]
)
def test_an_index_that_names_no_file_of_the_folder(folder, name):
    index = {"weight_map": {"lm_head.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConvertError, match="points outside of its folder, or names no file"):
        HuggingFaceStore().outline(folder)


@pytest.mark.parametrize(
    "index", ["[]", "{}", "5", '{"weight_map": [1]}', '{"weight_map": {"a": {}}}', "[" * 9_000, "{"]
)
def test_an_index_that_is_none(folder, index):
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UsageError, match=r"index\.json"):
        HuggingFaceStore().outline(folder)


def first(header):
    return header[next(name for name in header if not name.startswith("__"))]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda h: first(h).update(dtype=["F32"]), "has dtype"),
        (lambda h: first(h).update(dtype="F31"), "has dtype 'F31'; known"),
        (lambda h: first(h).update(shape=[2**62, 2**62]), "more bytes than can be counted"),
        (lambda h: first(h).update(shape=[0, 2**63 - 1], data_offsets=[0, 0]), "more bytes than can be counted"),
        (lambda h: first(h).update(shape=[True, 64]), "has shape"),
        (lambda h: first(h).update(shape=[-1]), "has shape"),
        (lambda h: first(h).update(shape=[1] * 50), "has shape"),
        (lambda h: first(h).update(shape=None), "no valid dtype, shape and data_offsets"),
        (lambda h: first(h).update(data_offsets=[0, 2**63]), "offsets"),
        (lambda h: first(h).update(data_offsets=[8, 4]), "can't take -4 bytes"),
        (lambda h: first(h).update(data_offsets=[0]), "no valid"),
        (lambda h: h.update({"x" * 2_000: first(h)}), "a tensor's name is 'xxx.*2,002 characters"),
        (lambda h: h.update({"\x1b[2J": first(h)}), "a tensor's name is"),
        (lambda h: h.update({"again": first(h)}), "starts at byte"),
        (lambda h: [1], "is a list, expected an object"),
        (lambda h: {"a": 5}, "no valid"),
    ],
)
def test_headers_that_lie(folder, change, said):
    def edited(header):
        return changed if isinstance(changed := change(header), list | dict) else None

    headed(folder, edited)
    with pytest.raises(SafetensorsError, match=said) as error:
        HuggingFaceStore().outline(folder)
    assert len(str(error.value)) < 2_000


def test_more_experts_than_tensors(tmp_path):
    folder = Path(shutil.copytree(FIXTURES / "mixtral", tmp_path / "mixtral"))
    says(folder, num_local_experts=99_999)
    with pytest.raises(ConvertError, match=r"is of a model with more than 10,0\d\d tensors, and the folder has \d+"):
        HuggingFaceStore().outline(folder)


HOSTILE = [
    None, True, [], {}, [1], {"a": [1]}, "", "x" * 5_000, 0, -1, 2**31, 2**62, 10**12, 10**400, 0.5, float("nan"),
    float("inf"), -1e300, ["full_attention"] * 3, "\ud800", "\x1b[2J",
]  # fmt: skip
FAMILIES = sorted(path.name for path in FIXTURES.iterdir() if (path / "config.json").exists())


def spoil(folder: Path, data: st.DataObject) -> None:
    """Does one thing to a folder that whoever made it may have done."""
    what = data.draw(st.sampled_from(["config", "config", "config", "header", "bytes", "cut", "link", "text"]))
    file = folder / "config.json" if what in ("config", "text") else weights_of(folder)
    content = file.read_bytes()
    if what == "config":
        config = json.loads(content)
        for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=2)):
            inner = config[key] if isinstance(config[key], dict) and data.draw(st.booleans()) else config
            name = data.draw(st.sampled_from(sorted(inner))) if inner is not config and inner else key
            inner[name] = data.draw(st.sampled_from(HOSTILE))
        file.write_text(json.dumps(config))
    elif what == "header":

        def change(header):
            entry = header[data.draw(st.sampled_from(sorted(header)))]
            entry[data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))] = data.draw(st.sampled_from(HOSTILE))

        headed(folder, change)
    elif what == "bytes":
        at = data.draw(st.integers(0, 400))
        file.write_bytes(content[:at] + data.draw(st.binary(max_size=9)) + content[at + 8 :])
    elif what == "cut":
        file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    elif what == "link":
        secret = folder.parent / "secret"
        secret.write_bytes(content)
        file.unlink()
        file.symlink_to(secret)
    else:
        file.write_text(data.draw(st.text(max_size=30)))


def opens_or_says_why(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(FIXTURES / data.draw(st.sampled_from(FAMILIES)), folder)
    spoil(folder, data)
    started = time.thread_time()
    try:
        HuggingFaceStore().load(folder)
    except KanawaError as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", [])])
        assert str(folder) in text, "the error doesn't say where"
        assert len(text) < 40_000
    else:
        assert not weights_of(folder).is_symlink()
        assert not (folder / "config.json").is_symlink()
    assert time.thread_time() - started < 5


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_folder(tmp_path_factory, data):
    opens_or_says_why(tmp_path_factory.getbasetemp(), data)


@pytest.mark.nightly
@settings(max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_folder_for_long(tmp_path_factory, data):
    opens_or_says_why(tmp_path_factory.getbasetemp(), data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 * 2**20, "more than 3 GiB"


@pytest.mark.parametrize("dtypes", [5, {"usual": ["F32"]}, {"usual": "I8"}, {"others": {"a": "F64"}}, {"others": [1]}])
def test_notes_that_no_import_wrote(dtypes):
    model = HuggingFaceStore().load(FIXTURES / "llama")
    with pytest.raises(ConvertError, match="the model's notes say its dtypes are"):
        HuggingFaceStore().plan(dataclasses.replace(model, notes={**model.notes, "dtypes": dtypes}))
