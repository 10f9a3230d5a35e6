"""Recurrent cells behind one contract, and the scan that runs them."""
