"""Who may do what in the database, and whose rows a reader sees."""
