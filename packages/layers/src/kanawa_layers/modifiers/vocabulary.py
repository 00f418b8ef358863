"""`vocab`: another vocabulary size, for a custom tokenizer."""

import kanawa as kn
from kanawa.config import FROM_PARENT
from kanawa.contracts import Model
from kanawa.errors import ConfigError


class VocabularySize(kn.Modifier):
    """Sets `vocab_size` of every model, from which embeddings and heads derive theirs.

    `multiple` rounds up, since sizes that divide by 128 or so are faster and shard evenly.
    """

    class Config(kn.Modifier.Config):
        size: kn.Size = kn.REQUIRED
        multiple: kn.Size = 1

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the size set."""
        own, reached = self.config, []
        size = -(-own.size // own.multiple) * own.multiple

        def edit(node: kn.Config) -> None:
            # Heads and embeddings derive it from their model; set on them as well, it could differ.
            if "vocab_size" in node.fields() and vars(node)["vocab_size"] is not FROM_PARENT:
                node.set(vocab_size=size)
                reached.append(node)

        kn.replace(cfg, target=kn.Module, edit=edit)
        if not reached:
            kinds = [type(node).__qualname__ for _, node in cfg.walk() if isinstance(node, Model.Config)]
            kind = ", ".join(kinds) or type(cfg).__qualname__
            message = f"vocab: nothing under '**' has a vocab_size of its own: {kind} is no language model"
            raise ConfigError(message)
        return cfg
