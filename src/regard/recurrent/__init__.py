"""Recurrent cells with one interface, and the scans that run them over sequences."""
