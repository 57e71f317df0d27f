"""Speed and memory: ``python -m benchmarks``. What the figures say stands in docs/performance.md."""
