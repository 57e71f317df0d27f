"""The durable inbox of a training service: requests are stored, then committed, then worked on."""
