"""What is loaded, and what may be: desired state, actual state, one pure plan, one reconciler."""
