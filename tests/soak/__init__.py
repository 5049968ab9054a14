"""A long run of the real program under everything that users, clients, workers and devices do to it."""
