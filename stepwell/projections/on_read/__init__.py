"""Views of what stands in JSON, without a migration."""
