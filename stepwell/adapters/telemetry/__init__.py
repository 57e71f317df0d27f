"""What a worker measures of its host and publishes to ``stepwell.telemetry``: CPU, memory, GPU, queues."""
