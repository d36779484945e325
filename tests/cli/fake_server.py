"""A fake OpenAI-style server for the tests of `onepath bench`: no model is behind it.

The first part of the path chooses how it behaves: http://127.0.0.1:PORT/slow/v1/chat/completions.
It answers by hand over sockets, because what it does wrong must be exactly what a test asks for.
"""
import json
import socket
import threading
import time

PIECES = 5
STALL_S = 2.0


class FakeServer:
    def __init__(self, host="127.0.0.1"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.create_server((host, 0), family=family, backlog=256)
        self.host = f"[{host}]" if ":" in host else host
        self.port = self.listener.getsockname()[1]
        self.bodies = []
        self.heads = []
        self.counts = {}
        self.lock = threading.Lock()
        self.one_at_a_time = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, mode):
        return f"http://{self.host}:{self.port}/{mode}"

    def close(self):
        self.listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client:
            try:
                self._answer(client)
            except (OSError, ValueError):
                pass  # the generator went away

    def _answer(self, client):
        data = b""
        while b"\r\n\r\n" not in data:
            got = client.recv(65536)
            if not got:
                return
            data += got
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        fields = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        while len(body) < int(fields.get("content-length", 0)):
            body += client.recv(65536)
        mode, _, rest = lines[0].split()[1].lstrip("/").partition("/")
        with self.lock:
            number = self.counts.get(mode, 0)
            if rest != "v1/models":
                self.counts[mode] = number + 1
                self.bodies.append(json.loads(body))
                self.heads.append(fields)
        if rest == "v1/models":
            self._whole(client, 200, {"object": "list", "data": [{"id": "fake-model"}]})
            return
        is_chat = rest == "v1/chat/completions"
        getattr(self, "mode_" + mode)(client, number, is_chat, json.loads(body), fields)

    @staticmethod
    def _whole(client, status, body, extra=""):
        text = body if isinstance(body, str) else json.dumps(body)
        client.sendall((f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n{extra}"
                        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}").encode())

    @staticmethod
    def _begin(client):
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                       b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")

    @staticmethod
    def _chunk(client, text):
        data = text.encode()
        client.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def _event(self, client, value):
        self._chunk(client, "data: " + (value if isinstance(value, str) else json.dumps(value)) + "\n\n")

    @staticmethod
    def _piece(is_chat, text):
        choice = {"delta": {"content": text}} if is_chat else {"text": text}
        return {"choices": [{"index": 0, **choice}], "usage": None}

    def _stream(self, client, is_chat, pieces=PIECES, first=0.0, gap=0.0, usage=True, done=True):
        self._begin(client)
        if is_chat:
            self._event(client, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        time.sleep(first)
        for i in range(pieces):
            self._event(client, self._piece(is_chat, f"word{i} "))
            time.sleep(gap)
        if usage:
            self._event(client, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": pieces + 3}})
        if done:
            self._event(client, "[DONE]")
            client.sendall(b"0\r\n\r\n")

    # ---- ways to behave

    def mode_good(self, client, number, is_chat, body, fields):
        if body["stream"]:
            self._stream(client, is_chat)
            return
        choice = {"message": {"content": "five"}} if is_chat else {"text": "five"}
        self._whole(client, 200, {"choices": [{"index": 0, **choice}],
                                  "usage": {"prompt_tokens": 7, "completion_tokens": 8}})

    def mode_nousage(self, client, number, is_chat, body, fields):
        self._stream(client, is_chat, usage=False)

    def mode_empty(self, client, number, is_chat, body, fields):
        self._stream(client, is_chat, pieces=0, usage=False)

    def mode_slow(self, client, number, is_chat, body, fields):
        self._stream(client, is_chat, first=0.3, gap=0.02)

    def mode_key(self, client, number, is_chat, body, fields):
        if fields.get("authorization") == "Bearer secret-key":
            self._stream(client, is_chat)
        else:
            self._whole(client, 401, {"error": {"message": "who are you?"}})

    def mode_mixed(self, client, number, is_chat, body, fields):
        """Seven ways in turn; only the first is an answer."""
        way = number % 7
        if way == 0:
            self._stream(client, is_chat)
        elif way == 1:  # breaks off inside a chunk
            self._begin(client)
            self._event(client, self._piece(is_chat, "word"))
            client.sendall(b"40\r\ndata: {")
        elif way == 2:
            self._whole(client, 429, {"error": {"message": "too many"}}, "Retry-After: 7\r\n")
        elif way == 3:
            self._begin(client)
            self._event(client, "{\"choices\": [")
            client.sendall(b"0\r\n\r\n")
        elif way == 4:
            self._begin(client)
            self._event(client, self._piece(is_chat, "word"))
            self._event(client, {"error": {"message": "the executor is gone", "code": 503}})
            client.sendall(b"0\r\n\r\n")
        elif way == 5:  # HTTP ends well, the stream does not
            self._stream(client, is_chat, done=False)
            client.sendall(b"0\r\n\r\n")
        else:
            self._whole(client, 500, "no JSON at all")

    def mode_hang(self, client, number, is_chat, body, fields):
        self._begin(client)
        self._event(client, self._piece(is_chat, "word"))
        client.settimeout(30)
        client.recv(1)  # until the generator gives up

    def mode_mute(self, client, number, is_chat, body, fields):
        """Closes without a word."""

    def mode_stall(self, client, number, is_chat, body, fields):
        """One request at a time; the first takes STALL_S, the others nothing."""
        with self.one_at_a_time:
            time.sleep(STALL_S if number == 0 else 0.0)
            self._stream(client, is_chat)

    def mode_dribble(self, client, number, is_chat, body, fields):
        """Each byte in a packet of its own, lines with CR LF, comments between events."""
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._begin(client)
        for i in range(2):
            text = ": keep-alive\r\n\r\ndata:" + json.dumps(self._piece(is_chat, f"wörd{i}")) + "\r\n\r\n"
            for byte in text.encode():
                client.sendall(b"1\r\n%c\r\n" % byte)
        self._event(client, "[DONE]")
        client.sendall(b"0\r\n\r\n")
