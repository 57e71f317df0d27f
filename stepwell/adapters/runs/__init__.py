"""Runs: what was asked for (`spec`, `plan`), who does it (`host`, `recorder`), what came of it (`summary`)."""
