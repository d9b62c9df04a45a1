"""Which answer becomes which exception."""

import json
import pickle
import unittest

from forebay import (
    AdminRefused,
    PDConnectorTimeout,
    RouterEnded,
    RouterFailure,
    RouterPolicyInvariant,
    RouterPoolExhausted,
    RouterStartupFailed,
    failure_from_answer,
    raise_for_failure,
)


def body(failure, **fields):
    error = {"message": "for people", "type": "x", "param": None, "code": 503}
    return json.dumps({"error": error, "forebay": {"failure": failure, **fields}}).encode()


class FromAnswers(unittest.TestCase):
    def test_an_exhausted_pool_has_its_numbers(self):
        told = body("router_pool_exhausted", retries=2, pool_size=3, open_circuits=1, unhealthy=1)
        failure = failure_from_answer(503, {"X-Forebay-Failure": "router_pool_exhausted"}, told)
        self.assertIsInstance(failure, RouterPoolExhausted)
        self.assertEqual((failure.retries, failure.pool_size, failure.open_circuits, failure.unhealthy), (2, 3, 1, 1))
        self.assertEqual((failure.status, failure.message), (503, "for people"))

    def test_a_leg_that_took_too_long_says_which_and_in_which_room(self):
        told = body("pd_connector_timeout", leg="prefill", timeout_secs=300, bootstrap_room=2**62)
        failure = failure_from_answer(504, {}, told)
        self.assertIsInstance(failure, PDConnectorTimeout)
        self.assertEqual((failure.leg, failure.timeout_secs, failure.bootstrap_room), ("prefill", 300, 2**62))

    def test_a_broken_invariant_names_its_counter(self):
        failure = failure_from_answer(500, {}, body("router_policy_invariant", counter="in_flight"))
        self.assertIsInstance(failure, RouterPolicyInvariant)
        self.assertEqual(failure.counter, "in_flight")

    def test_every_other_name_is_a_failure_with_its_fields(self):
        failure = failure_from_answer(504, {}, body("worker_timeout", stage="headers"))
        self.assertIs(type(failure), RouterFailure)
        self.assertEqual((failure.failure, failure.fields), ("worker_timeout", {"stage": "headers"}))

    def test_a_known_name_without_its_fields_is_still_a_failure(self):
        failure = failure_from_answer(503, {}, body("router_pool_exhausted", retries=2))
        self.assertIs(type(failure), RouterFailure)
        self.assertEqual(failure.failure, "router_pool_exhausted")

    def test_the_header_alone_is_enough_and_pairs_do_as_well(self):
        for headers in ({"x-forebay-failure": "worker_died"}, [("X-Forebay-Failure", "worker_died")]):
            self.assertEqual(failure_from_answer(502, headers, b"<html>").failure, "worker_died")

    def test_a_stream_tells_it_in_its_last_record(self):
        told = body("worker_died_mid_stream").decode()
        for stream in (f'data: {{"choices":[]}}\n\ndata: {told}\n\n', f"event: error\ndata: {told}\n\n"):
            failure = failure_from_answer(200, {}, stream.encode())
            self.assertEqual((failure.failure, failure.status), ("worker_died_mid_stream", 200))

    def test_the_dialect_of_the_responses_api_has_its_message_at_the_top(self):
        told = {"type": "error", "code": "x", "message": "it broke", "forebay": {"failure": "worker_died_mid_stream"}}
        self.assertEqual(failure_from_answer(200, {}, told).message, "it broke")

    def test_answers_of_workers_are_no_failures(self):
        for answer in (
            b"", b"{}", b"[1]", b'{"error":{"message":"m","code":400}}', b"data: [DONE]\n\n", b"\xff\xfe",
            b'{"choices":[{"message":{"content":"say \\"forebay\\": {\\"failure\\": \\"x\\"}"}}]}',
            b'{"forebay":"a model\'s own word"}',
            b'data: {"choices":[{"delta":{"content":"\\"forebay\\""}}]}\n\ndata: [DONE]\n\n',
        ):  # fmt: skip
            self.assertIsNone(failure_from_answer(200, {}, answer), answer)
            raise_for_failure(200, {}, answer)

    def test_raising(self):
        with self.assertRaises(RouterPolicyInvariant):
            raise_for_failure(500, {}, body("router_policy_invariant", counter="c"))


class Exceptions(unittest.TestCase):
    def test_they_say_what_happened_and_survive_pickling(self):
        cases = [
            (RouterPoolExhausted(1, 2, 2), "retries=1, pool_size=2, open_circuits=2"),
            (PDConnectorTimeout("decode", 120, 7), "leg=decode, timeout_secs=120, bootstrap_room=7"),
            (RouterPolicyInvariant("in_flight"), "counter=in_flight"),
            (
                RouterFailure("worker_timeout", 504, "slow", {"stage": "headers"}),
                "worker_timeout (stage=headers): slow",
            ),
            (RouterStartupFailed("port_in_use", "--port: taken", 3, "a line"), "port_in_use: --port: taken"),
            (RouterEnded(-9, "a line"), "exit code -9"),
            (AdminRefused(409, "busy", {"in_flight": [{"id": "r"}]}), "409: busy"),
        ]
        for error, text in cases:
            self.assertIn(text, str(error))
            copy = pickle.loads(pickle.dumps(error))
            self.assertIs(type(copy), type(error))
            self.assertEqual((str(copy), copy.__dict__), (str(error), error.__dict__))


if __name__ == "__main__":
    unittest.main()
