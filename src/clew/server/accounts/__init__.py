"""Users, groups and tokens: who sends a request, and what this user may see and change."""
