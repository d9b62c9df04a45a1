"""The launcher with the real binary in front of simulated workers, and with programs that misbehave."""

import contextlib
import io
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from unittest import mock

from forebay import (
    AdminRefused,
    Router,
    RouterConfig,
    RouterConfigInvalid,
    RouterEnded,
    RouterFailure,
    RouterPoolExhausted,
    RouterStartupFailed,
    SimWorkers,
    demo,
    facts,
    failure_from_answer,
    find_binary,
)
from forebay.client import ask, connect, send
from forebay.demo import conversations, run_trial
from forebay.process import LOG_BYTES

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
#: Nobody listens on port 1 of the loopback interface.
NOBODY = ["http://127.0.0.1:1"]


class WithWorkers(unittest.TestCase):
    """Tests that share simulated workers."""

    @classmethod
    def setUpClass(cls):
        cls.sim = SimWorkers(4)
        cls.workers = cls.sim.__enter__()
        cls.addClassCleanup(cls.sim.stop)

    def test_a_router_is_ready_inside_and_gone_outside(self):
        with Router(RouterConfig(), self.workers) as router:
            self.assertEqual(ask("POST", router.url, "/v1/chat/completions", CHAT).status, 200)
            self.assertEqual(len(router.workers()), 4)
            self.assertIn("forebay_", router.metrics())
            router.check_invariants()
        self.assertEqual(router.stop(), 0)
        with self.assertRaises(OSError):
            ask("GET", router.url, "/health", timeout_secs=5)

    def test_two_routers_at_a_time_take_ports_of_their_own(self):
        config = RouterConfig()
        with Router(config, self.workers) as first, Router(config, self.workers) as second:
            urls = {first.url, first.admin_url, second.url, second.admin_url}
            self.assertEqual(len(urls), 4)

    def trial(self, router, **reset):
        """The final report of a trial that begins with a reset, or as the one before ended."""
        if reset:
            router.reset("t", seed=7, **reset)
        replies = run_trial(router.url, conversations(seed=7))
        report = router.end_trial()
        self.assertTrue(report["final"])
        self.assertEqual(report["requests"]["ended"], len(replies))
        if router.config.policy == "cache_aware":
            cached = sum(reply.cached_tokens for reply in replies)
            self.assertEqual(report["cache"]["reported_cached_tokens"], cached)
        return report

    def test_equal_trials_are_equal_because_of_the_reset(self):
        for policy in ("cache_aware", "round_robin"):
            with Router(RouterConfig(policy=policy, seed=7), self.workers) as router:
                first, second = (self.trial(router, reset_workers_prefix_cache=True) for _ in range(2))
                third = self.trial(router)
            self.assertEqual((first["trial"], first["comparable"]), ("t", True), first["reasons"])
            self.assertEqual(facts(first), facts(second))
            self.assertNotEqual(facts(second), facts(third))
            self.assertNotEqual(first["epoch"], second["epoch"])

    def test_equal_trials_that_requests_name_are_equal(self):
        def told(router):
            router.reset("t", seed=7, reset_workers_prefix_cache=True)
            for name in ("a", "b", "a"):
                named = {"x-forebay-trial": name}
                self.assertEqual(ask("POST", router.url, "/v1/chat/completions", CHAT, named).status, 200)
            return facts(router.end_trial())

        with Router(RouterConfig(policy="round_robin", seed=7), self.workers) as router:
            first, second = (told(router) for _ in range(2))
        self.assertEqual([trial["requests"]["ended"] for trial in first["trials"]], [1, 2])
        self.assertEqual(first, second)

    def test_a_report_is_had_while_its_trial_runs_and_long_after(self):
        with Router(RouterConfig(), self.workers) as router:
            epoch = router.reset("t-0042", only=["policies"])["epoch"]
            self.assertEqual((router.report()["epoch"], router.report()["final"]), (epoch, False))
            self.assertEqual(router.end_trial()["trial"], "t-0042")
            self.assertEqual(router.report(epoch)["trial"], "t-0042")
            with self.assertRaises(AdminRefused) as raised:
                router.report(epoch + 100)
            self.assertEqual(raised.exception.status, 404)

    def test_a_reset_that_needs_idleness_names_the_requests_in_flight(self):
        with Router(RouterConfig(stop_timeout_secs=0), self.workers) as router:
            connection = connect(router.url, 30)
            self.addCleanup(connection.close)
            stream = send(connection, "POST", "/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": 8000})
            self.addCleanup(stream.close)
            self.assertEqual((stream.status, stream.read(5)), (200, b"data:"))
            with self.assertRaises(AdminRefused) as raised:
                router.reset(require_idle=True)
            self.assertEqual(raised.exception.status, 409)
            self.assertEqual([request["route"] for request in raised.exception.in_flight], ["/v1/chat/completions"])

    def test_a_reset_that_cannot_be_is_refused_with_the_reason(self):
        with Router(RouterConfig(), self.workers) as router:
            with self.assertRaises(AdminRefused) as raised:
                router.reset(seed=-1)
            self.assertEqual(raised.exception.status, 400)
            with self.assertRaises(TypeError):
                router.reset(only="policies")

    def test_the_admin_key_is_shown_when_there_is_one(self):
        with Router(RouterConfig(admin_api_key="secret", admin_host="0.0.0.0"), self.workers) as router:
            self.assertTrue(router.admin_url.startswith("http://127.0.0.1:"), router.admin_url)
            router.reset()
            forwarded = {"x-forwarded-for": "10.0.0.1"}
            self.assertEqual(ask("POST", router.admin_url, "/admin/reset", headers=forwarded).status, 403)

    def test_proxies_of_the_environment_are_not_asked(self):
        with mock.patch.dict(os.environ, {"http_proxy": NOBODY[0], "HTTP_PROXY": NOBODY[0], "ALL_PROXY": NOBODY[0]}):
            with Router(RouterConfig(), self.workers) as router:
                self.assertEqual(len(router.workers()), 4)

    def test_a_router_that_dies_inside_is_noticed(self):
        with self.assertRaises(RouterEnded) as raised:
            with Router(RouterConfig(), self.workers) as router:
                os.kill(router.pid, signal.SIGKILL)
                with self.assertRaises(RouterEnded):
                    while True:
                        router.workers()
        self.assertEqual(raised.exception.exit_code, -signal.SIGKILL)

    def test_what_the_harness_raises_is_not_replaced(self):
        with self.assertRaises(ZeroDivisionError):
            with Router(RouterConfig(), self.workers) as router:
                os.kill(router.pid, signal.SIGKILL)
                raise ZeroDivisionError

    def test_a_stream_that_does_not_end_is_cut_after_the_patience(self):
        with Router(RouterConfig(stop_timeout_secs=0.2), self.workers) as router:
            connection = connect(router.url, 30)
            self.addCleanup(connection.close)
            endless = {**CHAT, "stream": True, "max_tokens": 8000}
            stream = send(connection, "POST", "/v1/chat/completions", endless)
            self.assertEqual((stream.status, stream.read(5)), (200, b"data:"))
            begun = time.monotonic()
            self.assertEqual(router.stop(), -signal.SIGKILL)
            self.assertLess(time.monotonic() - begun, 30)

    def test_a_harness_that_forgets_its_router_takes_it_along(self):
        script = "import sys, forebay; print(forebay.Router(forebay.RouterConfig(), sys.argv[1:]).start().pid)"
        ran = subprocess.run([sys.executable, "-c", script, *self.workers], capture_output=True, text=True, timeout=60)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        with self.assertRaises(ProcessLookupError):
            os.kill(int(ran.stdout), 0)

    def test_a_harness_that_is_killed_takes_its_router_along(self):
        script = "import sys, signal, forebay; r = forebay.Router(forebay.RouterConfig(), sys.argv[1:]).start()"
        script += "; print(r.pid, flush=True); signal.pause()"
        harness = subprocess.Popen([sys.executable, "-c", script, *self.workers], stdout=subprocess.PIPE)
        try:
            end = os.pidfd_open(int(harness.stdout.readline()))
        finally:
            harness.kill()
            harness.wait()
            harness.stdout.close()
        self.addCleanup(os.close, end)
        self.assertEqual(select.select([end], [], [], 30)[0], [end], "it has outlived its harness")

    def test_lines_of_an_access_log_on_stdout_are_not_kept(self):
        with Router(RouterConfig(extra_args=["--access-log", "json"]), self.workers) as router:
            self.assertEqual(ask("POST", router.url, "/v1/chat/completions", CHAT).status, 200)
        # All is read now that it has ended.
        self.assertEqual([event for event in router._process._events.queue if event], [])

    def test_a_router_is_started_once(self):
        with Router(RouterConfig(), self.workers) as router:
            with self.assertRaises(RuntimeError):
                router.start()
        with self.assertRaises(RuntimeError):
            Router(RouterConfig(), self.workers).workers()


class Demo(unittest.TestCase):
    def test_its_two_trials_print_the_same_counts(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(demo.main(), 0)
        first, second = [line for line in printed.getvalue().splitlines() if "prompt tokens cached" in line]
        self.assertEqual(first.split("TTFT")[0].replace("demo-1", "demo-2"), second.split("TTFT")[0])
        self.assertRegex(first, "21 answers, [1-9][0-9]* of ")
        self.assertIn("equal but for times: True", printed.getvalue())


class Failures(unittest.TestCase):
    def test_workers_that_are_gone_are_an_exhausted_pool(self):
        sim = SimWorkers(2)
        with sim as workers, Router(RouterConfig(), workers) as router:
            sim.stop()
            answer = ask("POST", router.url, "/v1/chat/completions", CHAT)
        failure = failure_from_answer(*answer)
        self.assertIsInstance(failure, RouterPoolExhausted)
        self.assertEqual(failure.pool_size, 2)
        self.assertEqual(failure.status, 503)

    def test_a_model_that_nobody_has_is_a_failure_by_name(self):
        with SimWorkers(1) as workers, Router(RouterConfig(), workers) as router:
            answer = ask("POST", router.url, "/v1/chat/completions", {**CHAT, "model": "nobody's"})
            failure = failure_from_answer(*answer)
        self.assertIs(type(failure), RouterFailure)
        self.assertEqual((failure.failure, failure.status), ("router_model_unknown", 404))


class FailedStarts(unittest.TestCase):
    def failed(self, config, workers=NOBODY):
        with self.assertRaises(RouterStartupFailed) as raised:
            with Router(config, workers):
                self.fail("it started")
        return raised.exception

    def test_a_flag_that_cannot_be(self):
        error = self.failed(RouterConfig(policy="nobody's"))
        self.assertEqual((error.reason, error.exit_code), ("flag_invalid", 2))
        self.assertIn("--policy: nobody's is not", error.message)

    def test_an_extra_flag_that_there_is_not(self):
        self.assertEqual(self.failed(RouterConfig(extra_args=["--no-such-flag"])).reason, "flag_invalid")

    def test_a_config_file_that_cannot_be_read(self):
        self.assertEqual(self.failed(RouterConfig(extra_args=["--config", "/nowhere"])).reason, "config_invalid")

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            error = self.failed(RouterConfig(port=port))
        self.assertEqual((error.reason, error.exit_code), ("port_in_use", 3))
        self.assertIn(str(port), error.message)

    def test_workers_that_do_not_come(self):
        error = self.failed(RouterConfig(worker_startup_timeout_secs=0.2))
        self.assertEqual((error.reason, error.exit_code), ("no_worker_ready", 4))

    def test_a_binary_that_is_missing(self):
        self.assertEqual(self.failed(RouterConfig(binary="/nowhere/forebay")).reason, "binary_missing")
        with mock.patch.dict(os.environ, {"FOREBAY_BINARY": "/nowhere/else"}):
            error = self.failed(RouterConfig())
            self.assertEqual(error.reason, "binary_missing")
            self.assertEqual(error.message, "FOREBAY_BINARY: /nowhere/else does not exist")

    def test_a_binary_that_the_system_does_not_run(self):
        with tempfile.NamedTemporaryFile() as file:
            self.assertEqual(self.failed(RouterConfig(binary=file.name)).reason, "binary_unusable")

    def test_a_configuration_is_refused_before_anything_starts(self):
        with self.assertRaises(RouterConfigInvalid):
            Router(RouterConfig(), [])


class Impostors(unittest.TestCase):
    """Programs in the binary's place that do what it never should."""

    def run_program(self, program, **fields):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = os.path.join(directory.name, "forebay")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\nimport os, signal, sys\n{textwrap.dedent(program)}")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        with self.assertRaises(RouterStartupFailed) as raised:
            Router(RouterConfig(binary=path, **fields), NOBODY).start()
        return raised.exception

    def test_one_that_says_nothing_and_ignores_sigterm_is_ended(self):
        silent = """
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print('{"event":"other"}', flush=True)
            signal.pause()
        """
        with mock.patch("forebay.router._START_GRACE_SECS", 0.5):
            error = self.run_program(silent, worker_startup_timeout_secs=0)
        self.assertEqual(error.reason, "start_timeout")

    def test_one_that_ends_without_a_word(self):
        error = self.run_program("sys.exit(0)")
        self.assertEqual((error.reason, error.exit_code), ("ended", 0))

    def test_one_that_is_killed(self):
        error = self.run_program("os.kill(os.getpid(), signal.SIGKILL)")
        self.assertEqual((error.reason, error.message, error.exit_code), ("killed", "by SIGKILL", -9))

    def test_of_an_endless_log_the_end_is_kept(self):
        error = self.run_program(f"sys.stderr.write('x' * {4 * LOG_BYTES} + '\\nthe last line\\n'); sys.exit(1)")
        self.assertEqual(error.log, "the last line\n")
        error = self.run_program(f"sys.stderr.write('y' * {4 * LOG_BYTES}); sys.exit(1)")
        self.assertEqual(error.log, "y" * LOG_BYTES)
        self.assertIn("yyy", str(error))


class Binaries(unittest.TestCase):
    def test_without_a_name_the_installed_one_or_the_one_in_the_path_is_taken(self):
        real = find_binary()
        with tempfile.TemporaryDirectory() as directory:
            os.symlink(real, os.path.join(directory, "forebay"))
            with mock.patch.dict(os.environ, {"FOREBAY_BINARY": "", "PATH": directory}):
                with mock.patch("forebay.binary._installed", return_value=iter([])):
                    self.assertEqual(find_binary(), os.path.join(directory, "forebay"))
            with mock.patch.dict(os.environ, {"FOREBAY_BINARY": "", "PATH": ""}):
                with mock.patch("forebay.binary._installed", return_value=iter([])):
                    with self.assertRaises(RouterStartupFailed):
                        find_binary()


if __name__ == "__main__":
    unittest.main()
