//! A client that does not finish the head of its request is told, and a connection that was only idle is not.

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    struct Router(Child);

    impl Drop for Router {
        fn drop(&mut self) {
            let _ended = self.0.kill().and_then(|()| self.0.wait());
        }
    }

    fn answer_to(address: &str, begun: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(begun).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_head_that_does_not_come_to_its_end_is_answered_and_an_idle_connection_is_only_closed() {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["--port", "0", "--admin-port", "0", "--client-header-timeout-secs", "0.2"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let _router = Router(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let listening: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = listening["url"].as_str().unwrap().trim_start_matches("http://");
        let answer = answer_to(address, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n");
        assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
        let error: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(error["error"]["code"], 408);
        assert_eq!(answer_to(address, b""), "");
    }
}
