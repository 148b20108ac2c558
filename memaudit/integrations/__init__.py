"""Thin callers of one AuditSession: Hugging Face Trainer, Lightning, and a loop of one's own."""
