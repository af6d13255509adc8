"""Data that every machine with Python already has."""
