"""What a configuration means, and what it refuses. Asks the real binary only for its help."""

import dataclasses
import pickle
import subprocess
import unittest

from forebay import PDWorkers, RouterConfig, RouterConfigInvalid, find_binary

URLS = ["http://a:1", "http://b:2"]


def pairs(**more):
    return RouterConfig(pd_disagg=True, connector="nixl", prefill_policy="random", decode_policy="random", **more)


class Defaults(unittest.TestCase):
    def test_the_defaults_that_harnesses_rely_on(self):
        config = RouterConfig()
        self.assertEqual(config.policy, "round_robin")
        self.assertEqual(config.intra_node_data_parallel_size, 1)
        self.assertEqual(config.cb_failure_threshold, 5)
        self.assertEqual(config.cb_timeout_duration_secs, 30)
        self.assertEqual(config.retry_max_retries, 3)
        self.assertFalse(config.pd_disagg)
        self.assertEqual((config.connector, config.prefill_policy, config.decode_policy), (None, None, None))

    def test_what_is_not_given_is_left_to_the_binary(self):
        arguments = RouterConfig().arguments(URLS)
        expected = (
            "--policy round_robin --intra-node-data-parallel-size 1 --cb-failure-threshold 5 "
            "--cb-timeout-duration-secs 30 --retry-max-retries 3 --worker-startup-timeout-secs 600 "
            "--host 127.0.0.1 --port 0 --admin-host 127.0.0.1 --admin-port 0 "
            "--worker-urls http://a:1 http://b:2"
        )
        self.assertEqual(" ".join(arguments), expected)


class Arguments(unittest.TestCase):
    def test_numbers_truths_and_lists_are_written_as_the_binary_reads_them(self):
        config = RouterConfig(cache_threshold=0.5, disable_retries=True, hash_key=["x-session-id", "body"], seed=0)
        arguments = config.arguments(URLS)
        self.assertIn("--disable-retries=true", arguments)
        for flag, value in [("--cache-threshold", "0.5"), ("--hash-key", "x-session-id,body"), ("--seed", "0")]:
            self.assertEqual(arguments[arguments.index(flag) + 1], value)

    def test_extra_arguments_come_last(self):
        config = RouterConfig(extra_args=["--model-refresh-interval-secs", "3"])
        self.assertEqual(config.arguments(URLS)[-2:], ["--model-refresh-interval-secs", "3"])

    def test_ranks_are_a_flag(self):
        for size in (1, 8):
            arguments = RouterConfig(intra_node_data_parallel_size=size).arguments(URLS)
            self.assertEqual(arguments[arguments.index("--intra-node-data-parallel-size") + 1], str(size))

    def test_pairs_name_their_workers_by_role(self):
        workers = PDWorkers(prefill=[("http://p:1", 8998), ("http://p:2", None), "http://p:3"], decode=["http://d:1"])
        expected = (
            "--vllm-pd-disaggregation --kv-connector nixl --prefill-policy random --decode-policy random "
            "--prefill http://p:1 8998 --prefill http://p:2 none --prefill http://p:3 --decode http://d:1"
        )
        self.assertTrue(" ".join(pairs().arguments(workers)).endswith(expected))

    def test_keys_go_through_the_environment_and_into_no_command_line_or_repr(self):
        config = RouterConfig(api_key="worker-key", admin_api_key="admin-key")
        self.assertEqual(config.environment()["FOREBAY_API_KEY"], "worker-key")
        self.assertEqual(config.environment()["FOREBAY_ADMIN_API_KEY"], "admin-key")
        for place in (repr(config), " ".join(config.arguments(URLS))):
            self.assertNotIn("-key", place.replace("hash-key", "").replace("hash_key", ""))

    def test_each_field_that_is_a_flag_exists_in_the_binary(self):
        text = subprocess.run([find_binary(), "--help"], check=True, capture_output=True, text=True).stdout
        for field in dataclasses.fields(RouterConfig):
            if field.metadata.get("flag"):
                self.assertRegex(text, rf"--{field.name.replace('_', '-')}\b")


class Refusals(unittest.TestCase):
    def refused(self, expected, **fields):
        with self.assertRaises(RouterConfigInvalid) as raised:
            RouterConfig(**fields)
        self.assertTrue(str(raised.exception).startswith(expected), raised.exception)

    def test_the_fields_of_pairs_are_given_exactly_with_pd_disagg(self):
        whole = {"connector": "nixl", "prefill_policy": "random", "decode_policy": "random"}
        for name in whole:
            rest = {other: value for other, value in whole.items() if other != name}
            self.refused(f"{name}: it is needed with pd_disagg=True", pd_disagg=True, **rest)
            self.refused(f"{name}: it is for pd_disagg=True", **{name: whole[name]})

    def test_data_parallel_sizes_are_from_1_to_8(self):
        for size in (0, 9, -1):
            self.refused(
                f"intra_node_data_parallel_size: {size} is not from 1 to 8", intra_node_data_parallel_size=size
            )

    def test_a_value_of_another_kind_is_named(self):
        self.refused("policy: 3 is not a text", policy=3)
        self.refused("policy: None is not a text", policy=None)
        self.refused("seed: 1.5 is not a whole number", seed=1.5)
        self.refused("port: True is not a whole number", port=True)
        self.refused("cache_threshold: nan is not a number", cache_threshold=float("nan"))
        self.refused("disable_retries: 'yes' is not True or False", disable_retries="yes")
        self.refused("extra_args: '--seed 1' is not a list of texts", extra_args="--seed 1")
        self.refused("stop_timeout_secs: -1 is negative", stop_timeout_secs=-1)

    def test_an_extra_argument_that_has_a_field_is_refused(self):
        self.refused("extra_args: --port is given as port", extra_args=["--port=1"])
        self.refused("extra_args: --admin-api-key is given as admin_api_key", extra_args=["--admin-api-key", "k"])

    def test_workers_fit_pd_disagg(self):
        roles = PDWorkers(prefill=["http://p:1"], decode=["http://d:1"])
        for config, workers in [(RouterConfig(), roles), (pairs(), URLS), (RouterConfig(), "http://a:1")]:
            with self.assertRaises(RouterConfigInvalid):
                config.arguments(workers)
        for prefill, decode in [([], ["http://d:1"]), (["http://p:1"], []), ("http://p:1", ["http://d:1"])]:
            with self.assertRaises(RouterConfigInvalid):
                PDWorkers(prefill=prefill, decode=decode)

    def test_a_router_without_workers_needs_another_way_to_find_them(self):
        with self.assertRaises(RouterConfigInvalid):
            RouterConfig().arguments([])
        self.assertNotIn("--worker-urls", RouterConfig(extra_args=["--config", "f"]).arguments([]))

    def test_a_configuration_can_be_sent_to_another_process(self):
        config = RouterConfig(seed=3, extra_args=["--model-refresh-interval-secs", "3"])
        self.assertEqual(pickle.loads(pickle.dumps(config)), config)


if __name__ == "__main__":
    unittest.main()
