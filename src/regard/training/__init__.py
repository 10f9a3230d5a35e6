"""Training: the loop, its schedule and objective, automatic configuration, resuming and fine-tuning."""
