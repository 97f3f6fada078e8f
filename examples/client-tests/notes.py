"""A small client of Dropbox's API that needs only the standard library."""

import http.client
import json
import ssl
import time


class Notes:
    """A client that uploads and reads notes, and tries up to ``tries`` times if the service is busy or fails."""

    def __init__(self, host, token, ca_file=None, tries=4, sleep=time.sleep):
        self._host, self._token, self._tries, self._sleep = host, token, tries, sleep
        self._tls = ssl.create_default_context(cafile=ca_file)
        self.waited_s = []

    def write(self, path, text):
        """Upload a note, which replaces an older one of the same name."""
        self._call("/2/files/upload", {"path": path, "mode": "overwrite"}, text.encode())

    def read(self, path):
        """Return the text of a note."""
        return self._call("/2/files/download", {"path": path}, b"").decode()

    def _call(self, route, argument, body):
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Dropbox-API-Arg": json.dumps(argument),
            "Content-Type": "application/octet-stream",
        }
        for is_last_try in [False] * (self._tries - 1) + [True]:
            wait_s, problem = 0.1, None
            try:
                connection = http.client.HTTPSConnection(self._host, context=self._tls, timeout=30)
                connection.request("POST", route, body, headers)
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
            if is_last_try:
                raise problem
            self.waited_s.append(wait_s)
            self._sleep(wait_s)
