"""program x model: the table that is matched and edited, the matches, the edits, and the driver."""
