"""Real servers under load, reloaded meanwhile, with about half of the memory that they take: every answer is the plain
run's, nothing is said, the status is the same, and all processes together stay within the budget.

How the faults showed: workers of a server that has become another user said that they cannot read their memory; a
server that limits its address space crashed; what a server starts with an environment of its own had no budget; workers
that only read what their parent has loaded had a copy each, uncounted."""

import contextlib
import os
import shutil
import signal
import time
import unittest
from pathlib import Path

from servers import Run, ask_fastcgi, ask_http, find
from situation import HERE, Situation, unless_root

ENTRIES = 120_000
USER = "nobody"


def unless_found(*commands):
    missing = [c for c in commands if find(c) is None]
    return unittest.skipIf(missing, f"not installed (scripts/setup.sh): {' '.join(missing)}")


PHP = next((name for name in ("php-fpm", "php-fpm8.2", "php-fpm8.3", "php-fpm8.4") if find(name)), "php-fpm")


def key(number):
    return f"/{number * 7919 % ENTRIES:06}/of/a/map"


class Servers(Situation):
    def setUp(self):
        super().setUp()
        # Its sockets are for whoever the server becomes.
        self.dir.chmod(0o777)
        self.socket = self.dir / "socket"
        self.uris = [f"/?n={number % 24}" for number in range(48)]

    def ask(self, uri):
        return ask_http(self.socket, uri)

    def is_ready(self, _run):
        try:
            return self.ask(self.uris[0])[0] == 200
        except OSError:
            return False

    def pid_of(self, name):
        """What a server has written into a file, which it may take away and write anew at any moment."""
        try:
            return int((self.dir / name).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def reload(self, number, words, times=1, first=0):
        """A step: a signal, and what is said so many times when it is through. It is sent when that has been said
        `first` times: sooner, some servers do not hear it."""
        def step(run):
            run.wait_until(f"it says {words}", lambda: run.said().count(words) >= first)
            before = run.said().count(words)
            os.kill(run.pid, number)
            run.wait_until(f"it says {words} again", lambda: run.said().count(words) >= before + times)
        return step

    def once(self, argv, steps, end, ram=None, ask=None, **options):
        for name in (self.socket, self.dir / "pid", self.dir / "error"):
            name.unlink(missing_ok=True)
        run = Run(self, argv, self.is_ready, ram, **options)
        run.load(ask or self.ask, self.uris, *[lambda step=step: step(run) for step in steps])
        if ram:
            run.settle()
        status = run.end(*end) if isinstance(end, tuple) else end(run)
        return run, status

    def compare(self, argv, steps, end, ram, **options):
        """Both runs; `steps` are done under load, `end` are signals or a function that ends it."""
        plain, status = self.once(argv, steps, end, **options)
        self.assertEqual({len(set(answers)) for answers in plain.answers.values()}, {1}, plain.answers)
        ours, our_status = self.once(argv, steps, end, ram=ram, **options)
        self.assertEqual(ours.messages(), [], ours.said())
        self.assertEqual(ours.answers, plain.answers, ours.said())
        self.assertEqual(our_status, status, ours.said())
        self.assertLess(ours.most(), ours.budget() * 1.05)

    @unless_root
    @unless_found("haproxy")
    def test_haproxy_reloads_its_map(self):
        self.haproxy("48M")

    @unless_root
    @unless_found("haproxy")
    def test_haproxy_limits_itself(self):
        self.haproxy("48M", "-m", 300)

    def haproxy(self, ram, *options):
        (self.dir / "map").write_text("".join(f"/{n:06}/of/a/map value-{n:06}\n" for n in range(ENTRIES)))
        (self.dir / "conf").write_text(f"""
global
    user {USER}
    group nogroup
    nbthread 2
    hard-stop-after 60s
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 60s
frontend all
    bind unix@{self.socket} mode 666
    http-request return status 200 content-type text/plain lf-string "%[path,map({self.dir}/map,none)]"
""")
        self.uris = [key(n) for n in range(2000)]
        argv = (find("haproxy"), "-W", "-db", "-f", self.dir / "conf", *options)

        reload = self.reload(signal.SIGUSR2, "Former worker")
        self.compare(argv, [reload, reload], (signal.SIGTERM,), ram)

    def nginx(self, daemon="off"):
        (self.dir / "map").write_text("".join(f"/{n:06}/of/a/map value-{n:06};\n" for n in range(ENTRIES)))
        (self.dir / "conf").write_text(f"""
daemon {daemon};
{f"user {USER} nogroup;" if os.geteuid() == 0 else ""}
worker_processes 2;
pid {self.dir}/pid;
error_log {self.dir}/error notice;
events {{ }}
http {{
    access_log off;
    map_hash_max_size 400000;
    map_hash_bucket_size 128;
    map $uri $value {{ default none; include {self.dir}/map; }}
    client_body_temp_path {self.dir}/a; proxy_temp_path {self.dir}/b; fastcgi_temp_path {self.dir}/c;
    uwsgi_temp_path {self.dir}/d; scgi_temp_path {self.dir}/e;
    server {{ listen unix:{self.socket}; location / {{ return 200 $value; }} }}
}}
""")
        self.uris = [key(n) for n in range(2000)]
        return find("nginx"), "-p", self.dir, "-c", self.dir / "conf", "-e", self.dir / "error"

    @unless_found("nginx")
    def test_nginx_reloads(self):
        self.compare(self.nginx(), [lambda run: os.kill(run.pid, signal.SIGHUP)] * 2, (signal.SIGQUIT,), "24M")

    @unless_found("nginx")
    def test_nginx_is_upgraded(self):
        old = []

        def upgrade(run):
            old[:] = [self.pid_of("pid")]
            run.sessions.update(old)
            os.kill(*old, signal.SIGUSR2)
            run.wait_until("the new one is there", lambda: self.pid_of("pid") not in (None, *old))

        def leave(_run):
            os.kill(*old, signal.SIGQUIT)

        def end(run):
            return run.end(signal.SIGQUIT, pid=self.pid_of("pid"))

        # It is upgraded only if whoever started it has ended.
        self.compare(self.nginx(daemon="on"), [upgrade, leave], end, "24M")

    @unless_root
    @unless_found("uwsgi")
    def test_uwsgi_reloads(self):
        def end(run):
            # It may not hear the first one, so soon after a reload.
            while run.process.poll() is None:
                run.process.send_signal(signal.SIGINT)
                time.sleep(0.2)
            return run.end()

        def ask(uri):
            # A worker that hears of the reload as it accepts a connection resets it, also without farpage.
            with contextlib.suppress(ConnectionResetError):
                return self.ask(uri)
            return self.ask(uri)

        argv = (find("uwsgi"), "--plugin", "python3", "--http-socket", self.socket, "--chmod-socket=666", "--wsgi-file",
                HERE / "src" / "wsgi.py", "--master", "--processes", 4, "--uid", USER, "--lazy-apps", "--limit-as",
                1024, "--disable-logging")
        self.compare(argv, [self.reload(signal.SIGHUP, "WSGI app 0", 4, first=4)], end, "40M", ask=ask)

    @unless_found("gunicorn")
    def test_gunicorn_with_preloaded_data_reloads(self):
        # Before that a worker does not hear that it is to end.
        hook = "def post_worker_init(worker):\n    worker.log.info('it is ready')\n"
        (self.dir / "conf.py").write_text(hook)
        user = ("--user", USER) if os.geteuid() == 0 else ()
        argv = (find("gunicorn"), "--config", self.dir / "conf.py", "--preload", "--workers", 3, "--bind",
                f"unix:{self.socket}", "--pythonpath", HERE / "src", "--worker-tmp-dir", "/dev/shm", *user,
                "wsgi:application")
        self.compare(argv, [self.reload(signal.SIGHUP, "it is ready", 3, first=3)], (signal.SIGTERM,), "64M")

    @unless_root
    @unless_found(PHP)
    def test_php_fpm_reloads(self):
        script = Path(shutil.copy(HERE / "src" / "page.php", self.dir))
        (self.dir / "conf").write_text(f"""
[global]
error_log = {self.dir}/error
process_control_timeout = 60s
daemonize = no
[www]
user = {USER}
group = nogroup
listen = {self.socket}
listen.mode = 0666
pm = static
pm.max_children = 4
""")
        argv = (find(PHP), "-n", "-F", "-y", self.dir / "conf")
        self.ask = lambda uri: ask_fastcgi(self.socket, uri, script)
        self.compare(argv, [self.reload(signal.SIGUSR2, "ready to handle connections")] * 2, (signal.SIGQUIT,), "20M")


if __name__ == "__main__":
    unittest.main()
