"""From the log into the tables, exactly once: batches, rows, COPY."""
