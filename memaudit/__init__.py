"""memaudit."""
