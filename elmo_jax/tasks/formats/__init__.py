"""What the readers and the scorers of several tasks share: lines, tags, escapes, sources and scores."""
