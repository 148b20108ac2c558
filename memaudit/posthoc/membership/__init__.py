"""Membership attacks after training: data, backends, the union of what attacks need, metrics, files."""

from __future__ import annotations
