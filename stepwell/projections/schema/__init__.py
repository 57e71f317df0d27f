"""The schema's SQL files, and what brings a database to them: migrations, generations of the tables, views."""
