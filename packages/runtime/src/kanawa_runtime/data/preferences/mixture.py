"""Rows of pairs of several sources by weight."""

from collections.abc import Mapping

from kanawa.contracts import PreferenceBatch
from kanawa.contracts.data import RowField

from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.mixture import Mixture


class PairMixture(Mixture):
    """A mixture of rows of pairs, or of rows of judged completions: `--data 'a.jsonl*0.7,b.jsonl*0.3'` with `dpo`.

    As in any mixture weights are shares of rows, row r is a pure function of (config, seed, r), and weights may change.
    """

    batch = PreferenceBatch

    class Config(Mixture.Config):
        pass

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """Those of the sources, which are all alike, and `sources`; raises RowError where one's are others."""
        (name, first), *rest = self.parts.items()
        for other, source in rest:
            if type(source) is not type(first) or source.fields != first.fields:
                message = (
                    f"the sources {name!r} and {other!r} make different rows of pairs: give them one kind of "
                    "preferences, the same data.sources.NAME.pairs_per_row and reference_columns"
                )
                raise RowError(message)
        return {**first.fields, "sources": RowField((len(self.source_names),), "float32", (None,))}
