"""Planning: which settings fit the data, the machine and the available time."""
