"""Thin callers of one AuditSession: Hugging Face Trainer, Lightning. A raw loop calls the session itself."""
