"""One readable loop, and what makes a run survive anything."""
