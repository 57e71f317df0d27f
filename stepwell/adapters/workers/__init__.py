"""Workers as processes: clock, signals, exit codes, the disk cache, the supervisor. See docs/workers.md."""
