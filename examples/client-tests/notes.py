"""A small client of Dropbox's API, with the standard library alone."""

import http.client
import json
import ssl
import time


class Notes:
    """Uploads and reads notes. Waits and tries again as often as ``tries`` says, when that can help."""

    def __init__(self, host, token, ca_file=None, tries=4, sleep=time.sleep):
        self._host, self._token, self._tries, self._sleep = host, token, tries, sleep
        self._tls = ssl.create_default_context(cafile=ca_file)
        self.waited_s = []

    def write(self, path, text):
        """Upload a note; an older one of that name is replaced."""
        self._call("/2/files/upload", {"path": path, "mode": "overwrite"}, text.encode())

    def read(self, path):
        """The text of a note."""
        return self._call("/2/files/download", {"path": path}, b"").decode()

    def _call(self, route, argument, body):
        head = {
            "Authorization": f"Bearer {self._token}",
            "Dropbox-API-Arg": json.dumps(argument),
            "Content-Type": "application/octet-stream",
        }
        for last in [False] * (self._tries - 1) + [True]:
            wait_s, problem = 0.1, None
            try:
                connection = http.client.HTTPSConnection(self._host, context=self._tls, timeout=30)
                connection.request("POST", route, body, head)
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
                if answer.status == 200:
                    return content
                problem = RuntimeError(f"{route}: {answer.status} {content[:200]!r}")
                if answer.status == 429:
                    wait_s = float(answer.headers.get("Retry-After", 1))
                elif answer.status < 500:
                    raise problem
            except (OSError, http.client.HTTPException) as error:
                problem = error
            if last:
                raise problem
            self.waited_s.append(wait_s)
            self._sleep(wait_s)
