"""A run on disk: settings, folder, checkpoints, events, lock and model card."""
