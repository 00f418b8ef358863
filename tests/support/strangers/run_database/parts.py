"""Every step of a run as a row of an SQLite database beside it."""

import sqlite3
from pathlib import Path

from kanawa.contracts import Service


class Database(Service):
    """Opens its own connection in `start`: SQLite's belong to the thread that made them."""

    class Config(Service.Config):
        file: str = "steps.sqlite"

    def start(self, run):
        """Makes the table, or goes on with it."""
        self.connection = sqlite3.connect(Path(run.directory, self.config.file))
        self.connection.execute("CREATE TABLE IF NOT EXISTS steps (attempt INTEGER, step INTEGER, loss REAL)")

    def event(self, run, event):
        """Writes a step."""
        if event.get("event") == "step":
            values = (event["attempt"], event["step"], float(event["loss"]))
            self.connection.execute("INSERT INTO steps VALUES (?, ?, ?)", values)
            self.connection.commit()

    def stop(self, run):
        """Closes the database."""
        self.connection.close()
