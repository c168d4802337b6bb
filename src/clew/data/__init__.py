"""From raw events to batches: tables, expressions, readers, writers, transforms, prepare and datasets."""
