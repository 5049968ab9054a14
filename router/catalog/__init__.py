"""What models exist: GGUF files in the folders, and the demo model to fetch."""
