"""Validates requests with the types that the providers publish in their own Python packages.

Reads one file of requests per provider (`NAME.jsonl`, one request body a line) from the directory in its
argument. The types are those of a caller of the packages: an unknown field, a wrong type or a missing field is
an error. Rules that are no types (each tool call has its result) are checked by the tests' fakes.
"""

import collections.abc
import hashlib
import json
import os
import sys
import typing
from pathlib import Path

from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import NotRequired, Required, TypedDict, get_type_hints, is_typeddict

# Fields that the package does not have, by the type that contains them, each with its reason.
ADDITIONS = {
    # Providers with an OpenAI-compatible endpoint return and expect reasoning in this field.
    "ChatCompletionAssistantMessageParam": {"reasoning_content": str},
    # Newer models refuse it; older ones take it, where an agent sets it in `model_options`.
    "MessageCreateParamsNonStreaming": {"temperature": float},
    "MessageCreateParamsStreaming": {"temperature": float},
}
# A type that no request has.
NEVER = typing.Literal["\0"]
# At least this many different requests are expected from the tests.
REQUESTS_MIN = 500


def forbid_unknown(kind, seen):
    """Makes every TypedDict that `kind` contains refuse unknown fields, and every Iterable a list.

    pydantic validates an Iterable only when it is iterated, and a TypedDict ignores unknown fields.
    """
    if is_typeddict(kind):
        if kind in seen:
            return seen[kind]
        extra = ADDITIONS.get(kind.__name__, {})
        declared = get_type_hints(kind, include_extras=True)
        strict = TypedDict(kind.__name__, {}, total=False)
        seen[kind] = strict
        strict.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
        # `__required_keys__` is empty where the package's annotations are strings.
        required = {name for name, hint in declared.items() if typing.get_origin(hint) is Required}
        fields = {name: forbid_unknown(hint, seen) for name, hint in declared.items()}
        fields |= extra
        strict.__annotations__ = fields
        strict.__required_keys__ = frozenset(required)
        strict.__optional_keys__ = frozenset(fields.keys() - required)
        return strict
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is None or not arguments or origin is typing.Literal:
        return kind
    if origin in (typing.IO, os.PathLike):
        # An open file, which a request of ours never has.
        return bytes
    if origin is typing.Annotated:
        return forbid_unknown(arguments[0], seen)
    # Objects of an answer may be passed on as they are; as JSON they are of the other types of the union.
    is_answer = lambda one: isinstance(one, type) and issubclass(one, BaseModel)
    arguments = tuple(forbid_unknown(one, seen) for one in arguments if not is_answer(one))
    if origin is collections.abc.Iterable:
        return list[arguments]
    if origin in (Required, NotRequired):
        return arguments[0]
    if origin is typing.Union:
        return typing.Union[arguments] if arguments else NEVER
    return origin[arguments if len(arguments) > 1 else arguments[0]]


def adapters(whole, streaming):
    seen = {}
    return {False: TypeAdapter(forbid_unknown(whole, seen)), True: TypeAdapter(forbid_unknown(streaming, seen))}


TYPES = {
    "anthropic": adapters(MessageCreateParamsNonStreaming, MessageCreateParamsStreaming),
    "openai": adapters(CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming),
    "openai/responses": adapters(ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming),
}


def prove():
    """Asserts that the types refuse what they are here to refuse."""
    call = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello."}]}
    TYPES["anthropic"][False].validate_python(call)
    TYPES["openai"][False].validate_python(call)
    item = lambda item: {"model": "m", "stream": True, "input": [item]}
    TYPES["openai/responses"][True].validate_python(item({"type": "message", "role": "user", "content": "Hello."}))
    block = lambda content: call | {"messages": [{"role": "user", "content": [content]}]}
    message = lambda message: call | {"messages": [message]}
    wrong = [
        ("anthropic", call | {"unknown": 1}),
        ("anthropic", {"model": "m", "messages": call["messages"]}),
        ("anthropic", message({"role": "user", "content": 7})),
        ("anthropic", block({"type": "tool_result", "content": "no id"})),
        ("anthropic", block({"type": "text", "text": "x", "unknown": 1})),
        ("anthropic", block({"type": "tool_use", "id": "x", "name": "y", "input": "a text"})),
        ("openai", call | {"unknown": 1}),
        ("openai", message({"role": "tool", "content": "no id"})),
        ("openai", message({"role": "assistant", "tool_calls": [{"id": "x", "type": "function"}]})),
        ("openai/responses", item({"type": "function_call_output", "call_id": "no output"})),
        ("openai/responses", item({"type": "reasoning", "summary": []})),
        ("openai/responses", item({"type": "message", "role": "user", "content": [{"type": "input_text"}]})),
    ]
    for provider, request in wrong:
        try:
            TYPES[provider][bool(request.get("stream"))].validate_python(request)
        except ValidationError:
            continue
        sys.exit(f"the types of {provider} accept {request}")


def main():
    prove()
    failed = 0
    for provider, types in TYPES.items():
        seen = set()
        with open(Path(sys.argv[1]) / f"{provider.replace('/', '_')}.jsonl", "rb") as lines:
            for line in lines:
                digest = hashlib.sha256(line).digest()
                if digest in seen:
                    continue
                seen.add(digest)
                request = json.loads(line)
                try:
                    types[bool(request.get("stream"))].validate_python(request)
                except ValidationError as error:
                    failed += 1
                    if failed <= 5:
                        print(f"{provider} has no such request: {error}\n{line[:2000]}", file=sys.stderr)
        if len(seen) < REQUESTS_MIN:
            sys.exit(f"only {len(seen)} different requests to {provider}: the tests wrote too few")
        print(f"{provider}: {len(seen)} different requests")
    if failed:
        sys.exit(f"{failed} requests are not of the published types")


main()
