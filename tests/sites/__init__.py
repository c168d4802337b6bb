"""Sites, with the real software."""
