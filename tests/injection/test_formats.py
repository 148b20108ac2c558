"""The matrix of tokenizers and formats: the planted ids are the ids that the real trainer sees."""

from __future__ import annotations

from typing import Any

import datasets
import pytest

from memaudit import generate_canaries, inject
from memaudit.errors import InjectionError, ManifestError
from memaudit.injection import alpaca_text, render
from memaudit.manifest import Manifest
from tests.helpers import sample_text, tiny_llama, tiny_tokenizer, tiny_tokenizers

TEXTS = sample_text(24, seed=5)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def rows(shape: str) -> list[dict[str, Any]]:
    """Return host rows of one shape; some formats have several."""
    shapes: dict[str, Any] = {
        "text": lambda s: {"text": s, "id": len(s)},
        "prompt_completion": lambda s: {"prompt": s + "\n", "completion": s, "source": "a"},
        "prompt_completion_turns": lambda s: {"prompt": [user(s)], "completion": [assistant(s)]},
        "messages": lambda s: {"messages": [user(s), assistant(s)], "score": 0.5},
        "messages_system": lambda s: {
            "messages": [
                {"role": "system", "content": "Be kind."},
                user(s),
                assistant(s),
                user(s),
                assistant(s),
            ]
        },
        "sharegpt": lambda s: {"conversations": [{"from": "human", "value": s}, {"from": "gpt", "value": s}]},
        "alpaca": lambda s: {"instruction": s, "input": "", "output": s},
        "preference": lambda s: {"prompt": s + "\n", "chosen": s + " yes", "rejected": s + " no"},
        "preference_turns": lambda s: {
            "prompt": [user(s)],
            "chosen": [assistant(s + " yes")],
            "rejected": [assistant(s + " no")],
        },
        "input_ids": lambda s: {"input_ids": [7, 8, 9], "labels": [-100, 8, 9], "attention_mask": [1, 1, 1]},
    }
    return [shapes[shape](text) for text in TEXTS]


SFT_SHAPES = (
    "text",
    "prompt_completion",
    "prompt_completion_turns",
    "messages",
    "messages_system",
    "sharegpt",
    "alpaca",
    "input_ids",
)


def planted(tokenizer: Any, shape: str, **options: Any) -> tuple[datasets.Dataset, Manifest]:
    canaries = generate_canaries(
        tokenizer, n=8, n_controls=4, family="random", repetitions=(1, 2), include_prob=0.7
    )
    return inject(datasets.Dataset.from_list(rows(shape)), canaries, tokenizer=tokenizer, **options)


def sft_rows(tokenizer: Any, dataset: Any, tmp_path: Any, **options: Any) -> Any:
    trl = pytest.importorskip("trl")
    formatting = alpaca_text if "instruction" in dataset.column_names else None
    config = trl.SFTConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, max_length=None, **options)
    model = tiny_llama(len(tokenizer), layers=1, hidden=16)
    return trl.SFTTrainer(
        model=model,
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        formatting_func=formatting,
    ).train_dataset


@pytest.mark.parametrize("shape", SFT_SHAPES)
@pytest.mark.parametrize("name", list(tiny_tokenizers()))
def test_planted_ids_are_those_that_sft_trainer_sees(name: str, shape: str, tmp_path: Any) -> None:
    tokenizer = tiny_tokenizers()[name]
    dataset, manifest = planted(tokenizer, shape)
    prepared = sft_rows(tokenizer, dataset, tmp_path)
    seen = [(list(row["input_ids"]), list(row["labels"])) for row in prepared]
    assert manifest.members and manifest.held_out
    for canary in manifest.canaries:
        one = render(canary, manifest.fmt, tokenizer)
        start, stop = one.span
        assert one.ids[start:stop] == canary.secret_ids
        found = [(ids, labels) for ids, labels in seen if tuple(ids[:stop]) == one.ids[:stop]]
        assert len(found) == (canary.repetitions if canary.included else 0)
        for ids, labels in found:
            assert labels[start:stop] == ids[start:stop]  # on the side that is trained on


@pytest.mark.parametrize("shape", ["preference", "preference_turns"])
@pytest.mark.parametrize("name", list(tiny_tokenizers()))
def test_planted_ids_are_those_that_dpo_trainer_sees(name: str, shape: str, tmp_path: Any) -> None:
    trl = pytest.importorskip("trl")
    tokenizer = tiny_tokenizers()[name]
    dataset, manifest = planted(tokenizer, shape)
    config = trl.DPOConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, max_length=None)
    model = tiny_llama(len(tokenizer), layers=1, hidden=16)
    reference = tiny_llama(len(tokenizer), layers=1, hidden=16)
    trainer = trl.DPOTrainer(
        model=model, ref_model=reference, args=config, train_dataset=dataset, processing_class=tokenizer
    )
    seen = [(list(row["prompt_ids"]), list(row["chosen_ids"])) for row in trainer.train_dataset]
    for canary in manifest.canaries:
        one = render(canary, manifest.fmt, tokenizer)
        start, stop = one.span
        found = [prompt for prompt, chosen in seen if tuple((prompt + chosen)[:stop]) == one.ids[:stop]]
        assert len(found) == (canary.repetitions if canary.included else 0)
        assert all(len(prompt) <= start for prompt in found)  # the whole secret lies in the chosen answer


@pytest.mark.parametrize("shape", ["messages", "messages_system", "prompt_completion_turns"])
def test_secrets_lie_under_the_assistant_mask(shape: str, tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer(chat="generation")
    dataset, manifest = planted(tokenizer, shape)
    prepared = sft_rows(tokenizer, dataset, tmp_path, assistant_only_loss=True)
    for canary in manifest.members:
        start, stop = render(canary, manifest.fmt, tokenizer).span
        labels = [
            row["labels"][start:stop]
            for row in prepared
            if tuple(row["input_ids"][start:stop]) == canary.secret_ids
        ]
        assert labels == [list(canary.secret_ids)] * canary.repetitions


def test_content_as_parts_keeps_its_shape() -> None:
    def part(text: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": text, "image": None}]

    host = [
        {"messages": [{"role": "user", "content": part(s)}, {"role": "assistant", "content": part(s)}]}
        for s in TEXTS
    ]
    tokenizer = tiny_tokenizer(chat="plain")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
        "{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    )
    canaries = generate_canaries(tokenizer, n=8, n_controls=4, family="random")
    dataset = datasets.Dataset.from_list(host)
    injected, manifest = inject(dataset, canaries, tokenizer=tokenizer)
    assert manifest.fmt == "messages" and injected.features == dataset.features
    assert len(injected) > len(dataset)
    record = manifest.members[0].record["messages"]
    assert [turn["content"][0]["type"] for turn in record] == ["text", "text"]


def test_tool_turns_and_tools_in_the_host_do_no_harm() -> None:
    tokenizer = tiny_tokenizer(chat="plain")
    host = [
        {
            "messages": [
                {"role": "user", "content": s, "tool_calls": None, "name": None},
                {"role": "tool", "content": "{}", "tool_calls": None, "name": "f"},
                {"role": "assistant", "content": s, "tool_calls": None, "name": None},
            ],
            "tools": "[]",
        }
        for s in TEXTS
    ]
    canaries = generate_canaries(tokenizer, n=8, n_controls=4, family="random")
    injected, manifest = inject(host, canaries, tokenizer=tokenizer)
    turns = manifest.members[0].record["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    assert set(turns[0]) == {"role", "content", "tool_calls", "name"}
    assert set(injected[0]) == {"messages", "tools"}


def test_alpaca_with_a_text_column_holds_the_secret_in_both() -> None:
    tokenizer = tiny_tokenizer()
    host = [{"instruction": s, "input": "", "output": s, "text": s} for s in TEXTS]
    canaries = generate_canaries(tokenizer, n=8, n_controls=4, family="random")
    _, manifest = inject(host, canaries, tokenizer=tokenizer)
    canary = manifest.members[0]
    assert manifest.fmt == "alpaca"
    assert canary.record["text"] == alpaca_text(canary.record)
    assert canary.record["text"].endswith(canary.secret)


def test_alpaca_text_is_the_published_template() -> None:
    assert alpaca_text({"instruction": "I", "input": "", "output": "O"}) == (
        "Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.\n\n### Instruction:\nI\n\n### Response:\nO"
    )
    assert alpaca_text({"instruction": "I", "input": "X", "output": "O"}) == (
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nI\n\n### Input:\nX\n\n"
        "### Response:\nO"
    )


def test_columns_of_other_names() -> None:
    tokenizer = tiny_tokenizer()
    canaries = generate_canaries(tokenizer, n=8, n_controls=4, family="random")
    host = [{"body": s, "n": 1} for s in TEXTS]
    with pytest.raises(InjectionError, match="no record format fits the columns body, n"):
        inject(host, canaries)
    _, manifest = inject(host, canaries, fmt="text", columns={"text": "body"}, tokenizer=tokenizer)
    canary = manifest.members[0]
    assert canary.record["body"].endswith(canary.secret) and canary.record["n"] is None
    assert render(canary, manifest.fmt, tokenizer).ids
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    with pytest.raises(InjectionError, match="no column 'nothing'"):
        inject(host, canaries, columns={"text": "nothing"})
    with pytest.raises(InjectionError, match="has text"):
        inject(host, canaries, fmt="text", columns={"prompt": "body"})


def test_turns_in_a_column_called_conversations() -> None:
    tokenizer = tiny_tokenizer(chat="plain")
    canaries = generate_canaries(tokenizer, n=8, n_controls=4, family="random")
    host = [{"conversations": [user(s), assistant(s)]} for s in TEXTS]
    _, manifest = inject(host, canaries, tokenizer=tokenizer)
    assert manifest.fmt == "messages"
    assert render(manifest.members[0], "messages", tokenizer).ids


def test_a_named_format_must_fit() -> None:
    canaries = generate_canaries(tiny_tokenizer(), n=8, n_controls=4, family="random")
    with pytest.raises(InjectionError, match="fmt='messages' needs the columns messages"):
        inject(rows("text"), canaries, fmt="messages")
    with pytest.raises(InjectionError, match="no record format 'csv'"):
        inject(rows("text"), canaries, fmt="csv")


def test_several_formats_are_told() -> None:
    canaries = generate_canaries(tiny_tokenizer(chat="plain"), n=8, n_controls=4, family="random")
    host = [{"messages": [user(s), assistant(s)], "text": s} for s in TEXTS]
    _, manifest = inject(host, canaries)
    assert manifest.fmt == "messages"
    assert any("also text" in warning for warning in manifest.warnings)


def test_turns_without_a_chat_template() -> None:
    tokenizer = tiny_tokenizer()
    canaries = generate_canaries(tokenizer, n=8, n_controls=4, family="random")
    with pytest.raises(InjectionError, match="no chat template"):
        inject(rows("messages"), canaries, tokenizer=tokenizer)


def test_another_tokenizer_is_refused() -> None:
    canaries = generate_canaries(tiny_tokenizer("bytelevel"), n=8, n_controls=4, family="random")
    with pytest.raises(ManifestError, match="their ids differ"):
        inject(rows("text"), canaries, tokenizer=tiny_tokenizer("wordpiece"))


def test_render_never_guesses() -> None:
    tokenizer = tiny_tokenizer("bytelevel")
    canaries = generate_canaries(tokenizer, n=8, n_controls=4, family="random")
    _, manifest = inject(rows("text"), canaries)
    canary = manifest.members[0]
    with pytest.raises(InjectionError, match="do not stand in") as caught:
        render(canary, "text", tiny_tokenizer("wordpiece"))
    assert canary.secret.strip() not in str(caught.value)
    with pytest.raises(InjectionError, match="lacks the column"):
        render(canary, "prompt_completion", tokenizer)


def test_input_ids_need_a_tokenizer() -> None:
    canaries = generate_canaries(tiny_tokenizer(), n=8, n_controls=4, family="random")
    with pytest.raises(InjectionError, match="pass tokenizer="):
        inject(rows("input_ids"), canaries)


def test_sharegpt_names_that_a_template_refuses_are_renamed() -> None:
    tokenizer = tiny_tokenizer(chat="plain")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'Q: ' + m['content'] + '\n' }}"
        "{% elif m['role'] == 'assistant' %}{{ 'A: ' + m['content'] + '\n' }}"
        "{% else %}{{ raise_exception('role?') }}{% endif %}{% endfor %}"
    )
    canaries = generate_canaries(tokenizer, n=8, n_controls=4, family="random")
    _, manifest = inject(rows("sharegpt"), canaries, tokenizer=tokenizer)
    text = render(manifest.members[0], "sharegpt", tokenizer).text
    assert text.startswith("Q: ") and "\nA: " in text
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ raise_exception('role?') }}", ""
    )  # drops them
    assert render(manifest.members[0], "sharegpt", tokenizer).text == text
