#!/usr/bin/env python3
"""Keeps the policies of guests in step on several hosts.

    controller.py POLICIES.json HOST1.sock HOST2.sock ...

POLICIES.json has for each guest, by the name of its port, the keys it is to have where it runs:

    {"vm1": {"macs": "52:54:00:00:00:01", "ips": "10.0.0.1", "from_rate": "100Mbit"}}

Every host has a port of that name. When it comes up on one host, the guest is there now: its keys
are taken from the port's namesakes first, for an address that is pinned (`macs`) to a port without
a guest would hide the guest on its new host, and then given to its port. So a guest has its rights
on one host at a time. What it has sent and received is the sum of its ports' counters, so they stay
where they are. Sockets of other hosts: ssh -L /tmp/h2.sock:/run/vmlan/api.sock h2
"""
import http.client
import json
import socket
import sys
import threading
import time


class Host(http.client.HTTPConnection):
    """The API of a switch, at a UNIX socket."""

    def __init__(self, path, timeout=10):
        super().__init__("vmlan", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def ask(path, method, what, body=None):
    host = Host(path)
    try:
        host.request(method, what, None if body is None else json.dumps(body))
        answer = host.getresponse()
        text = answer.read().decode()
        if answer.status >= 400:
            raise OSError(f"{method} {what}: {json.loads(text)['error']}")
        return json.loads(text)
    finally:
        host.close()


def events(path):
    """What happens on a host: first `listening`, then each event."""
    host = Host(path, timeout=None)
    host.request("GET", "/v1/events")
    for line in host.getresponse():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


class Controller:
    def __init__(self, policies, paths):
        self.policies, self.paths = policies, paths
        self.lock = threading.Lock()

    def arrived(self, guest, at):
        keys = self.policies[guest]
        with self.lock:
            for path in self.paths:
                if path != at:
                    self.give(path, guest, dict.fromkeys(keys))
            self.give(at, guest, keys)
        sent, received = self.counted(guest)
        print(f"{guest} is at {at}: {sent} frames from it, {received} to it", flush=True)

    def counted(self, guest):
        """A guest's frames on all hosts together: each host has counted its own."""
        sums = [0, 0]
        for path in self.paths:
            try:
                ports = ask(path, "GET", "/v1/stats")["ports"]
            except OSError as error:
                print(f"{path}: {error}", file=sys.stderr, flush=True)
                continue
            for port in ports:
                if port["name"] == guest:
                    sums = [sums[0] + port["in"]["frames"], sums[1] + port["out"]["frames"]]
        return sums

    def give(self, path, guest, keys):
        """A key that is None is taken away. A host that is not there has no guest either."""
        try:
            ask(path, "PATCH", f"/v1/ports/{guest}", keys)
        except OSError as error:
            print(f"{path}: {error}", file=sys.stderr, flush=True)

    def watch(self, path):
        while True:
            try:
                for event in events(path):
                    if event["event"] in ("listening", "missed"):
                        # What happened before is not told: look.
                        for port in ask(path, "GET", "/v1/ports")["ports"]:
                            if port["up"] and port["name"] in self.policies:
                                self.arrived(port["name"], path)
                    elif event["event"] == "port-up" and event["port"] in self.policies:
                        self.arrived(event["port"], path)
            except (OSError, http.client.HTTPException) as error:
                print(f"{path}: {error}", file=sys.stderr, flush=True)
            time.sleep(1)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        controller = Controller(json.load(file), sys.argv[2:])
    for place in controller.paths[1:]:
        threading.Thread(target=controller.watch, args=[place], daemon=True).start()
    controller.watch(controller.paths[0])
