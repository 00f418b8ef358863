"""Which language models each one-file feature reaches by its modifier: builds and traces a training step of each.

python benchmarks/features_by_family.py [--into docs/features-by-family.md]: small models of every family, on CPU.
"""

import argparse
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.modifiers import configured, parse_modifier
from kanawa.contracts import Batch, CausalLM, ReadsPictures
from kanawa.errors import KanawaError
from kanawa_layers.convert.families import model_config

FIXTURES = pathlib.Path(__file__).parents[1] / "packages" / "layers" / "tests" / "fixtures"
FEATURES = {
    "multi-token prediction": "multi-token",
    "sparse attention": "sparse-attention:top_k=3,heads=2,head_dim=8,rope_dim=4",
    "Kimi delta attention": "mixer:kind=kimi-delta-attention",
    "hyper-connections (mHC)": "hyper-connections:streams=2",
    "QK-clip": "qk-clip",
    "n-gram memory": "ngram-memory:layers=[1],table_size=64,width=8",
}
START, END = "<!-- generated: features by family -->", "<!-- end generated: features by family -->"


class Experiment(kn.Config):
    """What a modifier changes."""

    model: kn.Module.Config = kn.REQUIRED


def families() -> dict[str, kn.Config]:
    """Returns the small language models, by the name of their fixture."""
    configs = {path.parent.name: json.loads(path.read_text()) for path in sorted(FIXTURES.glob("*/config.json"))}
    models = {name: model_config(config) for name, config in configs.items()}
    tested_twice = ("llama3", "llama_classifier", "llama_tags")
    # Those that read pictures take another record than this trace's, and their decoders are here by themselves.
    texts = {n: cfg for n, cfg in models.items() if not isinstance(cfg, ReadsPictures.Config)}
    return {n: cfg for n, cfg in texts.items() if isinstance(cfg, CausalLM.Config) and n not in tested_twice}


def refusal(model: kn.Config, call: str) -> str:
    """Returns why a feature doesn't fit a model, "" where a step with it traces and something of the model changed."""
    try:
        changed = configured(*parse_modifier(call))(Experiment(model=model.clone())).model
        if not kn.diff(model, changed):
            return "nothing changes"
        built = changed.build()
        specs = [flatten_paths(of(built)) for of in (kn.param_specs, kn.state_specs)]
        shapes = [{path: jax.ShapeDtypeStruct(s.shape, s.dtype) for path, s in flat.items()} for flat in specs]
        params, state = (unflatten_paths(flat) for flat in shapes)
        ints = jnp.ones((2, 8), jnp.int32)
        batch = Batch(ints, ints, ints, ints, jnp.ones((2, 8)))
        run = kn.functional(built)
        jax.eval_shape(lambda p, s: run(p, s, batch, key=jax.random.key(0), train=True)[1].losses, params, state)
    except KanawaError as error:
        # Of a config with problems, they are the lines below.
        lines = str(error).splitlines()
        return lines[1].strip(" -") if lines[0].endswith(":") else lines[0].partition(" under ")[0]
    return ""


def table(models: dict[str, kn.Config]) -> str:
    """Returns the table as Markdown, and below it the reasons of each no."""
    rows = [f"| family | {' | '.join(FEATURES)} |", f"|---|{'---|' * len(FEATURES)}"]
    reasons: dict[str, list[str]] = {}
    for name, model in models.items():
        found = {feature: refusal(model, call) for feature, call in FEATURES.items()}
        rows.append(f"| `{name}` | {' | '.join('no' if reason else 'yes' for reason in found.values())} |")
        for feature, reason in found.items():
            if reason:
                reasons.setdefault(f"{feature}: {reason}", []).append(f"`{name}`")
    notes = [f"- {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return "\n".join([*rows, "", *notes])


def main() -> None:
    """Prints the table, or writes it between the marks of a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=pathlib.Path)
    into = parser.parse_args().into
    text = table(families())
    if into is None:
        sys.stdout.write(text + "\n")
        return
    before, _, rest = into.read_text().partition(START)
    into.write_text(f"{before}{START}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
