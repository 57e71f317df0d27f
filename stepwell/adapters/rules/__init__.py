"""Rule sets on disk and in the log: read and checked, put into force, looked up again."""
