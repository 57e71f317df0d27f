"""Whether the tables say what the log says."""
