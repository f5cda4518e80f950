"""From finished runs to what they say: results read back, tables, figures and a page."""
