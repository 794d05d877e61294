"""A server from settings, in one call: ``sfsl serve``, or inside a program of your own."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sfsl.client.join import blocking
from sfsl.deploy.start import TLS, Deployment, open_deployment
from sfsl.settings.serve import Given, ServeConfig, serve_settings


@dataclass(frozen=True)
class Serving:
    """A server that listens: at ``url``, with these settings. ``authority`` is the certificate authority
    that its clients need, where it made one itself.

    >>> import sfsl
    >>> def ready(serving: sfsl.Serving):
    ...     print("clients join at", serving.url, "and trust", serving.authority)
    """

    url: str
    config: ServeConfig
    deployment: Deployment

    @property
    def authority(self) -> Path | None:
        own = self.config.serve
        return Path(own.state) / TLS / "authority.pem" if own.own_tls else None

    @property
    def round(self) -> int:
        """The last one in the store."""
        return self.deployment.coordinator.check_ins.round

    async def stop(self) -> None:
        """Let the round under way finish, for serve.grace_seconds at the most, and tell the clients."""
        await self.deployment.coordinator.stop()


async def serve_async(
    settings: Given,
    *,
    out: str | Path | None = None,
    host: str | None = None,
    port: int | None = None,
    ready: Callable[[Serving], None] | None = None,
) -> int:
    """``serve`` inside an event loop of your own. Cancelled, it aborts the round under way; ``Serving.stop``
    lets it finish. ``join_async`` has an example with three clients.

    >>> import asyncio, tempfile, sfsl
    >>> async def one_moment(folder):
    ...     ready = asyncio.get_running_loop().create_future()
    ...     settings = {"data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.clients": 5,
    ...                 "serve.enrolment": "open", "serve.plain": True, "serve.port": 0}
    ...     server = asyncio.create_task(sfsl.serve_async(settings, out=folder, ready=ready.set_result))
    ...     serving = await ready
    ...     await serving.stop()
    ...     return await server
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(one_moment(folder))
    0
    """
    config = serve_settings(settings, out=out, host=host, port=port)
    deployment = open_deployment(config, Path(config.serve.state))
    with closing(deployment):
        if not deployment.coordinator.finished:
            await deployment.run(lambda url: ready and ready(Serving(url, config, deployment)))
        return deployment.coordinator.check_ins.round


@blocking(serve_async)
def serve() -> None:
    """Serve rounds to clients on a network until stopped; returns the last round in the store.

    ``settings``: a run file with a section ``serve`` (``sfsl serve --settings`` explains each key), or the
    same from Python. ``out``, ``host`` and ``port`` (0 takes a free one) win over it. ``ready`` is called
    once it listens. Ctrl-C and SIGTERM let the round under way finish; serve.rounds ends it by itself.

    >>> import asyncio, tempfile, sfsl
    >>> settings = {"data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.clients": 5,
    ...             "serve.enrolment": "open", "serve.port": 0}
    >>> def ready(serving):
    ...     print(serving.url.split(":")[0], serving.authority.name)
    ...     asyncio.ensure_future(serving.stop())                   # or go on, for ever
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sfsl.serve(settings, out=folder, ready=ready)
    https authority.pem
    0
    """
