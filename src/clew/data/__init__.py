"""Events and samples: tables, readers, writers, transforms, prepared datasets and how they are made."""
