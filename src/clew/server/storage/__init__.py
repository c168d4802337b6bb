"""Contents of artefacts: where they are stored, how much each user may store, and when they are deleted."""
