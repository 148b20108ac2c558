"""Tiny tokenizers and models, built in the process from a text that is made here: nothing is downloaded."""

from __future__ import annotations

import functools
import random
from typing import Any

import torch
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

BOS, EOS, PAD, UNK = "<s>", "</s>", "<pad>", "<unk>"
CHAT_TOKENS = ("<|im_start|>", "<|im_end|>")

KINDS = ("bytelevel", "metaspace", "sentencepiece", "wordpiece")
"""bytelevel: GPT-2 style; metaspace: a leading space is added before the first word only; sentencepiece:
Llama-2 style, by normalizer, with byte fallback; wordpiece: BERT style, lower-cased, continuation marks."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A chat template without generation markers, as most published ones."""

CHATML_GENERATION = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The same template with the markers that assistant masks need."""

_TEXT = """
the a of and to in is it that was for on are as with his they at be this from have or by one had
not but what all were when we there can an your which their said if do will each about how up
out them then she many some so these would other into has more her two like him see time could
no make than first been its who now people my made over did down only way find use may water
long little very after words called just where most know report answer question river mountain
garden morning letter doctor kitchen window summer winter music paper silver market engine
bridge forest island captain teacher student village silence memory number phrase recovery
response instruction below request write complete describe task user
"""
_WORDS = _TEXT.split()


def sample_text(lines: int = 400, seed: int = 0) -> list[str]:
    """Return ``lines`` sentences of common words with numbers and punctuation, the same for the same seed."""
    rng = random.Random(seed)
    text = []
    for _ in range(lines):
        words = rng.choices(_WORDS, k=rng.randint(5, 16))
        words[0] = words[0].capitalize()
        if rng.random() < 0.3:
            words.insert(rng.randrange(len(words)), str(rng.randrange(10000)))
        text.append(
            " ".join(words) + rng.choice([".", "!", "?", ", naïve 'café' (yes).", ": ### Response:\n"])
        )
    return text


def tiny_tokenizer(
    kind: str = "bytelevel",
    *,
    vocab_size: int = 512,
    pad: bool = True,
    add_bos: bool = False,
    add_eos: bool = False,
    chat: str | None = None,
) -> PreTrainedTokenizerFast:
    """Return a fresh tokenizer of one kind.

    Args:
        kind: one of ``KINDS``.
        vocab_size: size aimed at; len(tokenizer) tells the real one.
        pad: whether it has a pad token (Llama and GPT-2 ship none).
        add_bos: whether it puts a BOS before each text, as Llama's do.
        add_eos: whether it puts an EOS after each text.
        chat: None, "plain" (ChatML) or "generation" (ChatML with generation markers).
    """
    tokenizer = Tokenizer.from_str(_trained(kind, vocab_size))
    left = f"{BOS} " if add_bos else ""
    right = f" {EOS}" if add_eos else ""
    special = [(token, tokenizer.token_to_id(token)) for token in (BOS, EOS)]
    if add_bos or add_eos:
        ours = processors.TemplateProcessing(single=f"{left}$A{right}", special_tokens=special)
        tokenizer.post_processor = ours
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        pad_token=PAD if pad else None,
        additional_special_tokens=list(CHAT_TOKENS) if chat else None,
    )
    if chat is not None:
        wrapped.chat_template = {"plain": CHATML, "generation": CHATML_GENERATION}[chat]
    return wrapped


def tiny_tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """Return the tokenizers of the matrix tests by name; all have a chat template."""
    made = {kind: tiny_tokenizer(kind, chat="plain") for kind in KINDS}
    made["no_pad"] = tiny_tokenizer("bytelevel", pad=False, chat="plain")
    made["adds_bos"] = tiny_tokenizer("bytelevel", add_bos=True, chat="plain")
    made["sentencepiece_adds_bos"] = tiny_tokenizer("sentencepiece", add_bos=True, chat="plain")
    made["generation_markers"] = tiny_tokenizer("bytelevel", chat="generation")
    return made


def tiny_llama(
    vocab: int = 512,
    layers: int = 2,
    hidden: int = 64,
    tied: bool = False,
    *,
    positions: int = 512,
    seed: int = 0,
    **config: Any,
) -> LlamaForCausalLM:
    """Return a Llama with random weights that depend on ``seed`` alone; the global RNG is left as it was."""
    settings: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": positions,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **config,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**settings)).float()


def tiny_gpt2(
    vocab: int = 512,
    layers: int = 2,
    hidden: int = 64,
    *,
    positions: int = 128,
    seed: int = 0,
    dropout: float = 0.1,
) -> GPT2LMHeadModel:
    """Return a GPT-2 (learned positions, dropout, tied head) with random weights."""
    settings = GPT2Config(
        vocab_size=vocab,
        n_layer=layers,
        n_embd=hidden,
        n_head=4,
        n_positions=positions,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(settings).float()


@functools.cache
def _trained(kind: str, vocab_size: int) -> str:
    special = [
        AddedToken(token, special=True, normalized=False) for token in (UNK, BOS, EOS, PAD, *CHAT_TOKENS)
    ]
    text = sample_text()
    if kind == "bytelevel":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    elif kind in ("metaspace", "sentencepiece"):
        tokenizer = Tokenizer(models.BPE(unk_token=UNK, fuse_unk=True, byte_fallback=True))
        byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tail: Any = decoders.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), tail, decoders.Fuse()])
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[*special, *byte_tokens],
            max_token_length=12,
            show_progress=False,
        )
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=UNK))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, special_tokens=special, show_progress=False
        )
    else:
        raise ValueError(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
    tokenizer.train_from_iterator(text, trainer)
    if (
        kind == "sentencepiece"
    ):  # trained word by word, as above, and applied through a normalizer, as Llama 2's
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        spaces = decoders.Replace("▁", " ")
        strip = decoders.Strip(content=" ", left=1)
        tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), strip])
    serialised: str = tokenizer.to_str()
    return serialised
