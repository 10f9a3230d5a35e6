"""What a model computes, at which cost, and with which implementations."""
