"""Drivers: one file for each database, all running the same plans."""
