"""Looks into a policy's failures on demand: what explains them, and which of them are alike.

Reads recorded verdicts only; nothing here takes part in judging live. Needs the extra ``analysis``.
"""
