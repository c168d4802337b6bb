"""Raw events to datasets: read, transform, prepare, write. Never imports torch. `clew.prepare` is the way in."""
