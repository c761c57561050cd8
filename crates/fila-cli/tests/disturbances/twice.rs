//! Two servers on one directory: the second says what to do and changes nothing; a lock does not outlive its holder.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};

use fila_sdk::QueueSettings;

use crate::program::Running;
use crate::{QUEUE, client_of, server_on, soon, take};

fn refused(directory: &Path) -> Output {
    server_on(directory).output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_server_on_a_directory_refuses_and_the_first_does_not_notice() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Running::start(&mut server_on(directory.path()));
    let client = client_of(&first).await;
    let admin = client.admin();
    soon(admin.create_queue(QUEUE, QueueSettings::new()))
        .await
        .unwrap();
    let orders = client.queue(QUEUE);
    let mut consumer = orders.consumer().subscribe();
    for number in 0..5 {
        soon(orders.send(number.to_string())).await.unwrap();
        let second = refused(directory.path());
        assert_eq!(second.status.code(), Some(1));
        assert!(second.stdout.is_empty(), "it never says that it listens");
        let said = String::from_utf8(second.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("is in use; stop the other server"), "{said}");
        // Store and consumers of the first are as they were.
        let taken = take(&mut consumer, 1).await;
        assert_eq!(taken.get(&number.to_string()), Some(&1));
    }
    soon(orders.send("kept")).await.unwrap();
    // Killed without a word it leaves no lock that anybody has to remove.
    first.kill();
    let second = Running::start(&mut server_on(directory.path()));
    let client = client_of(&second).await;
    let mut consumer = client.queue(QUEUE).consumer().subscribe();
    let taken = take(&mut consumer, 1).await;
    assert!(taken.contains_key("kept"), "{taken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_servers_that_start_on_a_directory_at_once_one_runs() {
    let directory = tempfile::tempdir().unwrap();
    let servers = (0..4).map(|_| {
        let mut command = tokio::process::Command::from(server_on(directory.path()));
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true).spawn().unwrap()
    });
    let mut servers: Vec<_> = servers.collect();
    // Three of them end by themselves.
    soon(async {
        while servers.len() > 1 {
            servers.retain_mut(|server| match server.try_wait().unwrap() {
                Some(status) => {
                    assert_eq!(status.code(), Some(1));
                    false
                }
                None => true,
            });
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let output = BufReader::new(servers[0].stdout.take().unwrap());
    let line = soon(output.lines().next_line()).await.unwrap().unwrap();
    assert!(line.starts_with("fila is listening on "), "{line}");
}
