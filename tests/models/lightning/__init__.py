"""LightningModules beside Lightning's own Trainer."""
