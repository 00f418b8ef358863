"""A word-level tokenizer as BERT has it, and its words."""

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "film", "that", "was", "very", "quite"]
WORDS += ["not", "good", "bad", "fine", "poor"]


def tokenizer():
    """Returns the text of a word-level tokenizer.json with BERT's begin and end."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    made.add_special_tokens(WORDS[:5])
    return made.to_str()
