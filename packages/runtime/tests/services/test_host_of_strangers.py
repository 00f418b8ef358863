"""A service of somebody's plugin that fails: the warning names the plugin and how to run without it."""

import logging
import sys
from types import SimpleNamespace

from kanawa_runtime.services.host import ServiceHost

SOURCE = """
from kanawa.contracts import Service

class Loud(Service):
    def start(self, run): ...

    def event(self, run, event):
        raise RuntimeError("no licence found")

    def stop(self, run): ...
"""


def test_the_plugin_of_a_failing_service_is_named(tmp_path, monkeypatch, caplog):
    from kanawa.plugins import PluginHost, set_host
    from kanawa.plugins.discovery import Entry, Provider, discover

    (tmp_path / "loud_services.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = Entry(kind="services", name="loud", value="loud_services:Loud")
    stranger = Provider(name="loud-services", version="1.2", entries=(entry,))
    old = set_host(PluginHost(discover=lambda: [*discover(), stranger]))
    try:
        import loud_services

        host = ServiceHost([loud_services.Loud.Config().build()])
        host.start(SimpleNamespace(directory="/nowhere", attempt=1, start_step=0, config=None))
        host.feed({"event": "step"})
        host.stop()
    finally:
        set_host(old)
        sys.modules.pop("loud_services", None)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line == (
        "service Loud failed in event: RuntimeError: no licence found; training continues; "
        "this comes from the plugin loud-services 1.2; KANAWA_SKIP_PLUGINS=loud-services leaves it out"
    )
