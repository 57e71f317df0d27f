"""Test cases that ship with Stepwell, for whoever writes an adapter. Needs pytest."""
