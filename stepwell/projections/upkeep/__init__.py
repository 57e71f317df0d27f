"""What TimescaleDB is set to, and what goes when: chunks, compression, refreshes, retention."""
