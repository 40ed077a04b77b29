"""Conversations to store: seeded Human, AI-with-tool-call and Tool messages of 600 bytes. No savers.

Text is drawn word by word from a vocabulary with Zipf weights, so that it compresses about as well as
English prose does: to 0.6 by a single message, to 0.4 over many. A repeated filler would flatter a saver
that compresses.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

#: Size of the words a speaker knows; with these weights a word carries about ten bits, as in English.
VOCABULARY_SIZE: Final = 6000

#: The short words that make up about half of any English text.
_COMMON: Final = """
    the of and to in a is that it was for on are as with his they at be this from have or by one had not
    but what all were when we there can an your which their said if do will each about how up out them
    then she many some so these would other into has more her two like him see time could no make than
    first been its who now people my made over did down only way find use may water long little very
    after words called just where most know
"""

_ONSETS: Final = "b c d f g h l m n p r s t v w br ch cl cr dr fl gr pl pr sh sp st str th tr qu"
_VOWELS: Final = "a e i o u ai ea ee oa ou ie"
_CODAS: Final = ["", "", "n", "r", "l", "s", "t", "nd", "st", "ck", "ng", "m", "ss"]
_ENDINGS: Final = ["", "", "", "s", "ed", "ing", "er", "ly", "tion", "ment", "able", "ness"]

#: Names of the tools that are called, all with the same arguments.
TOOLS: Final = ("read_file", "search_text", "list_directory", "run_query", "fetch_page")


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    rng = random.Random("vocabulary")
    words = _COMMON.split()
    onsets, vowels = _ONSETS.split(), _VOWELS.split()
    known = set(words)
    while len(words) < VOCABULARY_SIZE:
        syllables = rng.choices((1, 2, 3), (3, 5, 2))[0]
        word = "".join(rng.choice(onsets) + rng.choice(vowels) + rng.choice(_CODAS) for _ in range(syllables))
        word += rng.choice(_ENDINGS)
        if word not in known:
            known.add(word)
            words.append(word)
    return words, list(accumulate(1.0 / (rank + 2.7) for rank in range(1, len(words) + 1)))


def prose(rng: random.Random, characters: int) -> str:
    """About `characters` of varied text in sentences of 5 to 17 words."""
    words, weights = _vocabulary()
    sentences: list[str] = []
    length = 0
    while length < characters:
        sentence = " ".join(rng.choices(words, cum_weights=weights, k=rng.randint(5, 17))).capitalize() + "."
        sentences.append(sentence)
        length += len(sentence) + 1
    return " ".join(sentences)[:characters]


def _token(rng: random.Random, length: int) -> str:
    return "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", k=length))


def _message_id(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def human(rng: random.Random) -> HumanMessage:
    """What a person writes: text only."""
    return HumanMessage(prose(rng, rng.randint(400, 600)), id=_message_id(rng))


def assistant(rng: random.Random, *, call_id: str | None) -> AIMessage:
    """What a model answers: text with usage figures, and one tool call where `call_id` is given."""
    spent, said = rng.randint(500, 90_000), rng.randint(20, 900)
    calls = []
    if call_id is not None:
        name = rng.choice(TOOLS)
        arguments = {
            "path": "/".join(prose(rng, 24).lower().replace(".", "").split()) + ".md",
            "reason": prose(rng, rng.randint(60, 120)),
            "limit": rng.randint(1, 5000),
        }
        calls = [{"name": name, "args": arguments, "id": call_id, "type": "tool_call"}]
    return AIMessage(
        prose(rng, rng.randint(90, 170) if calls else rng.randint(240, 440)),
        id=f"run-{_message_id(rng)}",
        tool_calls=calls,
        response_metadata={
            "model_name": "scripted-1",
            "finish_reason": "tool_calls" if calls else "stop",
        },
        usage_metadata={"input_tokens": spent, "output_tokens": said, "total_tokens": spent + said},
    )


def tool_result(rng: random.Random, *, call_id: str) -> ToolMessage:
    """What a tool gave back for the call `call_id`."""
    return ToolMessage(
        prose(rng, rng.randint(310, 510)),
        id=_message_id(rng),
        tool_call_id=call_id,
        name=rng.choice(TOOLS),
    )


def conversation(seed: str) -> Iterator[AnyMessage]:
    """An endless conversation of Human, AI with a tool call, Tool; one `seed` gives one conversation."""
    rng = random.Random(seed)
    while True:
        call_id = f"call_{_token(rng, 24)}"
        yield human(rng)
        yield assistant(rng, call_id=call_id)
        yield tool_result(rng, call_id=call_id)


def two_message_turns(seed: str) -> Iterator[AnyMessage]:
    """An endless conversation of turns without tools: Human, AI."""
    rng = random.Random(seed)
    while True:
        yield human(rng)
        yield assistant(rng, call_id=None)


def tool_using_turns(seed: str) -> Iterator[tuple[HumanMessage, AIMessage, ToolMessage, AIMessage]]:
    """An endless conversation of turns with one tool: Human, AI with a tool call, Tool, AI."""
    rng = random.Random(seed)
    while True:
        call_id = f"call_{_token(rng, 24)}"
        yield (
            human(rng),
            assistant(rng, call_id=call_id),
            tool_result(rng, call_id=call_id),
            assistant(rng, call_id=None),
        )
