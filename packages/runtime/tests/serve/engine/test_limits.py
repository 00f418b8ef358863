"""What an engine refuses before it queues anything: each message names the field, the value and what is valid."""

import pytest
from kanawa.errors import ConfigError
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.request import EngineLimits, Request, RequestError, SamplingParams, check_request
from kanawa_runtime.serve.engine.shapes import at_most, ladder, smallest_holding

LIMITS = EngineLimits(max_sequences=2, max_length=8, max_queued=4, vocab_size=10, max_logprobs=5)


def check(prompt=(1, 2), *, engine_tells_prompts=True, **sampling):
    request = Request(id="a", prompt_ids=prompt, sampling=SamplingParams(**sampling))
    check_request(request, LIMITS, prompt_logprobs=engine_tells_prompts)


WRONG = [
    ("prompt_ids", {"prompt": ()}, "the prompt is empty"),
    ("prompt_ids", {"prompt": (1, 10)}, "prompt_ids holds the token id 10; the model's are 0 to 9"),
    ("prompt_ids", {"prompt": (1,) * 8}, "the prompt has 8 tokens, and sequences at most 8 with one new token"),
    ("max_tokens", {"max_tokens": 0}, "max_tokens is 0, expected at least 1"),
    ("min_tokens", {"min_tokens": 17}, r"min_tokens is 17, expected 0 to max_tokens \(16\)"),
    ("temperature", {"temperature": -0.1}, "temperature is -0.1, expected a number at least 0"),
    ("temperature", {"temperature": float("nan")}, "temperature is nan"),
    ("top_p", {"top_p": 0.0}, "top_p is 0.0, expected a number above 0 and at most 1"),
    ("min_p", {"min_p": 1.5}, "min_p is 1.5, expected a number at least 0 and at most 1"),
    ("top_k", {"top_k": -2}, "top_k is -2, expected at least 1, or 0 or -1 for no cut"),
    ("top_k", {"top_k": 2**31}, "top_k is 2147483648, expected at most 2147483647"),
    ("min_tokens", {"min_tokens": 2**40, "max_tokens": 2**41}, "min_tokens is 1099511627776, expected at most"),
    (
        "repetition_penalty",
        {"repetition_penalty": 5e-324},
        "repetition_penalty is 5e-324, expected a number at least 0.01",
    ),
    ("presence_penalty", {"presence_penalty": 3.0}, "expected a number at least -2 and at most 2"),
    ("logprobs", {"logprobs": 6}, "logprobs is 6, expected 0 to 5"),
    ("logit_bias", {"logit_bias": {11: 1.0}}, "logit_bias holds the token id 11"),
    ("logit_bias", {"logit_bias": {1: float("inf")}}, "logit_bias holds inf, expected finite numbers"),
    ("allowed_token_ids", {"allowed_token_ids": ()}, "allowed_token_ids is empty"),
    ("bad_words", {"bad_words": ((),)}, "a word without tokens"),
    ("stop_token_ids", {"stop_token_ids": (-1,)}, "stop_token_ids holds the token id -1"),
]


@pytest.mark.parametrize(("field", "changes", "message"), WRONG)
def test_refusals_name_the_field(field, changes, message):
    with pytest.raises(RequestError, match=message) as error:
        check(**changes)
    assert error.value.field == field


def test_an_engine_without_prompt_logprobs_says_so():
    with pytest.raises(RequestError, match="built without prompt_logprobs"):
        check(prompt_logprobs=1, engine_tells_prompts=False)


def test_what_is_at_the_limit_is_taken():
    check((9,) * 7, max_tokens=100, min_tokens=100, logprobs=5, top_k=-1, logit_bias={9: float("-inf")})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefill_tokens": 20}, r"prefill_tokens \(20\) is not a multiple of page_size \(16\)"),
        ({"prefill_sizes": (24,)}, "prefill_sizes holds 24"),
        (
            {"max_batched_tokens": 40},
            r"max_batched_tokens \(40\) is less than max_sequences and page_size together \(48\)",
        ),
        # Or a prompt that was begun would wait as long as all others decode.
        ({"speculative_tokens": 16}, r"\(544\) is less than 560: .* prefills a page of a prompt at least"),
    ],
)
def test_sizes_that_do_not_go_together(changes, message):
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**changes).freeze()


def test_ladders():
    assert ladder(32, 1, 2) == (1, 2, 4, 8, 16, 32)
    assert ladder(40, 16, 2) == (16, 32, 40)
    assert ladder(3, 8, 2) == (3,)
    assert at_most((64, 4, 16), 32) == (4, 16, 32)
    assert [smallest_holding((4, 16, 32), count) for count in (1, 4, 5, 32, 33)] == [4, 4, 16, 32, 32]
