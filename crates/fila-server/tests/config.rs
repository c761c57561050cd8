#![cfg(test)] // helpers may unwrap, as tests do
//! The sources of a configuration, and the reports of mistakes in them.

use std::ffi::OsString;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use fila_server::config::{
    ByteSize, Config, ConfigError, Key, Loader, Location, LogFormat, StorageEngine,
};
use fila_store::Durability;
use proptest::prelude::*;
use tempfile::TempDir;

/// A directory with a `fila.toml`.
struct Dir(TempDir);

impl Dir {
    fn with(text: &str) -> Self {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("fila.toml"), text).unwrap();
        Self(dir)
    }

    fn loader(&self) -> Loader {
        Loader::new().directory(self.0.path())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("fila.toml")
    }

    /// Returns the error's lines, with the file's path as short as a user would see it.
    fn lines(&self, error: &ConfigError) -> Vec<String> {
        let path = self.file().display().to_string();
        let text = error.to_string().replace(&path, "fila.toml");
        text.lines().map(str::to_owned).collect()
    }
}

fn refused(text: &str) -> Vec<String> {
    let dir = Dir::with(text);
    dir.lines(&dir.loader().load().unwrap_err())
}

#[test]
fn without_sources_there_are_the_defaults() {
    let dir = TempDir::new().unwrap();
    let config = Loader::new().directory(dir.path()).load().unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.server.address.to_string(), "127.0.0.1:5555");
    assert_eq!(config.storage.memory_budget.bytes(), 256 << 20);
    assert_eq!(config.limits.delay, Duration::from_millis(31_536_000_000));
}

#[test]
fn a_file_sets_values_of_every_type() {
    let dir = Dir::with(
        r#"
        server = { address = "[::1]:7000", worker_threads = 3, shutdown_timeout_ms = 0, insecure = true }
        [storage]
        cache = 0x10_0000
        path = "/var/lib/fila \"1\""
        engine = "memory"
        durability = "os"
        memory_budget = "1.5 GiB"
        [telemetry]
        log_format = "json"
        otlp_endpoint = "http://localhost:4317"
        trace_ratio = 1
        "#,
    );
    let config = dir.loader().load().unwrap();
    assert_eq!(config.server.worker_threads, NonZeroUsize::new(3));
    assert_eq!(config.server.shutdown_timeout, Duration::ZERO);
    assert!(config.server.insecure);
    assert_eq!(config.storage.path, PathBuf::from("/var/lib/fila \"1\""));
    assert_eq!(config.storage.engine, StorageEngine::Memory);
    assert_eq!(config.storage.durability, Durability::Os);
    assert_eq!(config.storage.memory_budget, ByteSize::mib(1536));
    assert_eq!(config.storage.cache, ByteSize::mib(1));
    assert_eq!(config.telemetry.log_format, LogFormat::Json);
    assert_eq!(
        config.telemetry.otlp_endpoint.unwrap().host(),
        Some("localhost")
    );
}

#[test]
fn flags_are_stronger_than_variables_and_variables_than_the_file() {
    let dir = Dir::with("[limits]\nqueues = 1\nconsumers = 1\nconnections = 1\n");
    let config = dir
        .loader()
        .variables([
            ("FILA_LIMITS__CONSUMERS", "2"),
            ("FILA_LIMITS__CONNECTIONS", "2"),
        ])
        .set("limits.connections=3")
        .load()
        .unwrap();
    let limits = config.limits;
    let got = [limits.queues, limits.consumers, limits.connections];
    assert_eq!(got.map(NonZeroUsize::get), [1, 2, 3]);
}

#[test]
fn a_named_file_is_stronger_than_the_variable_and_both_than_the_directory() {
    let [default, variable, named] =
        ["a", "b", "c"].map(|name| Dir::with(&format!("[storage]\npath = \"{name}\"\n")));
    let path = |loader: Loader| loader.load().unwrap().storage.path;
    let by_variable = [(OsString::from("FILA_CONFIG"), variable.file())];

    assert_eq!(path(default.loader()), PathBuf::from("a"));
    assert_eq!(
        path(default.loader().variables(by_variable.clone())),
        PathBuf::from("b")
    );
    assert_eq!(
        path(default.loader().variables(by_variable).file(named.file())),
        PathBuf::from("c")
    );
}

#[test]
fn a_named_file_must_exist() {
    let missing = "/nowhere/fila.toml";
    let error = Loader::new().file(missing).load().unwrap_err().to_string();
    let start = "/nowhere/fila.toml: the file cannot be read: ";
    assert!(error.starts_with(start), "{error}");

    let by_variable = Loader::new().variables([("FILA_CONFIG", missing)]);
    let error = by_variable.load().unwrap_err().to_string();
    let start = "/nowhere/fila.toml: the file, which FILA_CONFIG names, cannot be read: ";
    assert!(error.starts_with(start), "{error}");
}

#[test]
fn a_problem_is_one_line_whatever_was_given() {
    let dir = Dir::with("[storage]\ndurability = \"a\\nb\"\n\"x\\u001b[2J\" = 1\n");
    let error = dir.loader().set("server.a\nb=1").load().unwrap_err();
    let lines = dir.lines(&error);
    assert_eq!(lines.len(), 3);
    assert!(lines[0].contains(r"`a\nb` is no level"), "{lines:?}");
    assert!(lines[1].contains(r"`x\u{1b}[2J` is no key"), "{lines:?}");
    assert!(lines[2].starts_with(r"--set server.a\nb: "), "{lines:?}");
}

#[test]
fn a_file_that_is_no_text_or_has_no_end_is_refused() {
    let dir = Dir::with("");
    fs::write(dir.file(), [0xff, 0xfe]).unwrap();
    assert!(dir.lines(&dir.loader().load().unwrap_err())[0].contains("invalid utf-8"));
    fs::write(dir.file(), " ".repeat((1 << 20) + 1)).unwrap();
    assert!(dir.lines(&dir.loader().load().unwrap_err())[0].contains("larger than 1048576 bytes"));
}

#[test]
fn mistakes_in_the_file_are_reported_together_each_with_its_place() {
    let lines = refused(concat!(
        "queues = 5\n",
        "[storage]\n",
        "durability = \"fsyn\"\n",
        "memory_budget = \"256 MB!\"\n",
        "[server]\n",
        "adress = \"127.0.0.1:1\"\n",
        "worker_threads = \"4\"\n",
        "[limits]\n",
        "fairness_key_bytes = 513\n",
        "headers = -1\n",
        "delay_ms = [1]\n",
        "frobnication = 1\n",
        "[telemtry]\n",
    ));
    assert_eq!(
        lines,
        [
            "fila.toml:1:1: `queues` belongs below `[limits]`",
            "fila.toml:3:14: storage.durability: `fsyn` is no level of durability; choose `fsync`, `os` or `memory`",
            "fila.toml:4:17: storage.memory_budget: `256 MB!` is no size; write bytes as `65536`, or with a unit as \
             `64 KiB`, `256 MiB`, `1 GB`",
            "fila.toml:6:1: `adress` is no key of [server]; did you mean `address`?",
            "fila.toml:7:18: server.worker_threads: expected a whole number from 0 to 1024, got the string `4`",
            "fila.toml:9:22: limits.fairness_key_bytes: expected a size from `1 B` to `512 B`, got `513`",
            "fila.toml:10:11: limits.headers: expected a whole number from 0 to 1024, got `-1`",
            "fila.toml:11:12: limits.delay_ms: expected milliseconds from 0 to 3153600000000, got an array",
            "fila.toml:12:1: `frobnication` is no key of [limits]; choose `payload_bytes`, `headers`, `header_bytes`, \
             `fairness_key_bytes`, `queues`, `keys_per_queue`, `depth_per_queue`, `depth_per_key`, \
             `delayed_per_queue`, `deduplication_ids_per_queue`, `key_settings_per_queue`, `consumers`, \
             `in_flight_per_consumer`, `prefetch_default`, `produce_window`, `batch_messages`, `delay_ms`, \
             `connections`, `buffered_bytes`, `receiving_bytes`, `config_entries`, `config_key_bytes`, \
             `config_value_bytes` or `config_bytes`",
            "fila.toml:13:2: `telemtry` is no section; did you mean `telemetry`?",
        ]
    );
}

#[test]
fn what_is_no_toml_is_reported_with_its_place_and_nothing_is_guessed_behind_it() {
    let lines = refused("[server]\naddress = \nport = 1\n[storage\n");
    assert_eq!(
        lines,
        [
            "fila.toml:2:11: string values must be quoted, expected literal string",
            "fila.toml:4:9: unclosed table, expected `]`",
        ]
    );
}

#[test]
fn a_section_that_is_a_value_is_refused() {
    assert_eq!(
        refused("server = 5\n"),
        ["fila.toml:1:1: `server` is a section; write `[server]`"]
    );
}

#[test]
fn columns_are_counted_in_characters() {
    let lines = refused("storage = { path = \"größe\", engine = \"lmdb\" }\n");
    let engine = Key::all().find(|key| key.name() == "engine");
    let engines = engine.unwrap().allowed();
    assert_eq!(
        lines,
        [format!(
            "fila.toml:1:38: storage.engine: `lmdb` is no engine; choose {engines}"
        )]
    );
}

#[test]
#[cfg(feature = "rocksdb")]
fn an_engine_that_was_built_in_can_be_chosen() {
    let config = Loader::new().set("storage.engine=rocksdb").load().unwrap();
    assert_eq!(config.storage.engine, StorageEngine::Rocksdb);
    assert!(config.to_toml().contains("engine = \"rocksdb\""));
}

#[test]
#[cfg(not(feature = "rocksdb"))]
fn an_engine_that_was_not_built_in_is_refused_as_such() {
    let error = Loader::new()
        .set("storage.engine=rocksdb")
        .load()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "--set storage.engine: this build has no engine `rocksdb`; build one that has it with \
         `cargo build --release -p fila-cli --features rocksdb`, or choose `lsm` or `memory`"
    );
}

#[test]
fn mistakes_in_variables_are_reported_by_name_and_foreign_variables_ignored() {
    let variables = [
        ("FILA_LIMITS__QUEUES", "0"),
        ("FILA_SERVER__INSECURE", "yes"),
        ("FILA_SERVER__ADRESS", "127.0.0.1:1"),
        ("FILA_STORAGE_PATH", "/data"),
        ("FILA_TELEMETRY__TRACE_RATIO", "NaN"),
        ("FILA_TELEMETRY__LOG", "inof"),
        ("FILA_TELEMETRY__OTLP_ENDPOINT", "https://collector:4317"),
        ("FILA_SERVER_PORT", "tcp://10.0.0.1:5555"), // as Kubernetes sets it
        ("FILA_CLIENT__URL", "http://localhost"),
        ("FILA_SERVER__WORKER_THREADS", ""),
    ];
    let error = Loader::new().variables(variables).load().unwrap_err();
    let lines: Vec<String> = error.to_string().lines().map(str::to_owned).collect();
    assert_eq!(
        lines,
        [
            "FILA_LIMITS__QUEUES: expected a whole number from 1 to 1000000, got `0`",
            "FILA_SERVER__ADRESS: `adress` is no key of [server]; did you mean `address`?",
            "FILA_SERVER__INSECURE: expected `true` or `false`, got `yes`",
            "FILA_STORAGE_PATH: a section is followed by two underscores; write `FILA_STORAGE__PATH`",
            "FILA_TELEMETRY__LOG: `inof` is no filter of log lines; write `off`, `error`, `warn`, `info`, `debug` or \
             `trace`, or such levels per target, as `warn,fila_server=debug`",
            "FILA_TELEMETRY__OTLP_ENDPOINT: `https://collector:4317` asks for TLS, which the export does not speak \
             yet; send to a collector on this machine, as `http://localhost:4317`",
            "FILA_TELEMETRY__TRACE_RATIO: expected a number from 0 to 1, got `NaN`",
        ]
    );
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let value = OsString::from_vec(vec![0xff]);
    let variables = [(OsString::from("FILA_STORAGE__PATH"), value)];
    let error = Loader::new().variables(variables).load().unwrap_err();
    assert_eq!(
        error.to_string(),
        "FILA_STORAGE__PATH: expected a path, got bytes that are not UTF-8"
    );
}

#[test]
fn mistakes_in_flags_are_reported_as_they_were_given() {
    let error = Loader::new()
        .flag("--threads", "scheduler.threads", "65")
        .set("scheduler.quantums=1")
        .set("schedule.quantum=1")
        .set("quantum=1")
        .set("quantum")
        .set("scheduler.threads=2")
        .load()
        .unwrap_err();
    let lines: Vec<String> = error.to_string().lines().map(str::to_owned).collect();
    assert_eq!(
        lines,
        [
            "--threads: expected a whole number from 1 to 64, got `65`",
            "--set scheduler.quantums: `quantums` is no key of [scheduler]; did you mean `quantum`?",
            "--set schedule.quantum: `schedule` is no section; did you mean `scheduler`?",
            "--set quantum: `quantum` names no section; write `--set section.key=value`",
            "--set: `quantum` sets nothing; write `--set section.key=value`",
            "--set scheduler.threads: `scheduler.threads` is already set by `--threads`; give one of them",
        ]
    );
}

#[test]
fn an_address_that_others_can_reach_needs_tls_and_certificates_of_clients() {
    let open = Loader::new()
        .set("server.address=0.0.0.0:5555")
        .set("tls.certificate_file=server.pem")
        .set("tls.key_file=server.key");
    let error = open.clone().load().unwrap_err().to_string();
    assert!(error.contains("does not authenticate clients"), "{error}");
    let open = open.set("tls.client_ca_file=ca.pem");
    for choice in ["optional", "required"] {
        let loaded = open
            .clone()
            .set(format!("tls.client_certificates={choice}"))
            .load();
        assert_eq!(loaded.is_ok(), choice == "required");
    }
}

#[test]
fn values_of_tls_that_need_others_are_refused_without_them() {
    let refused = [
        (&["tls.certificate_file=a"][..], "tls.key_file is not"),
        (&["tls.key_file=a"], "tls.certificate_file is not"),
        (&["tls.client_ca_file=a"], "asks for no certificates"),
        (
            &["tls.client_certificates=optional"],
            "set tls.client_ca_file",
        ),
        (
            &["tls.client_certificates=optional", "tls.client_ca_file=a"],
            "there is no TLS",
        ),
        (&["server.probe_metrics=true"], "set server.probe_address"),
        (
            &["tls.client_certificates=maybe"],
            "choose `off`, `optional` or `required`",
        ),
    ];
    for (values, part) in refused {
        let loader = values
            .iter()
            .fold(Loader::new(), |loader, value| loader.set(*value));
        let error = loader.load().unwrap_err().to_string();
        assert!(error.contains(part), "{values:?}: {error}");
    }
}

#[test]
fn an_address_that_others_can_reach_needs_to_be_called_insecure() {
    let open = Loader::new().flag("--address", "server.address", "0.0.0.0:5555");
    let error = open.clone().load().unwrap_err();
    assert_eq!(error.problems().len(), 1);
    assert_eq!(
        error.problems()[0].location(),
        &Location::Flag("--address".to_owned())
    );
    assert!(
        error
            .to_string()
            .contains("neither TLS (`tls.certificate_file`) nor authentication"),
        "{error}"
    );
    assert!(error.to_string().contains("`--insecure`"), "{error}");

    assert!(
        open.flag("--insecure", "server.insecure", "true")
            .load()
            .is_ok()
    );
    for loopback in ["127.1.2.3:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        let loader = Loader::new().flag("--address", "server.address", loopback);
        assert!(loader.load().is_ok(), "{loopback}");
    }
}

#[test]
fn values_that_do_not_go_together_are_reported_where_the_stronger_one_stands() {
    let dir = Dir::with("[limits]\nprefetch_default = 500\npayload_bytes = \"2 MiB\"\n");
    let error = dir
        .loader()
        .variables([("FILA_LIMITS__IN_FLIGHT_PER_CONSUMER", "100")])
        .set("limits.buffered_bytes=1 MiB")
        .load()
        .unwrap_err();
    assert_eq!(
        dir.lines(&error),
        [
            "FILA_LIMITS__IN_FLIGHT_PER_CONSUMER: limits.prefetch_default is 500 and limits.in_flight_per_consumer \
             only 100; lower the first or raise the second",
            "--set limits.buffered_bytes: limits.buffered_bytes is `1 MiB`, less than the largest message of \
             `2064 KiB`; raise it, or lower limits.payload_bytes or limits.header_bytes",
        ]
    );
}

#[test]
fn a_printed_configuration_reads_back_as_the_same() {
    let config = Loader::new()
        .set("server.address=0.0.0.0:1")
        .set("server.insecure=true")
        .set("server.worker_threads=7")
        .set("storage.path=a \"quoted\" \\ path\twith\u{7f}\u{1}everything")
        .set("storage.durability=memory")
        .set("storage.memory_budget=1048577")
        .set("telemetry.log=warn, fila_server=debug")
        .set("telemetry.otlp_endpoint=http://localhost:4317")
        .set("telemetry.trace_ratio=0.1")
        .load()
        .unwrap();
    for config in [config, Config::default()] {
        let dir = Dir::with(&config.to_toml());
        assert_eq!(dir.loader().load().unwrap(), config);
    }
}

#[test]
fn a_printed_configuration_names_every_key_once() {
    let text = Config::default().to_toml();
    for key in Key::all() {
        let line = format!("{} = {}", key.name(), key.default_toml());
        assert_eq!(
            text.lines().filter(|other| *other == line).count(),
            1,
            "{line}"
        );
    }
}

proptest! {
    #[test]
    fn no_file_makes_the_loader_panic(text in r#"(\[?(server|limits|x)\]?|[a-z_]{1,8} ?= ?|"|'|[0-9.eE+-]{1,9}|\n|\{|\}|.){0,40}"#) {
        let dir = Dir::with(&text);
        if let Err(error) = dir.loader().load() {
            prop_assert!(error.problems().iter().all(|problem| !problem.to_string().contains('\n')));
        }
    }

    #[test]
    fn no_value_makes_the_loader_panic(index in 0..Key::all().count(), text in "\\PC{0,24}|[0-9._]{0,24}( ?[KMG]i?B)?") {
        let key = Key::all().nth(index).unwrap();
        let by_flag = Loader::new().set(format!("{}={text}", key.path())).set("server.insecure=true").load();
        if let Ok(config) = by_flag {
            let dir = Dir::with(&config.to_toml());
            prop_assert_eq!(dir.loader().load().unwrap(), config);
        }
    }
}
