"""The mathematics of selection: sketches in, client rows out."""
