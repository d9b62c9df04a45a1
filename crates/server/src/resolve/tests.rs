use crate::rules::HASH_SOURCE;
use forebay_policy::{PolicyKind, SettingsError};

use super::*;

fn given(text: &str) -> Option<Given> {
    Some(Given::from_flag(text.to_owned()))
}

#[test]
fn without_flags_the_settings_are_the_defaults_but_for_the_seed() {
    let mut drawn = settings(Flags::default()).unwrap();
    drawn.seed = Settings::default().seed;
    assert_eq!(format!("{drawn:?}"), format!("{:?}", Settings::default()));
}

#[test]
fn a_seed_is_drawn_unless_it_is_given() {
    let seed = |flags| settings(flags).unwrap().seed;
    assert_ne!(seed(Flags::default()), seed(Flags::default()));
    assert_eq!(seed(Flags { seed: given("7"), ..Flags::default() }), 7);
}

#[test]
fn the_policy_crate_accepts_every_limit_that_is_accepted_here() {
    for (share, factor) in [("0", "1"), ("1", "1e300")] {
        let flags = Flags {
            cache_threshold: given(share),
            balance_rel_threshold: given(factor),
            max_tree_size: given("1048576"),
            eviction_interval_secs: given("0"),
            ..Flags::default()
        };
        assert_eq!(settings(flags).unwrap().policy.validate(), Ok::<(), SettingsError>(()));
    }
}

#[test]
fn the_two_listeners_must_not_want_the_same_socket() {
    let on = |host, port, admin_host, admin_port| {
        let flags = Flags {
            host: given(host),
            port: given(port),
            admin_host: given(admin_host),
            admin_port: given(admin_port),
            ..Flags::default()
        };
        settings(flags).is_ok()
    };
    assert!(!on("127.0.0.1", "80", "127.0.0.1", "80"));
    assert!(!on("0.0.0.0", "80", "127.0.0.1", "80"));
    assert!(on("127.0.0.2", "80", "127.0.0.1", "80"));
    assert!(on("127.0.0.1", "0", "127.0.0.1", "0"));
    // The default of the other one.
    let error = settings(Flags { port: given("29000"), ..Flags::default() }).unwrap_err();
    assert_eq!(error.problem, "29000 is also --port; the two must differ");
}

#[test]
fn the_rule_for_hash_sources_names_every_source() {
    for (name, _) in forebay_router::HASH_SOURCES {
        assert!(HASH_SOURCE.allowed.contains(name), "{name}");
    }
    for kind in PolicyKind::ALL {
        assert!(POLICY.allowed.contains(kind.as_str()), "{kind}");
    }
}

#[test]
fn a_secret_is_never_shown() {
    for bad in ["pass word", "päss", "pass\nword"] {
        let error = settings(Flags { admin_api_key: given(bad), ..Flags::default() }).unwrap_err();
        assert!(!error.problem.contains(bad), "{}", error.problem);
    }
    let good = settings(Flags { api_key: given("hunter2"), ..Flags::default() }).unwrap();
    assert!(!format!("{good:?}").contains("hunter2"));
}
