"""Key services: where the keys live that a shred destroys."""
