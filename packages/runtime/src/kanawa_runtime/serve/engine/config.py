"""What an engine is built for: how many sequences, how long, in how much memory, and what a step may hold."""

from kanawa.config import Config, Count, FloatDtype, Positive, Size


class EngineConfig(Config):
    """Sizes of an engine; all programs that they ask for are compiled before the first request.

    `max_length` counts prompt and new tokens (None: what the model was trained on, at most 2048; more is said to be
    too long, and served). The cache has `num_pages` pages of `page_size` tokens: by default as many as `cache_bytes`
    hold, else enough for all sequences at full length. `cache_dtype` None is the computing one, which pages need;
    `int8_cache` stores codes and scales.
    A step decodes all that run and spends what is left of `max_batched_tokens` on prompts, in chunks of at most
    `prefill_tokens`. While none wait and all are greedy, `fused_steps` tokens are decoded in one call, or as many as
    take `call_seconds` (less than half of it where a slot is free): until it ends no request begins (None: however long
    it takes, and the same every time).
    `batch_sizes` and `page_widths` are the shapes that decoding is compiled for, `prefill_sizes` those of a prompt's
    chunk, of which a program takes as many at once as `prefill_rows` says (None: see `shapes.Shapes`).
    `prefix_cache` lets requests share the pages of equal beginnings. `prompt_logprobs` compiles what they need. With
    `speculative_tokens`, so many are guessed a step: by a draft model where the engine has one, else by what followed
    the last `ngram_min` to `ngram_max` tokens before. `adapter_slots` LoRA adapters of at most `adapter_rank` may
    be served at once. Of pictures, `picture_cache_bytes` of the tower's features are cached. `transfers_pages` compiles
    the programs that exchange pages with another engine. With `noisy_draws` tokens are drawn by noise that another
    program can repeat (`kanawa.arrays.draws`). With `draws_only` requests that ask for more than a temperature are
    refused, and all others' tokens are drawn where they are decoded: so `fused_steps` of them come from one call.
    """

    RENAMED = {"ngram_least": "ngram_min", "ngram_most": "ngram_max"}

    max_sequences: Size = 32
    max_length: Size | None = None
    page_size: Size = 16
    num_pages: Size | None = None
    cache_bytes: Size | None = None
    cache_dtype: FloatDtype | None = None
    int8_cache: bool = False
    max_batched_tokens: Size = 544
    prefill_tokens: Size = 256
    fused_steps: Size = 4
    call_seconds: Positive | None = None
    max_queued: Count = 256
    max_logprobs: Count = 20
    prefix_cache: bool = True
    prompt_logprobs: bool = True
    speculative_tokens: Count = 0
    ngram_min: Size = 2
    ngram_max: Size = 4
    transfers_pages: bool = False
    noisy_draws: bool = False
    draws_only: bool = False
    picture_cache_bytes: Size = 256 * 2**20
    adapter_slots: Count = 0
    adapter_rank: Size = 16
    batch_sizes: tuple[Size, ...] | None = None
    page_widths: tuple[Size, ...] | None = None
    prefill_sizes: tuple[Size, ...] | None = None
    prefill_rows: tuple[Size, ...] | None = None

    def check(self) -> list[str]:
        """Returns what is wrong with the sizes of chunks and steps."""
        problems = []
        if self.prefill_tokens % self.page_size:
            problems.append(
                f"prefill_tokens ({self.prefill_tokens}) is not a multiple of page_size ({self.page_size}): chunks end "
                "where pages do"
            )
        for size in self.prefill_sizes or ():
            if size % self.page_size:
                problems.append(f"prefill_sizes holds {size}, which is not a multiple of page_size ({self.page_size})")
        if self.prefill_rows and max(self.prefill_rows) > 1 and len(self.prefill_sizes or ()) > 1:
            problems.append(
                f"prefill_rows is {list(self.prefill_rows)} and prefill_sizes {list(self.prefill_sizes or ())}: chunks "
                "that share a program are of one size; give one of prefill_sizes, or prefill_rows (1,)"
            )
        if self.draws_only and self.speculative_tokens:
            problems.append(
                f"draws_only is set, and speculative_tokens is {self.speculative_tokens}: guesses are verified in "
                "calls of their own; leave one of them unset"
            )
        least = self.max_sequences + self.page_size
        if self.max_batched_tokens < least:
            problems.append(
                f"max_batched_tokens ({self.max_batched_tokens}) is less than max_sequences and page_size together "
                f"({least}): a step decodes a token of each sequence, and prefills a page of a prompt at least"
            )
        most = self.max_sequences * (1 + self.speculative_tokens) + self.page_size
        if self.speculative_tokens and self.max_batched_tokens < most:
            problems.append(
                f"max_batched_tokens ({self.max_batched_tokens}) is less than {most}: a step verifies "
                f"speculative_tokens ({self.speculative_tokens}) and one more of each of max_sequences "
                f"({self.max_sequences}), and prefills a page of a prompt at least"
            )
        if self.ngram_min > self.ngram_max:
            problems.append(f"ngram_min ({self.ngram_min}) is more than ngram_max ({self.ngram_max})")
        return problems
