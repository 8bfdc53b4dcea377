"""The experiment behind ``shredsaver demo``: what is left of a customer who asked to be forgotten."""
