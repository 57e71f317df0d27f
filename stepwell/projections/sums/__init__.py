"""What is added up from rows: the verdicts that count, and sums by minute, hour and day."""
