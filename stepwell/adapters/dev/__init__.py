"""The team's stack as processes on one machine: ``stepwell dev``. See docs/dev.md."""
