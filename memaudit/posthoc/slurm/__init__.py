"""SLURM jobs over checkpoints: readable sbatch files, submission, requeue, status."""

from __future__ import annotations
