"""A session: its projects, the metrics and engines of users, its verdicts, and the summary at its end."""
