"""Families of secrets, drawn so that their ids survive every record format, and the design around them."""

from __future__ import annotations

from memaudit.canaries.contexts import LEAD, REQUEST, settle
from memaudit.canaries.design import PROFILES, build, coin, profile
from memaudit.canaries.registry import (
    Draw,
    Family,
    Request,
    Sampled,
    Sampler,
    families,
    family,
    register_family,
    unregister_family,
)
from memaudit.canaries.tokens import TokenizerLike, check_tokenizer, tokenizer_identity

__all__ = [
    "LEAD",
    "PROFILES",
    "REQUEST",
    "Draw",
    "Family",
    "Request",
    "Sampled",
    "Sampler",
    "TokenizerLike",
    "build",
    "check_tokenizer",
    "coin",
    "families",
    "family",
    "profile",
    "register_family",
    "settle",
    "tokenizer_identity",
    "unregister_family",
]
