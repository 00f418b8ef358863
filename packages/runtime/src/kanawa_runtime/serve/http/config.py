"""What `kanawa serve --set` sets: the engine's sizes, and what a server takes from its clients before it says no."""

from kanawa.config import Config, NonNegative, Positive, Size
from kanawa.config.override import apply_override

from kanawa_runtime.serve.engine.config import EngineConfig


class ServerConfig(Config):
    """Limits and times of the server."""

    #: A request's body, compressed or not: it is read whole before anything else is done with it.
    max_body_bytes: Size = 8 * 2**20
    #: Choices a prompt, and prompts a request; together they take as many places in the engine.
    max_n: Size = 16
    max_prompts: Size = 64
    max_stop_strings: Size = 16
    max_messages: Size = 1024
    max_tools: Size = 128
    #: Of a sound file to transcribe.
    max_audio_seconds: Positive = 3600.0
    #: Pictures of a request; bytes and pixels of each.
    max_pictures: Size = 16
    max_picture_bytes: Size = 20 * 2**20
    max_picture_pixels: Size = 64 * 2**20
    #: Hosts that pictures may be fetched from by http and https; other addresses than data URLs are refused.
    picture_hosts: tuple[str, ...] = ()
    #: From the request to its last token; what has been written by then is the answer.
    max_seconds: Positive = 600.0
    #: For a client to send its request, headers or body, once it has begun; and to take a piece of the answer.
    read_seconds: Positive = 20.0
    write_seconds: Positive = 20.0
    keep_alive_seconds: Positive = 15.0
    #: Connections at once; further ones are answered 503 and closed. An address alone gets four fifths of them.
    max_connections: Size = 2048
    #: Whether requests may name a `priority`: with one, any client goes before all others.
    allow_priority: bool = False
    #: Whether texts of clients may hold the names of control tokens, which end a turn or begin another's.
    allow_control_tokens: bool = True
    #: Whether answers say how many of the prompt's tokens were cached, which tells what others asked before.
    shows_cached_tokens: bool = False
    #: After SIGTERM, until what still runs is ended.
    drain_seconds: NonNegative = 30.0
    #: Host names besides localhost of a server without keys that listens on its own machine alone.
    allowed_hosts: tuple[str, ...] = ()
    #: Threads that read long bodies, tokenize prompts, render chats and write long answers; as many compile grammars.
    worker_threads: Size = 2
    #: For a grammar to be compiled.
    grammar_seconds: Positive = 10.0
    #: Grammars that take longer than a moment, at once; nothing interrupts them.
    max_slow_grammars: Size = 8


class TrainingConfig(Config):
    """Sizes of a training service.

    `max_models` adapters are trained at once, of rank `max_rank` at most; of those that are sampled from, the engine
    holds `max_samplers`. `alpha` over the rank scales each adapter. A pass holds about `tokens_at_once` tokens: longer
    requests are computed in several. A client that has sent no heartbeat for `session_seconds` may lose its models to
    a new one. Requests that wait `gap_seconds` for an earlier one, which didn't come, fail.
    """

    max_models: Size = 16
    max_rank: Size = 32
    max_samplers: Size = 8
    alpha: Positive = 32.0
    tokens_at_once: Size = 8192
    session_seconds: Positive = 600.0
    #: Requests of one model that wait or run.
    max_pending: Size = 512
    #: Clients send a request again for a while that the network lost.
    gap_seconds: Positive = 120.0


class ServeConfig(Config):
    """The engine's sizes, the server's limits, and those of training for clients."""

    engine: EngineConfig = EngineConfig(call_seconds=0.05)
    server: ServerConfig = ServerConfig()
    training: TrainingConfig = TrainingConfig()


def serve_config(overrides: list[str]) -> ServeConfig:
    """Returns the config with what `--set` says; raises UsageError for what can't be."""
    config = ServeConfig()
    for text in overrides:
        apply_override(config, text)
    return config.freeze()
