"""Text classification: a head of one logit a label, in place of a language model's; of texts, or of their tokens."""

from typing import Any

from kanawa.errors import ConfigError

from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.encoder import EncoderLM
from kanawa_layers.models.head import LabelHead
from kanawa_layers.models.masked_head import FirstTokenPooler
from kanawa_layers.models.token_loss import CrossEntropy


def as_classifier(model: Any, labels: tuple[str, ...], *, of_tokens: bool = False, bias: bool | None = None) -> Any:
    """Returns the config of an encoder or a decoder, changed to have a head of labels.

    An encoder's reads the pooled first token of a text, a decoder's the last one. Without `bias`, what other libraries
    have: one everywhere but in a decoder's head of texts. Raises ConfigError for another kind of model.
    """
    if not isinstance(model, EncoderLM.Config | DecoderLM.Config):
        message = f"classify: {type(model).__qualname__} is neither an encoder nor a decoder of text"
        raise ConfigError(message)
    encodes = isinstance(model, EncoderLM.Config)
    has_bias = (encodes or of_tokens) if bias is None else bias
    names = model.foreign.clone()
    names.set(children={**names.children, "head": "classifier" if encodes else "score"})
    model.set(head=LabelHead.Config(labels=labels, of_tokens=of_tokens, bias=has_bias), foreign=names)
    model.set(loss=CrossEntropy.Config())
    if encodes:
        pooler = None if of_tokens else model.pooler or FirstTokenPooler.Config()
        model.set(transform=None, pooler=pooler)
    return model
