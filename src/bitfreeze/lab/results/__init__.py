"""What finished and running runs gave: metrics, tables, figures, the report."""
