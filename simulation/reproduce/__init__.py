"""The tables and figures of the ADCS and the SCKM paper, from our own runs."""
