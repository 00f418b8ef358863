"""A data source: row r is a pure function of the config, the seed and r."""

from kanawa.cli.scaffold.kinds import Kind

_SOURCE = '''"""$class_name: rows that repeat a random motif: something to learn, and to replace."""

import hashlib

import numpy as np
from kanawa.contracts import DataSource


class $class_name(DataSource):
    """Row r depends on the config, the seed and r alone, so that any host can make it and any run can resume."""

    class Config(DataSource.Config):
        sequence_length: int = 64
        vocab_size: int = 256
        motif: int = 7

    @property
    def num_rows(self) -> int | None:
        """None: it never ends."""
        return None

    @property
    def vocab_size(self) -> int:
        """The configured size."""
        return self.config.vocab_size

    @property
    def digest(self) -> str:
        """Everything the rows depend on."""
        cfg = self.config
        text = f"$distribution {cfg.sequence_length} {cfg.vocab_size} {cfg.motif} {cfg.seed}"
        return hashlib.sha256(text.encode()).hexdigest()

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`: one motif, repeated."""
        cfg = self.config
        motif = np.random.default_rng([cfg.seed, index]).integers(0, cfg.vocab_size, cfg.motif)
        tokens = np.resize(motif, cfg.sequence_length + 1).astype(np.int32)
        return {
            "input_ids": tokens[:-1],
            "target_ids": tokens[1:],
            "positions": np.arange(cfg.sequence_length, dtype=np.int32),
            "segment_ids": np.ones(cfg.sequence_length, np.int32),
            "loss_weights": np.ones(cfg.sequence_length, np.float32),
        }
'''

_TESTS = '''"""The plugin passes the kit that Kanawa's own packages pass."""

from kanawa.testing.data_source import DataSourceConformance
from kanawa.testing.plugin import PluginConformance

from $package.source import $class_name


class TestPlugin(PluginConformance):
    distribution = "$distribution"


class Test$class_name(DataSourceConformance):
    def source(self):
        return $class_name.Config(sequence_length=16).build()
'''

KIND = Kind(
    sources={"source.py": _SOURCE},
    entry_points={"data": {"$distribution": "source:$class_name"}},
    conformance=_TESTS,
    usage="kanawa train quickstart --data $distribution --run runs/$distribution",
)
