"""Whatever arrives in whatever pieces, the final prompt is what the tokenizer makes of the whole text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from stream2llm_pod.serving.assembling import (
    Template,
    TextAssembler,
    TokenAssembler,
    common_prefix,
    common_prefix_chars,
    held_back_from,
)
from stream2llm_pod.serving.rendering import TokenizerEncoder

CORPUS = Path(__file__).parents[3] / "docs" / "architecture.md"
SPECIAL = ["<s>", "</s>", "<|end|>", "<|user|>"]
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(split: Any, *, trim: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train([str(CORPUS)], trainer)
    return tokenizer


def gpt2_like() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), trim=True)


def cl100k_like() -> Tokenizer:
    from tokenizers import Regex

    split = pre_tokenizers.Split(Regex(CL100K), "isolated")
    whole = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return byte_level(whole, trim=False)


def sentencepiece_like() -> Tokenizer:
    """Blanks become a mark that is also put before the first word; text is normalised; BOS and EOS are added."""
    tokenizer = Tokenizer(models.BPE(unk_token="</s>", byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS.read_text().splitlines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": gpt2_like,
    "cl100k": cl100k_like,
    "sentencepiece": sentencepiece_like,
}


@cache
def encoder(kind: str) -> TokenizerEncoder:
    return TokenizerEncoder(PreTrainedTokenizerFast(tokenizer_object=KINDS[kind]()))


class NoSpans(TokenizerEncoder):
    """A tokenizer that cannot say which characters a token stands for."""

    def __init__(self, inner: TokenizerEncoder) -> None:
        self._inner = inner

    def encode(self, text: str, *, special: bool) -> list[int]:
        return self._inner.encode(text, special=special)

    def encode_with_spans(self, text: str) -> None:
        return None

    def leading(self) -> list[int]:
        return self._inner.leading()


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from([" ", "\n", "\n\n", "  ", "\t", ".", ");\n", "<|end|>", "<|us", "er|>", "<s>", "é", "🙂", "北京"]),
    st.sampled_from(
        ["the", "stream", "of", "documents", "arrives", "in", "pieces", "and", "is", "prefilled", "at", "once"]
    ).map(lambda w: w + " "),
)


def follow(assembler: TextAssembler, contexts: list[str]) -> list[int]:
    """What the engine would know after these contexts, by applying each change to its list."""
    known: list[int] = []
    for context in contexts:
        change = assembler.advance(context)
        assert change.keep <= len(known)
        known = [*known[: change.keep], *change.new]
        assert known == assembler.ids
    return known


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150)
@given(chunks=st.lists(pieces, max_size=25), prefix=pieces, suffix=pieces)
def test_any_cuts_end_in_the_ids_of_the_whole(
    kind: str, special: bool, chunks: list[str], prefix: str, suffix: str
) -> None:
    chunks = [chunk.replace("{c}", "") for chunk in chunks]
    template = Template(prefix, suffix, lambda context: f"{prefix}{context}{suffix}", special)
    assembler = TextAssembler(encoder(kind), template)
    grown = ["".join(chunks[:i]) for i in range(len(chunks) + 1)]
    follow(assembler, grown)
    assert assembler.complete(grown[-1]) == encoder(kind).encode(prefix + grown[-1] + suffix, special=special)


@pytest.mark.parametrize("kind", ["gpt2", "cl100k", "sentencepiece"])
@settings(max_examples=100)
@given(
    words=st.lists(
        st.sampled_from(["stream", "prefill", "engine", "of", "the", "arrives", "documents", "42", "x"]),
        min_size=60,
        max_size=300,
    ),
    cuts=st.lists(st.integers(0, 2000), max_size=12),
)
def test_plain_words_are_handed_out_right_the_first_time(kind: str, words: list[str], cuts: list[int]) -> None:
    text = " ".join(words)
    template = Template.of_prompt("Read this: {c}\nNow answer.", "{c}")
    assembler = TextAssembler(encoder(kind), template)
    known: list[int] = []
    for end in sorted({min(cut, len(text)) for cut in cuts} | {len(text)}):
        change = assembler.advance(text[:end])
        assert change.keep == len(known)
        known += change.new
    final = assembler.complete(text)
    assert final[: len(known)] == known
    assert len(final) - len(known) <= 20


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100)
@given(contexts=st.lists(st.lists(pieces, max_size=12).map("".join), max_size=8))
def test_rewritten_contexts(kind: str, contexts: list[str]) -> None:
    template = Template("Context: ", " End.", lambda context: f"Context: {context} End.", True)
    assembler = TextAssembler(encoder(kind), template)
    follow(assembler, contexts)
    last = contexts[-1] if contexts else ""
    assert assembler.complete(last) == encoder(kind).encode(f"Context: {last} End.", special=True)


@given(chunks=st.lists(pieces, max_size=10))
def test_without_spans(chunks: list[str]) -> None:
    assembler = TextAssembler(NoSpans(encoder("gpt2")), Template.of_prompt("{c}", "{c}"))
    known = follow(assembler, ["".join(chunks[:i]) for i in range(len(chunks) + 1)])
    whole = assembler.complete("".join(chunks))
    assert whole == encoder("gpt2").encode("".join(chunks), special=True)
    assert len(known) <= len(whole) or not chunks


def test_long_text_is_not_tokenised_again_from_the_start() -> None:
    class Counting(NoSpans):
        chars = 0

        def encode_with_spans(self, text: str) -> Any:
            self.chars += len(text)
            return self._inner.encode_with_spans(text)

    counting = Counting(encoder("cl100k"))
    assembler = TextAssembler(counting, Template.of_prompt("{c}", "{c}"))
    chunk = "Some words of a page that a crawler has found. "
    for i in range(1, 201):
        assembler.advance(chunk * i)
    assert counting.chars < 10 * len(chunk) * 200


@given(st.lists(st.lists(st.integers(0, 500), max_size=5), max_size=6))
def test_token_chunks_go_as_they_are(chunks: list[list[int]]) -> None:
    template = Template.of_prompt("Prefix {c} suffix", "{c}")
    assembler = TokenAssembler(encoder("sentencepiece"), template)
    context: list[int] = []
    known: list[int] = []
    for chunk in chunks:
        context += chunk
        change = assembler.advance(context)
        assert change.keep == len(known)
        known += change.new
    whole = assembler.complete(context)
    assert whole[: len(known)] == known
    lead = encoder("sentencepiece").leading()
    prefix = encoder("sentencepiece").encode("Prefix ", special=False)
    assert whole == [*lead, *prefix, *context, *encoder("sentencepiece").encode(" suffix", special=False)]


def test_an_empty_prompt_hands_out_nothing_not_even_bos() -> None:
    assembler = TextAssembler(encoder("sentencepiece"), Template.of_prompt("{c}", "{c}"))
    assert assembler.advance("").new == []
    first = assembler.advance("the stream of documents arrives and then some")
    assert first.keep == 0
    assert first.new[0] == 0


@pytest.mark.parametrize("prompt", ["no marker", "{c} twice {c}"])
def test_marker_exactly_once(prompt: str) -> None:
    with pytest.raises(ValueError, match="once"):
        Template.of_prompt(prompt, "{c}")


def test_the_last_word_and_its_blanks_are_held_back() -> None:
    assert held_back_from("") == 0
    assert held_back_from("word") == 0
    assert held_back_from("two words") == 3
    assert held_back_from("two  words \n") == 3
    assert held_back_from("x" * 500) == 436


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_common_prefix_of_texts(common: str, a: str, b: str) -> None:
    n = common_prefix_chars(common + a, common + b)
    ids = common_prefix([ord(c) for c in common + a], [ord(c) for c in common + b])
    assert n == ids >= len(common)
