"""Write a scheduler for Onepath in Python: see examples/README.md and docs/scheduler-protocol.md.

    codec    messages as classes, made from protocol.json
    link     the socket: handshake, heartbeats, sequence numbers
    runner   drives a core: live, with its own log, or in replay
    books    requests, slots, blocks, plans: all but the policy
"""
