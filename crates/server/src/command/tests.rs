mod bad;
mod pairs;

use super::*;
use bad::BAD;

fn run(arguments: &str) -> Result<Command, StartupError> {
    with_environment(arguments, |_| None)
}

fn with_environment(
    arguments: &str,
    environment: impl Fn(&'static str) -> Option<OsString>,
) -> Result<Command, StartupError> {
    let arguments = arguments.split(' ').filter(|argument| !argument.is_empty());
    parse(std::iter::once("forebay").chain(arguments).map(Into::into), environment)
}

fn served(arguments: &str) -> Settings {
    match run(arguments) {
        Ok(Command::Serve(settings)) => *settings,
        Ok(_) => panic!("{arguments}: not serve"),
        Err(error) => panic!("{arguments}: {error}"),
    }
}

fn refused(arguments: &str) -> String {
    match run(arguments) {
        Ok(_) => panic!("{arguments}: accepted"),
        Err(error) => {
            assert_eq!(error.exit_code(), 2);
            assert!(!error.to_string().contains('\n'), "{error}");
            error.to_string()
        }
    }
}

fn valid(name: &str) -> String {
    format!("{}/../../config/tests/valid/{name}.yaml", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn each_flag_refuses_a_bad_value_by_name_and_says_what_is_allowed() {
    for (flag, bad, allowed) in BAD {
        assert_eq!(refused(&format!("--{flag}={bad}")), format!("--{flag}: {bad} is not {allowed}"));
    }
    let secrets = ["api-key", "admin-api-key"];
    for flag in secrets {
        assert_eq!(
            refused(&format!("--{flag}=")),
            format!("--{flag}: it is empty; at least one character is needed")
        );
    }
    let files = ["worker-ca-file", "decision-log"];
    for flag in files {
        assert_eq!(refused(&format!("--{flag}=")), format!("--{flag}: \"\" is not the name of a file"));
    }
    assert!(refused("--worker-ca-file=/none.pem").starts_with("--worker-ca-file: /none.pem: "));
    let command = <Flags as Args>::augment_args(clap::Command::new("x"));
    assert_eq!(
        command.get_arguments().count(),
        BAD.len() + secrets.len() + files.len(),
        "a flag has no case"
    );
}

#[test]
fn what_clap_says_is_one_line_that_names_the_flag() {
    for (arguments, message) in [
        ("--port", "--port: no value is given; one is needed"),
        ("--prot 1", "--prot: there is no such flag; did you mean --port?"),
        ("--port 1 --port 2", "--port: it is given twice; once is allowed"),
        ("--admin-port 1 --prometheus-port 2", "--admin-port: it is given twice; once is allowed"),
        ("foo", "foo: there is no such command; serve, check, demo, sim and replay are allowed"),
        (
            "serve foo",
            "foo: a flag was expected here, or the command serve, check, demo, sim or replay first",
        ),
        ("--port 1 serve", "serve: a command stands before all flags"),
        (
            "--trust-forwarded maybe",
            "maybe: a value of --trust-forwarded stands after a =, and a command before all flags",
        ),
        ("sim --config x", "--config: there is no such flag"),
        ("--threads -1", "--threads: -1 is not a number of threads from 1 to 1024"),
        ("sim --workers -1", "--workers: -1 is not a number of workers from 1 to 64"),
        ("replay", "<FILE>: it is not given; it is needed"),
    ] {
        assert_eq!(refused(arguments), message, "{arguments}");
    }
}

#[test]
fn serve_may_be_left_out() {
    for prefix in ["", "serve "] {
        let settings =
            served(&format!("{prefix}--worker-urls http://a:1 http://b:1 --port 1 --worker-urls http://c:1"));
        assert_eq!(settings.worker_urls.len(), 3);
        assert_eq!(settings.listen.port, 1);
    }
    assert!(served("--worker-urls").worker_urls.is_empty());
}

#[test]
fn a_boolean_flag_alone_is_true_and_takes_a_value_after_an_equals_sign() {
    assert!(served("--trust-forwarded --port 1").router.trust_forwarded);
    assert!(served("--trust-forwarded=true").router.trust_forwarded);
    assert!(!served("--forward-unknown=false").router.forward_unknown);
    assert!(served("--forward-unknown").router.forward_unknown);
}

#[test]
fn the_spellings_of_vllm_router_are_understood() {
    let settings = served("--prometheus-host 127.0.0.2 --prometheus-port 5 --log-level warning");
    assert_eq!(settings.admin.addr().to_string(), "127.0.0.2:5");
    assert_eq!(settings.log.level, crate::settings::LogLevel::Warn);
    assert_eq!(served("--log-level critical").log.level, crate::settings::LogLevel::Error);
}

#[test]
fn a_file_for_an_access_log_that_nobody_writes_is_refused() {
    let file = "--access-log-file a.log";
    assert_eq!(refused(file), "--access-log-file: needs --access-log text or json");
    for said in ["--access-log json", "--access-log none"] {
        assert!(served(&format!("{said} {file}")).access_log.file.is_some(), "{said}");
    }
    assert_eq!(served("--access-log-file -").access_log.format, None);
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let settings = served(&format!("--config {} --port 7 --worker-urls http://flag:1", valid("full")));
    assert_eq!(settings.listen.port, 7);
    assert_eq!(settings.worker_urls[0].as_str(), "http://flag:1");
    assert_eq!(settings.worker_urls.len(), 1);
    assert_eq!(settings.admin.port, 29001);
    assert_eq!(settings.health, forebay_workers::HealthSettings::default());
}

#[test]
fn secrets_come_from_the_flag_else_the_file_else_the_environment() {
    let environment = |variable| Some(OsString::from(format!("env-{variable}")));
    let keys = |arguments: &str| match with_environment(arguments, environment) {
        Ok(Command::Serve(settings)) => {
            let shown = |key: Option<forebay_router::Secret>| key.unwrap().expose().to_owned();
            (shown(settings.router.api_key), shown(settings.router.admin_api_key))
        }
        _ => panic!("{arguments}"),
    };
    let file = format!("--config {}", valid("secrets"));
    assert_eq!(keys(""), ("env-FOREBAY_API_KEY".to_owned(), "env-FOREBAY_ADMIN_API_KEY".to_owned()));
    assert_eq!(keys(&file), ("file-key".to_owned(), "file-admin".to_owned()));
    assert_eq!(keys(&format!("{file} --admin-api-key flag")), ("file-key".to_owned(), "flag".to_owned()));
}

#[test]
fn an_empty_secret_in_the_environment_is_refused_by_its_variable() {
    let empty = |variable| (variable == "FOREBAY_ADMIN_API_KEY").then(OsString::new);
    let error = with_environment("", empty).err().unwrap();
    assert_eq!(error.to_string(), "FOREBAY_ADMIN_API_KEY: it is empty; at least one character is needed");
    assert_eq!(error.reason(), "flag_invalid");
}

#[test]
fn help_and_version_are_printed_not_refused() {
    for arguments in ["--help", "serve --help", "demo -h", "sim --help", "--version"] {
        assert!(matches!(run(arguments), Ok(Command::Print(_))), "{arguments}");
    }
    let Ok(Command::Print(help)) = run("--help") else { panic!("no help") };
    for heading in ["Listener:", "Workers:", "Policy:", "Health:", "Security:", "Logging:", "Exit codes:"] {
        assert!(help.contains(heading), "{heading}");
    }
}

#[test]
fn a_demo_has_its_own_workers() {
    assert!(
        refused("demo --worker-urls http://a:1").starts_with("--worker-urls: a demo brings its own workers")
    );
    assert_eq!(refused("demo --workers 0"), "--workers: 0 is not a number of workers from 1 to 64");
    let Ok(Command::Demo(demo)) = run("demo --workers 2 --port 0 --policy random") else { panic!("no demo") };
    assert_eq!((demo.workers, demo.settings.listen.port), (2, 0));
    assert_eq!(demo.settings.policy.kind, forebay_policy::PolicyKind::Random);
}
