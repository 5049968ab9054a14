"""Bounds and intervals of the web layer that are no settings. Tests use shorter ones."""

from __future__ import annotations

from msgspec import Struct


class WebOptions(Struct, frozen=True):
    """All times in seconds, all sizes in bytes.

    Attributes:
        silence_s: silence on a stream after which its headers, then a comment, are sent.
        route_silence_s: how long headers wait for a policy to choose, which they tell.
        worker_silence_s: silence in the middle of a worker's answer after which the answer is given up.
        connect_s: how long a connection to a worker may take to open.
        death_s: how long to wait for a worker's exit status once its connection broke.
        stalled_client_s: how long a client that reads nothing may hold an answer that has been cut.
        snapshots_s: least time between two snapshots to one subscriber.
        keep_alive_s: silence on the event stream after which a comment is sent.
        max_subscribers: how many may listen to the event stream.
        max_body: largest request body.
        max_admin_body: largest body of a call that no model answers.
        upload_stall_s: silence in the middle of a request body after which it is given up.
        inline_body: largest body that is parsed on the loop; larger ones go to a thread.
        max_held: how much of an answer that is no stream is held back until its end is known.
        max_idle: idle connections kept for one worker.
        max_clients: connections of clients; 0 for as many as the process can hold.
        idle_client_s: how long a client may be connected without asking for anything.
        unread_s: how long a client may leave unread what was sent, before nothing more is kept for it.
        slowest_upload: bytes a second that a request body must come at, on the whole.
    """

    silence_s: float = 1.0
    route_silence_s: float = 5.0
    worker_silence_s: float = 600.0
    connect_s: float = 10.0
    death_s: float = 1.0
    stalled_client_s: float = 2.0
    snapshots_s: float = 0.1
    keep_alive_s: float = 15.0
    max_subscribers: int = 64
    max_body: int = 512 << 20
    max_admin_body: int = 16 << 20
    upload_stall_s: float = 60.0
    inline_body: int = 256 << 10
    max_held: int = 1 << 20
    max_idle: int = 128
    max_clients: int = 0
    idle_client_s: float = 75.0
    unread_s: float = 300.0
    slowest_upload: int = 4 << 10
