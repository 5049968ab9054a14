"""residency."""
