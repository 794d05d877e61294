"""The ServerApp: runs beside the SuperLink, for as long as a run takes."""

from films.model import task
from sfsl.flower import server_app

app = server_app(task)
