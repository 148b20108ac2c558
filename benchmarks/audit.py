"""The same audit by the published memaudit 0.2.0 and by this one, in one run: how long, and do they agree?

SmolLM2-135M with LoRA, canaries of the peer's family random, the adapter-off reference, regurgitation after a
quarter and a half of each secret, members and controls alike. Both get the same weights, records and threads.

    python -m benchmarks.audit --peer-python PEER/bin/python [--work DIR] [--n 32] [--controls 100]

The peer needs an environment of its own (both packages are called memaudit):

    python -m venv PEER && PEER/bin/pip install memaudit==0.2.0 torch transformers==5.24.0 peft==0.20.0 trl==0.29.1

Wall-clock seconds on a shared machine say less than the ratio of processor seconds, so both are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEER_SCRIPT = Path(__file__).with_name("_peer_audit.py")


def prepare(folder: Path, host_rows: int) -> None:
    """Write SmolLM2 as a plain folder, and the host rows."""
    from memaudit.demo.smollm2 import load_smollm2
    from memaudit.demo.text import instruction_rows

    if not (folder / "base" / "config.json").exists():
        model, tokenizer = load_smollm2()
        model.save_pretrained(folder / "base")
        tokenizer.save_pretrained(folder / "base")
    rows = instruction_rows(host_rows, seed=0)
    text = [f"{row['instruction']} {row['output']}".replace("\n", " ") for row in rows]
    (folder / "host.txt").write_text("\n".join(text))


def train(folder: Path, steps: int, threads: int) -> None:
    """Fine-tune a LoRA adapter on the peer's rows, in a plain loop that belongs to neither."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    model: Any = get_peft_model(base, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    rows = [
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in json.loads((folder / "rows.json").read_text())
    ]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    for step in range(steps):
        batch = [rows[order[(8 * step + i) % len(rows)]] for i in range(8)]
        length = max(map(len, batch))
        ids = torch.tensor([row + [0] * (length - len(row)) for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in batch])
        model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder / "adapter")


def convert(folder: Path, tokenizer: Any) -> tuple[Any, set[str]]:
    """Return the peer's manifest as ours, and the ids of canaries whose span both see alike.

    The peer looks for the secret's stored ids in the record's; where a token straddles the secret's start it
    falls back on an approximate span. Ours is then the tokens that hold the secret's characters.
    """
    from memaudit.canaries import tokenizer_identity
    from memaudit.manifest import Manifest, PlacedCanary

    document = json.loads((folder / "peer-manifest.json").read_text())
    header = peer_header(document, json.loads((folder / "rows.json").read_text()))
    placed, exact = [], set()
    for item in document["canaries"]:
        text = header + item["secret"]
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = encoded["input_ids"]
        at = text.rindex(item["secret"].strip())
        inside = [
            i
            for i, (a, b) in enumerate(encoded["offset_mapping"])
            if b > at and a < at + len(item["secret"].strip())
        ]
        start, stop = max(1, inside[0]), inside[-1] + 1
        stored = list(item["secret_token_ids"])
        found = [i for i in range(len(ids)) if ids[i : i + len(stored)] == stored]
        if found and found[0] >= 1:
            start, stop = found[0], found[0] + len(stored)
            exact.add(item["id"])
        member = bool(item["included"])
        placed.append(
            PlacedCanary(
                id=item["id"],
                family="random",
                generator=str(item.get("actual_generator") or "uniform_vocab"),
                secret=item["secret"],
                secret_ids=tuple(ids[start:stop]),
                role="candidate" if item["role"] == "candidate" else "control",
                repetitions=int(item["repetitions"]),
                included=member,
                record={"input_ids": ids},
            )
        )
    manifest = Manifest(
        seed=int(document["seed"]),
        fmt="input_ids",
        include_prob=float(document["include_prob"]),
        repetitions=(1, 4, 16),
        family="random",
        tokenizer=tokenizer_identity(tokenizer),
        canaries=tuple(placed),
    )
    return manifest, exact


def peer_header(document: dict[str, Any], rows: list[str]) -> str:
    """Return what the peer writes before a secret, from a row that it planted."""
    for item in document["canaries"]:
        for row in rows if item["included"] else ():
            if row.endswith(item["secret"]):
                return row[: -len(item["secret"])]
    raise SystemExit("no planted row was found; give --n more canaries")


def ours(folder: Path, threads: int) -> dict[str, Any]:
    """Audit the adapter with this memaudit, and count its forwards."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from memaudit import AuditSession

    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    model: Any = PeftModel.from_pretrained(base, folder / "adapter").eval()
    manifest, exact = convert(folder, tokenizer)
    forwards = [0]
    base.model.register_forward_hook(lambda *_: forwards.__setitem__(0, forwards[0] + 1))
    with tempfile.TemporaryDirectory() as output:
        began, cpu = time.perf_counter(), time.process_time()
        session = AuditSession(model, tokenizer, manifest, output_dir=output, ref="adapter")
        session.reference()
        result = session.audit(0)
        scored = forwards[0]
        report = session.report()
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
    assert session.last is not None
    ceiling = {}
    for name, signals in session.last.target.signals.items():
        kept = (session.reference().signals or {})[name]
        ceiling[name] = minkpp_ceiling(signals) - minkpp_ceiling(kept)
    return {
        "seconds": seconds,
        "cpu_seconds": used,
        "forwards": forwards[0],
        "scoring_forwards": scored,
        "scores": {**result.scores, "ref_minkpp (ceiling)": ceiling},
        "exact": sorted(exact),
        "extraction": {k: v.to_dict() for k, v in session.last.extraction.by_id.items()},
        "counts": session.last.extraction.counts.to_dict(),
        "members": [c.id for c in manifest.members],
        "claim": report.membership.detection_claim,
    }


def minkpp_ceiling(signals: Any) -> float:
    """Return Min-K%++ with k = ceil(0.2 n), as the peer rounds; ours takes the paper's code's int(0.2 n)."""
    import numpy as np

    z = np.sort((signals.logprob - signals.mean) / np.maximum(signals.std, 1e-8))
    return float(z[: math.ceil(0.2 * len(z))].mean())


def _stage(arguments: list[str], python: str, env: dict[str, str]) -> None:
    done = subprocess.run([python, *arguments], env={**os.environ, **env}, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{python} {' '.join(arguments)} ended with {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", default=None, help="the interpreter of the peer's environment")
    parser.add_argument("--work", type=Path, default=Path("bench-audit"))
    parser.add_argument("--n", type=int, default=32)
    parser.add_argument("--controls", type=int, default=100)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of the fine-tune")
    parser.add_argument("--host-rows", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--stage", choices=("all", "train", "ours"), default="all", help="internal")
    chosen = parser.parse_args()
    folder: Path = chosen.work.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if chosen.stage == "train":
        prepare(folder, chosen.host_rows) if not (folder / "rows.json").exists() else train(
            folder, chosen.steps, chosen.threads
        )
        return
    if chosen.stage == "ours":
        (folder / "our-result.json").write_text(json.dumps(ours(folder, chosen.threads)))
        return
    if chosen.peer_python is None:
        parser.error(
            "--peer-python is missing: both packages are called memaudit, so the peer needs its own environment"
        )
    env = {"OMP_NUM_THREADS": str(chosen.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    mine = {**env, "PYTHONPATH": str(ROOT)}
    peer = {**env, "PYTHONPATH": ""}
    common = ["-m", "benchmarks.audit", "--work", str(folder), "--threads", str(chosen.threads)]
    common += ["--steps", str(chosen.steps), "--host-rows", str(chosen.host_rows)]
    for name in ("rows.json", "peer-result.json", "our-result.json"):
        (folder / name).unlink(missing_ok=True)
    _stage([*common, "--stage", "train"], sys.executable, mine)
    _stage(
        [str(PEER_SCRIPT), "inject", str(folder), str(chosen.n), str(chosen.controls)],
        chosen.peer_python,
        peer,
    )
    _stage([*common, "--stage", "train"], sys.executable, mine)
    _stage([*common, "--stage", "ours"], sys.executable, mine)
    _stage([str(PEER_SCRIPT), "audit", str(folder), str(chosen.threads)], chosen.peer_python, peer)
    print(table(folder))


def table(folder: Path) -> str:
    """Return the comparison as a Markdown table with what agrees below it."""
    mine = json.loads((folder / "our-result.json").read_text())
    peer = json.loads((folder / "peer-result.json").read_text())
    lines = ["| | memaudit 0.2.0 (PyPI) | this one | ratio |", "| --- | --- | --- | --- |"]
    for name, label, digits in (
        ("seconds", "wall-clock seconds", 1),
        ("cpu_seconds", "processor seconds", 1),
        ("forwards", "forwards of the model", 0),
    ):
        a, b = float(peer[name]), float(mine[name])
        lines.append(f"| {label} | {a:,.{digits}f} | {b:,.{digits}f} | {a / b:.1f} |")
    lines += ["", *agreement(mine, peer)]
    return "\n".join(lines)


def agreement(mine: dict[str, Any], peer: dict[str, Any]) -> list[str]:
    """Say how far the scores of members agree, and where verdicts differ."""
    theirs = {item["id"]: item for item in peer["report"]["per_canary"]}
    out = []
    for ours_name, peer_name in (
        ("ref", "loss_diff"),
        ("ref_minkpp (ceiling)", "base_calibrated_min_k_plus_plus"),
        ("ref_minkpp", "base_calibrated_min_k_plus_plus"),
    ):
        same = [
            (abs(mine["scores"][ours_name][name] - float(theirs[name]["scores"][peer_name])), name)
            for name in mine["members"]
            if name in mine["exact"] and peer_name in theirs.get(name, {}).get("scores", {})
        ]
        if same:
            out.append(
                f"{ours_name}: largest difference {max(same)[0]:.2e} over the {len(same)} members (of "
                f"{len(mine['members'])}) whose span the peer finds exactly."
            )
    counts = mine["counts"]
    out.append(
        f"Regurgitation: {counts['pairs']} pairs of record and prefix, {counts['verbatim']} verbatim and "
        f"{counts['decided']} more decided by the scoring forward, {counts['generated']} by {counts['prompts']} "
        f"prompts in {counts['calls']} batched calls, {counts['given_up']} of them given up early; "
        f"{mine['scoring_forwards']} forwards scored all records twice."
    )
    return out


if __name__ == "__main__":
    main()
