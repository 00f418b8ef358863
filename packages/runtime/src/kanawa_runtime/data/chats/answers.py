"""Which of a conversation's text the model is to learn: what the template marks, else what each answer adds."""

import os
from collections.abc import Collection, Sequence
from typing import Literal

from kanawa_runtime.data.chats.messages import Conversation
from kanawa_runtime.data.chats.template import ChatTemplate, turns
from kanawa_runtime.data.chats.template_process import MarkedText, TemplateError
from kanawa_runtime.data.records.source import RecordError

#: Which answers of a conversation are learned.
Answers = Literal["all", "last"]

HOW_TO_MARK = (
    "write {% generation %} before and {% endgeneration %} after what the assistant says in a copy of the template, "
    "and set data.template_file to it"
)


def learned_text(
    template: ChatTemplate, conversation: Conversation, *, answers: Answers, stops: Collection[str], day: str
) -> MarkedText:
    """Returns the conversation's text, and the ranges of it that the assistant says and the model learns.

    Where the template marks them with `{% generation %}` they are its marks. Else an answer is what it adds to the text
    of the messages before it with the generation prompt, up to the last of `stops` where only white space follows.
    With `last`, the text ends with the last answer. Without an answer the text ends with the generation prompt.

    Raises RecordError where there is nothing to learn, or the template refuses the messages, or what comes before an
    answer changes with what follows.
    """
    messages, left_out = conversation.messages, conversation.left_out
    said = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= conversation.num_prompt]
    places = [i for i in said if i not in left_out]
    if said and not places:
        raise RecordError(at="messages", why="all that the assistant says has weight 0, so that nothing is learned")
    try:
        if not places:
            return MarkedText(_render(template, conversation, [(len(messages), True)], day)[0].text, ())
        if answers == "last":
            places = places[-1:]
            conversation = conversation._replace(messages=messages[: places[0] + 1])
        if template.marks_answers:
            return _by_marks(template, conversation, places, answers, day)
        return _by_prefixes(template, conversation, places, stops, day)
    except TemplateError as error:
        raise RecordError(at="messages", why=f"the model's chat template doesn't take them: {error}") from error


def _render(
    template: ChatTemplate, conversation: Conversation, parts: Sequence[tuple[int, bool]], day: str
) -> list[MarkedText]:
    """Returns the text of the first n messages for each (n, whether the generation prompt follows)."""
    messages, tools, extra, *_ = conversation
    asked = [turns(messages[:count], tools, add_generation_prompt=prompt, extra=extra) for count, prompt in parts]
    return template.render_marked(asked, day)


def _by_marks(
    template: ChatTemplate, conversation: Conversation, places: Sequence[int], answers: Answers, day: str
) -> MarkedText:
    # Marks of earlier answers don't count where only the last, or only a completion, is learned, nor those left out.
    first = [(places[0], True)] * (answers == "last" or conversation.num_prompt > 0 or bool(conversation.left_out))
    holes = [
        (at, end) for i in sorted(conversation.left_out) if i > places[0] for at, end in ((i, True), (i + 1, False))
    ]
    whole, *others = _render(template, conversation, [(len(conversation.messages), False), *first, *holes], day)
    cuts = [len(os.path.commonprefix([whole.text, other.text])) for other in others]
    limit = cuts.pop(0) if first else 0
    unlearned = list(zip(cuts[::2], cuts[1::2], strict=True))
    spans = tuple(
        (max(begin, limit), end)
        for begin, end in whole.spans
        if end > limit and not any(low <= begin < high for low, high in unlearned)
    )
    if not spans:
        why = (
            "the chat template has {% generation %}, and marks nothing of this conversation; "
            "put what the assistant says between the marks"
        )
        raise RecordError(at="messages", why=why)
    return MarkedText(whole.text, spans)


def _by_prefixes(
    template: ChatTemplate, conversation: Conversation, places: Sequence[int], stops: Collection[str], day: str
) -> MarkedText:
    total = len(conversation.messages)
    parts = [part for place in places for part in ((place, True), (place + 1, False))]
    *texts, whole = (rendered.text for rendered in _render(template, conversation, [*parts, (total, False)], day))
    spans = []
    for place, before, after in zip(places, texts[::2], texts[1::2], strict=True):
        _check_prefix(before, after, f"messages[{place}]", "with it and without it", len(places))
        _check_prefix(after, whole, f"messages[{place}]", "alone and with the messages after it", len(places))
        spans.append((len(before), _trimmed(after, len(before), stops)))
    return MarkedText(whole, tuple(spans))


def _check_prefix(shorter: str, longer: str, at: str, what: str, count: int) -> None:
    """Raises RecordError where one text doesn't begin with the other."""
    if longer.startswith(shorter):
        return
    place = len(os.path.commonprefix([shorter, longer]))
    one, other = (repr(text[max(0, place - 10) : place + 20]) for text in (shorter, longer))
    last = "; or set data.answers=last, which learns the last answer alone" if count > 1 else ""
    why = (
        f"the chat template writes what comes before differently {what} ({one} against {other}), so that what the "
        f"assistant says can't be told from it; {HOW_TO_MARK}{last}"
    )
    raise RecordError(at=at, why=why)


def _trimmed(text: str, begin: int, stops: Collection[str]) -> int:
    """Returns the end of an answer: where a stop is followed by nothing but white space, the end of the stop.

    The model stops there, so that what the template writes after it never is the model's to say.
    """
    rest = text[begin:].rstrip()
    return begin + len(rest) if any(stop and rest.endswith(stop) for stop in stops) else len(text)
