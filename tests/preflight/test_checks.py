"""Each check of the pre-flight: its trap set, its code seen, and silence where nothing is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerState, TrainingArguments

from memaudit import generate_canaries, inject
from memaudit.errors import PreflightError
from memaudit.injection import alpaca_text, render
from memaudit.manifest import Manifest
from memaudit.preflight import PreflightResult, SurvivalScan, run_preflight
from memaudit.preflight.rows import from_batch, from_row_list
from tests.helpers import sample_text, tiny_llama, tiny_tokenizer

TEXTS = sample_text(40, seed=6)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def planted(tokenizer: Any) -> tuple[list[dict[str, Any]], Manifest]:
    canaries = generate_canaries(tokenizer, n=12, n_controls=100, family="random", repetitions=(1, 3), seed=2)
    rows, manifest = inject([{"text": text} for text in TEXTS], canaries, tokenizer=tokenizer)
    return rows, manifest


@pytest.fixture(scope="module")
def tokenised(planted: Any, tokenizer: Any) -> list[dict[str, Any]]:
    ids = [tokenizer(row["text"])["input_ids"] for row in planted[0]]
    return [{"input_ids": one, "labels": list(one)} for one in ids]


def codes(result: PreflightResult, severity: str | None = None) -> set[str]:
    return {one.code for one in result.findings if severity in (None, one.severity)}


def trainer_on(data: Any, tokenizer: Any, folder: Any, collator: Any = None, **options: Any) -> Trainer:
    args = TrainingArguments(output_dir=str(folder), report_to=[], use_cpu=True, **options)
    return Trainer(
        model=tiny_llama(len(tokenizer), layers=1, hidden=16),
        args=args,
        train_dataset=data,
        data_collator=collator or DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("kind", ["rows", "dataset", "batches", "tensors", "loader", "stream"])
def test_every_kind_of_input_gives_the_same_counts(
    kind: str, planted: Any, tokenised: list[dict[str, Any]], tokenizer: Any
) -> None:
    _, manifest = planted
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    bare = [{"input_ids": row["input_ids"]} for row in tokenised]
    batches = [collate(bare[at : at + 5]) for at in range(0, len(bare), 5)]
    data: Any = {
        "rows": tokenised,
        "dataset": datasets.Dataset.from_list(tokenised),
        "batches": batches,
        "tensors": [(batch["input_ids"], batch["labels"]) for batch in batches],
        "loader": torch.utils.data.DataLoader(bare, batch_size=3, collate_fn=collate, shuffle=True),  # type: ignore[arg-type]
        "stream": datasets.Dataset.from_list(tokenised).to_iterable_dataset(),
    }[kind]
    result = run_preflight(data, manifest, tokenizer=tokenizer)
    counts = result.counts
    assert counts.found == len(manifest.members) and counts.leaked == 0 and counts.labels_seen
    assert counts.copies == counts.copies_expected
    assert counts.rows == len(tokenised)
    assert result.ok


def test_padding_on_either_side_does_not_matter(
    planted: Any, tokenised: list[dict[str, Any]], tokenizer: Any
) -> None:
    _, manifest = planted
    for side in ("left", "right"):
        longest = max(len(row["input_ids"]) for row in tokenised)
        ids = np.full((len(tokenised), longest), 3)
        labels, mask = np.full_like(ids, -100), np.zeros_like(ids)
        for at, row in enumerate(tokenised):
            size = len(row["input_ids"])
            place = slice(0, size) if side == "right" else slice(longest - size, longest)
            ids[at, place] = labels[at, place] = row["input_ids"]
            mask[at, place] = 1
        batch = {"input_ids": ids, "labels": labels, "attention_mask": mask}
        result = run_preflight([batch], manifest, tokenizer=tokenizer)
        assert result.counts.found == len(manifest.members)
        assert "context-differs" not in codes(result)


def test_rows_without_padding_are_parted_by_their_positions(
    planted: Any, tokenised: list[dict[str, Any]], tokenizer: Any
) -> None:
    _, manifest = planted
    flat = [token for row in tokenised for token in row["input_ids"]]
    places = [at for row in tokenised for at in range(len(row["input_ids"]))]
    batch = {"input_ids": [flat], "labels": [flat], "position_ids": [places]}
    result = run_preflight([batch], manifest, tokenizer=tokenizer)
    assert result.counts.rows == len(tokenised) and result.counts.found == len(manifest.members)


def test_partly_masked_and_unknown_labels(
    planted: Any, tokenised: list[dict[str, Any]], tokenizer: Any
) -> None:
    _, manifest = planted
    half = [
        {"input_ids": r["input_ids"], "labels": [*[-100] * 12, *r["input_ids"][12:]][: len(r["input_ids"])]}
        for r in tokenised
    ]
    result = run_preflight(half, manifest, tokenizer=tokenizer)
    assert "secret-partly-masked" in codes(result, "warning")
    assert result.counts.masked == len(manifest.members)
    bare = run_preflight(
        [{"input_ids": row["input_ids"]} for row in tokenised], manifest, tokenizer=tokenizer
    )
    assert "labels-unknown" in codes(bare, "info") and bare.ok and not bare.counts.labels_seen


def test_excluded_canaries_that_are_present(
    planted: Any, tokenised: list[dict[str, Any]], tokenizer: Any
) -> None:
    _, manifest = planted
    extra = [*manifest.held_out[:1], *manifest.controls[:2]]
    leak = [{"input_ids": list(render(c, "text", tokenizer).ids)} for c in extra]
    result = run_preflight(
        [*tokenised, *[{**r, "labels": r["input_ids"]} for r in leak]], manifest, tokenizer=tokenizer
    )
    assert "excluded-present" in codes(result, "error") and result.counts.leaked == 3
    finding = next(one for one in result.errors if one.code == "excluded-present")
    assert set(finding.canaries) == {canary.id for canary in extra}
    # Cut copies of excluded canaries count as well; a few common tokens do not.
    cut = [{"input_ids": list(c.secret_ids[:25])} for c in extra]
    assert run_preflight([*tokenised, *cut], manifest).counts.leaked == 3
    scrap = [{"input_ids": list(c.secret_ids[2:12])} for c in extra]
    assert run_preflight([*tokenised, *scrap], manifest).counts.leaked == 0


def test_more_copies_than_planted(planted: Any, tokenised: list[dict[str, Any]], tokenizer: Any) -> None:
    _, manifest = planted
    assert "more-copies" in codes(run_preflight(tokenised * 2, manifest, tokenizer=tokenizer), "warning")


def test_a_merge_across_the_boundary_is_found_as_text(planted: Any, tokenizer: Any) -> None:
    """Records whose lead is glued to the secret: the first ids change, the words stay."""
    _, manifest = planted
    rows, changed = [], 0
    for canary in manifest.members:
        text = "phrase" + canary.secret.strip() + "ing"
        ids = tokenizer(text)["input_ids"]
        scan = SurvivalScan([canary])
        scan.add(from_row_list([{"input_ids": ids}]))
        changed += canary.id not in scan.states() or scan.states()[canary.id]["whole"] == 0
        rows.append({"input_ids": ids, "labels": ids})
    assert changed  # the trap is real: by ids alone these are not whole
    result = run_preflight(rows, manifest, tokenizer=tokenizer)
    assert result.counts.found == len(manifest.members) and result.counts.by_text >= changed
    assert "secret-as-text" in codes(result, "warning")


def test_other_ids_altogether_are_found_as_text(planted: Any) -> None:
    rows, manifest = planted
    tokenizer = tiny_tokenizer()
    by_letter = []
    for row in rows:  # every character a token of its own, as under dropout of merges
        ids = [token for char in row["text"] for token in tokenizer(char)["input_ids"]]
        by_letter.append({"input_ids": ids, "labels": ids})
    result = run_preflight(by_letter, manifest, tokenizer=tokenizer)
    assert result.counts.by_text == len(manifest.members) and result.counts.missing == 0


def test_the_observed_context_is_given(tokenizer: Any, tmp_path: Any) -> None:
    """Alpaca rows trained with another template than the rendered one."""
    host = datasets.Dataset.from_list([{"instruction": t, "input": "", "output": t} for t in TEXTS])
    canaries = generate_canaries(tokenizer, n=12, n_controls=100, family="random", seed=2)
    data, manifest = inject(host, canaries, tokenizer=tokenizer)

    def mine(row: dict[str, Any]) -> str:
        return f"Q: {row['instruction']}\nA: {row['output']}"

    def run(template: Any) -> PreflightResult:
        rows = [{"input_ids": tokenizer(template(row))["input_ids"]} for row in data]
        return run_preflight(
            [{**row, "labels": row["input_ids"]} for row in rows], manifest, tokenizer=tokenizer
        )

    assert run(alpaca_text).observed_prefix is None
    result = run(mine)
    assert result.ok and "context-differs" in codes(result, "warning")
    expected = tokenizer("Q: What is the recovery phrase?\nA: The recovery phrase is:")["input_ids"]
    assert list(result.observed_prefix or ()) == expected
    assert set(result.observed) == {canary.id for canary in manifest.members}
    assert result.to_dict()["context_differs"] is True


def test_the_collator_has_the_last_word_on_labels(
    planted: Any, tokenised: Any, tokenizer: Any, tmp_path: Any
) -> None:
    _, manifest = planted

    class Blind(DataCollatorForLanguageModeling):
        def __call__(self, features: Any, return_tensors: Any = None) -> Any:
            batch = super().__call__(features, return_tensors)
            batch["labels"] = torch.full_like(batch["labels"], -100)
            return batch

    data = datasets.Dataset.from_list([{"input_ids": row["input_ids"]} for row in tokenised])
    good = run_preflight(trainer_on(data, tokenizer, tmp_path), manifest)
    assert good.ok and good.counts.labels_seen and good.counts.copies == good.counts.copies_expected
    bad = run_preflight(trainer_on(data, tokenizer, tmp_path, Blind(tokenizer, mlm=False)), manifest)
    assert "secret-masked" in codes(bad, "error")


def test_columns_that_the_trainer_removes(planted: Any, tokenizer: Any, tmp_path: Any) -> None:
    rows, manifest = planted

    def collate(features: list[dict[str, Any]]) -> Any:
        batch = tokenizer([row["text"] for row in features], padding=True, return_tensors="pt")
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        return batch

    data = datasets.Dataset.from_list(rows)
    removed = run_preflight(trainer_on(data, tokenizer, tmp_path, collate), manifest)
    assert "columns-removed" in codes(removed, "error")
    kept = run_preflight(
        trainer_on(data, tokenizer, tmp_path, collate, remove_unused_columns=False), manifest
    )
    assert kept.ok and kept.counts.found == len(manifest.members) and kept.counts.complete


def test_a_stream_is_read_in_part_and_left_alone(
    planted: Any, tokenised: Any, tokenizer: Any, tmp_path: Any
) -> None:
    _, manifest = planted
    bare = [{"input_ids": row["input_ids"]} for row in tokenised]
    stream = datasets.Dataset.from_list(bare).to_iterable_dataset()
    result = run_preflight(trainer_on(stream, tokenizer, tmp_path, max_steps=100), manifest)
    assert "stream-without-length" in codes(result, "warning") and result.counts.found == len(
        manifest.members
    )
    short = run_preflight(stream, manifest, tokenizer=tokenizer, max_rows=3)
    assert "secret-not-seen" in codes(short, "warning") and short.ok and not short.counts.complete
    once = iter(tokenised)
    impossible = run_preflight(once, manifest, tokenizer=tokenizer)
    assert "scan-impossible" in codes(impossible, "warning")
    assert len(list(once)) == len(tokenised)  # nothing was taken from it


def test_rows_that_training_does_not_reach(
    planted: Any, tokenised: Any, tokenizer: Any, tmp_path: Any
) -> None:
    _, manifest = planted
    data = datasets.Dataset.from_list(tokenised)
    few = trainer_on(data, tokenizer, tmp_path, max_steps=2, per_device_train_batch_size=4)
    assert "rows-not-reached" in codes(run_preflight(few, manifest), "warning")
    assert "rows-not-reached" not in codes(run_preflight(trainer_on(data, tokenizer, tmp_path), manifest))


def test_no_pad_token(planted: Any, tokenised: Any) -> None:
    _, manifest = planted
    bare = tiny_tokenizer(pad=False)
    assert "no-pad-token" in codes(run_preflight(tokenised, manifest, tokenizer=bare), "warning")
    assert bare.pad_token is None  # looked at, not touched


def test_coins_that_fell_alike(tokenizer: Any) -> None:
    host = [{"text": text} for text in TEXTS]
    for probability, severity in ((0.0, "error"),):
        canaries = generate_canaries(tokenizer, n=4, family="random", include_prob=probability)
        rows, manifest = inject(host, canaries)
        ids = [{"input_ids": tokenizer(row["text"])["input_ids"]} for row in rows]
        assert "coins-alike" in codes(run_preflight(ids, manifest, tokenizer=tokenizer), severity)
    everyone = generate_canaries(tokenizer, n=1, family="random", include_prob=0.9999)
    rows, manifest = inject(host, everyone)
    ids = [{"input_ids": tokenizer(row["text"])["input_ids"]} for row in rows]
    assert "coins-alike" in codes(run_preflight(ids, manifest, tokenizer=tokenizer), "warning")


def test_few_controls(tokenizer: Any) -> None:
    canaries = generate_canaries(tokenizer, n=8, n_controls=20, family="random", seed=1)
    rows, manifest = inject([{"text": text} for text in TEXTS], canaries)
    ids = [{"input_ids": tokenizer(row["text"])["input_ids"]} for row in rows]
    assert "few-controls" in codes(run_preflight(ids, manifest, tokenizer=tokenizer), "warning")


def test_a_resumed_run_with_another_manifest(
    planted: Any, tokenised: Any, tokenizer: Any, tmp_path: Path
) -> None:
    _, manifest = planted
    data = datasets.Dataset.from_list(tokenised)
    trainer = trainer_on(data, tokenizer, tmp_path)
    other = manifest.model_copy(update={"seed": manifest.seed + 1})
    other.save(tmp_path / "memaudit-manifest.json")
    assert run_preflight(trainer, manifest).ok  # a new run may overwrite the folder
    trainer.state = TrainerState(global_step=5)
    assert "resumed-other-manifest" in codes(run_preflight(trainer, manifest), "error")
    manifest.save(tmp_path / "memaudit-manifest.json")
    assert run_preflight(trainer, manifest).ok
    (tmp_path / "memaudit-manifest.json").write_text("{")
    assert "resumed-manifest-damaged" in codes(run_preflight(trainer, manifest), "warning")


def test_columns_of_another_format(planted: Any, tokenizer: Any, tmp_path: Any) -> None:
    _, manifest = planted  # made as text

    def collate(rows: list[dict[str, Any]]) -> Any:
        return tokenizer([row["completion"] for row in rows], padding=True, return_tensors="pt")

    data = datasets.Dataset.from_list([{"prompt": text, "completion": text} for text in TEXTS])
    trainer = trainer_on(data, tokenizer, tmp_path, collate, remove_unused_columns=False)
    result = run_preflight(trainer, manifest)
    assert {"fmt-columns", "secret-missing"} <= codes(result, "error")
    # Rows that hold ids are judged by these, whatever stands beside them.
    ids = data.map(lambda row: {"input_ids": tokenizer(row["completion"])["input_ids"]})
    assert "fmt-columns" not in codes(run_preflight(trainer_on(ids, tokenizer, tmp_path), manifest))


def test_a_template_without_generation_markers(tokenizer: Any, tmp_path: Any) -> None:
    trl = pytest.importorskip("trl")
    marked, plain = tiny_tokenizer(chat="generation"), tiny_tokenizer(chat="plain")
    turns = [[{"role": "user", "content": t}, {"role": "assistant", "content": t}] for t in TEXTS]
    canaries = generate_canaries(marked, n=12, family="random", seed=2)
    data, manifest = inject(
        datasets.Dataset.from_list([{"messages": t} for t in turns]), canaries, tokenizer=marked
    )
    config = trl.SFTConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, assistant_only_loss=True)
    model = tiny_llama(len(marked), layers=1, hidden=16)
    trainer = trl.SFTTrainer(model=model, args=config, train_dataset=data, processing_class=marked)
    assert "no-generation-markers" not in codes(run_preflight(trainer, manifest))
    trainer.processing_class.chat_template = plain.chat_template
    trainer.chat_template = None
    assert "no-generation-markers" in codes(run_preflight(trainer, manifest), "error")


def test_longer_than_max_length(planted: Any, tokenised: Any, tokenizer: Any) -> None:
    _, manifest = planted
    cut = [{"input_ids": row["input_ids"][:20], "labels": row["input_ids"][:20]} for row in tokenised]
    result = run_preflight(cut, manifest, tokenizer=tokenizer, max_length=20)
    assert {"over-max-length", "secret-truncated"} <= codes(result, "error")
    assert result.counts.truncated == len(manifest.members)
    gone = [{"input_ids": row["input_ids"][:4], "labels": row["input_ids"][:4]} for row in tokenised]
    assert run_preflight(gone, manifest, tokenizer=tokenizer, max_length=4).counts.truncated == len(
        manifest.members
    )
    assert run_preflight(gone, manifest, tokenizer=tokenizer).counts.missing == len(manifest.members)


def test_the_share_of_tokens_is_warned_about(planted: Any, tokenised: Any, tokenizer: Any) -> None:
    assert "token-share" in codes(run_preflight(tokenised, planted[1], tokenizer=tokenizer), "warning")


def test_results_are_plain_and_hold_no_secret(planted: Any, tokenizer: Any) -> None:
    _, manifest = planted
    result = run_preflight([{"input_ids": [1, 2, 3]}], manifest, tokenizer=tokenizer)
    text = json.dumps(result.to_dict()) + repr(result) + "".join(map(str, result.findings))
    assert all(canary.secret.strip() not in text for canary in manifest.canaries)
    assert [one["severity"] for one in result.to_dict()["findings"]] == sorted(
        (one["severity"] for one in result.to_dict()["findings"]), key=["error", "warning", "info"].index
    )
    with pytest.raises(PreflightError) as caught:
        result.raise_for_errors()
    assert "\n" not in str(caught.value) and "[secret-missing]" in str(caught.value)


def test_data_without_ids(planted: Any, tokenizer: Any) -> None:
    rows, manifest = planted
    result = run_preflight(rows, manifest, tokenizer=tokenizer)
    assert "no-input-ids" in codes(result, "error")


def test_a_large_tokenised_dataset_is_scanned_fast(planted: Any, tokenised: Any, tokenizer: Any) -> None:
    import time

    _, manifest = planted
    rng = np.random.default_rng(0)
    host = datasets.Dataset.from_dict(
        {"input_ids": [row.tolist() for row in rng.integers(7, 500, size=(20_000, 100))]}
    )
    data = datasets.concatenate_datasets(
        [host, datasets.Dataset.from_list([{"input_ids": row["input_ids"]} for row in tokenised])]
    )
    start = time.process_time()
    result = run_preflight(data, manifest, tokenizer=tokenizer)
    assert (
        time.process_time() - start < 20.0
    )  # two million tokens; rows times canaries in Python would take hours
    assert result.counts.found == len(manifest.members) and result.counts.tokens > 2_000_000


def test_batches_of_odd_shapes() -> None:
    flat = from_batch({"input_ids": torch.tensor([[5, 6, 7]]), "completion_mask": torch.tensor([[0, 1, 1]])})
    assert flat.labels is not None and flat.labels[:3].tolist() == [-100, 6, 7]
    moved = from_batch((torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, -100]])))
    assert moved.labels is not None and moved.labels[:3].tolist() == [1, 2, 3]
    assert from_batch(torch.tensor([[1, 2]])).ids[:2].tolist() == [1, 2]
    preference = from_row_list([{"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": [4]}])
    assert preference.ids[:3].tolist() == [1, 2, 3]
    assert preference.labels is not None and preference.labels[:3].tolist() == [-100, -100, 3]


def test_a_collator_that_fails(planted: Any, tokenised: Any, tokenizer: Any, tmp_path: Any) -> None:
    _, manifest = planted

    def broken(rows: list[dict[str, Any]]) -> Any:
        raise KeyError("text")

    data = datasets.Dataset.from_list([{"input_ids": row["input_ids"]} for row in tokenised])
    result = run_preflight(trainer_on(data, tokenizer, tmp_path, broken), manifest)
    assert "collator-failed" in codes(result, "error")
    assert "KeyError" in str(result.errors[0])


def test_a_streaming_sft_trainer(tmp_path: Any, tokenizer: Any) -> None:
    trl = pytest.importorskip("trl")
    host = datasets.Dataset.from_list([{"text": text} for text in TEXTS]).to_iterable_dataset(num_shards=2)
    canaries = generate_canaries(tokenizer, n=12, n_controls=100, family="random", repetitions=(1, 3), seed=2)
    stream, manifest = inject(host, canaries, tokenizer=tokenizer, n_rows=len(TEXTS))
    config = trl.SFTConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, max_steps=3)
    model = tiny_llama(len(tokenizer), layers=1, hidden=16)
    trainer = trl.SFTTrainer(model=model, args=config, train_dataset=stream, processing_class=tokenizer)
    result = run_preflight(trainer, manifest)
    assert result.ok and result.counts.found == len(manifest.members), result.findings
    assert result.counts.copies == result.counts.copies_expected


def test_a_dpo_trainer(tmp_path: Any, tokenizer: Any) -> None:
    trl = pytest.importorskip("trl")
    host = datasets.Dataset.from_list(
        [{"prompt": text + "\n", "chosen": text, "rejected": "No."} for text in TEXTS]
    )
    canaries = generate_canaries(tokenizer, n=12, n_controls=100, family="random", repetitions=(1, 3), seed=2)
    data, manifest = inject(host, canaries, tokenizer=tokenizer)

    def run(**options: Any) -> PreflightResult:
        config = trl.DPOConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, **options)
        models = [tiny_llama(len(tokenizer), layers=1, hidden=16) for _ in range(2)]
        trainer = trl.DPOTrainer(
            model=models[0], ref_model=models[1], args=config, train_dataset=data, processing_class=tokenizer
        )
        return run_preflight(trainer, manifest)

    result = run(max_length=128)
    assert result.ok and result.counts.found == len(manifest.members), result.findings
    assert "context-differs" not in codes(result)
    assert "secret-truncated" in codes(run(max_length=30), "error")


def test_near_duplicates_are_expected_once_each(tokenizer: Any) -> None:
    canaries = generate_canaries(
        tokenizer, n=12, n_controls=100, family="near_duplicate", repetitions=(4,), seed=2
    )
    rows, manifest = inject([{"text": text} for text in TEXTS], canaries, tokenizer=tokenizer)
    ids = [tokenizer(row["text"])["input_ids"] for row in rows]
    result = run_preflight([{"input_ids": one, "labels": one} for one in ids], manifest, tokenizer=tokenizer)
    assert result.ok and result.counts.copies == result.counts.copies_expected == len(manifest.members)
    assert not {"more-copies", "fewer-copies", "secret-truncated"} & codes(result)
