"""LightningModules: their steps, optimisers and schedulers in clew's training loop. Users import Lightning."""
