"""Time to a target quality, per strategy and bandwidth (`clew bench strategies`)."""
