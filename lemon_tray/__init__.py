"""The tray app: a view of the router."""
