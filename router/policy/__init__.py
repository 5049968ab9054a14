"""Routing policies: documents that choose a model for each request."""
