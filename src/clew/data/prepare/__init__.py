"""From raw events to datasets: read, transform, prepare, write. It never imports torch. `clew.prepare` is the entry."""
