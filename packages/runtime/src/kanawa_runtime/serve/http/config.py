"""What `kanawa serve --set` sets."""

from kanawa.config import Config

from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.http.limits import ServerConfig


class ServeConfig(Config):
    """The engine's sizes and the server's limits."""

    engine: EngineConfig = EngineConfig()
    server: ServerConfig = ServerConfig()
