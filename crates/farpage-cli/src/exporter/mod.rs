//! `farpage exporter`: the metrics of all processes, over HTTP, read anew for each request.
//!
//! Callers: `main`. State: none between requests. [`http`] owns the connections.

mod http;

use crate::args::ExporterArgs;
use crate::failure::{Failure, Result, say, why};
use crate::metrics::{self, Exposition};
use crate::stat_cmd::find;
use crate::trees;
use http::{Answer, Request};
use std::net::{TcpListener, ToSocketAddrs};
use std::process::ExitCode;

const PAGE: &str = "<!doctype html><title>farpage</title><p><a href=\"/metrics\">Metrics of farpage</a>\n";

/// Runs the subcommand: until a signal ends it.
///
/// # Errors
/// It cannot listen there.
pub fn main(args: &ExporterArgs) -> Result<ExitCode> {
    let listener = listen(&args.listen)?;
    let at = listener.local_addr().map_or_else(|_| args.listen.clone(), |at| at.to_string());
    say(format_args!("farpage: metrics are at http://{at}/metrics"));
    let per_process = args.per_process;
    http::serve(&listener, &|request: &Request<'_>| answer(request, per_process))
}

fn listen(to: &str) -> Result<TcpListener> {
    let form = "write for example 127.0.0.1:9797 or [::1]:9797";
    let addresses: Vec<_> = match to.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
            return Err(Failure::usage(format!("--listen {to}: not an address with a port")).help(form));
        }
        Err(e) => return Err(Failure::new(format!("cannot find the address of {to}: {}", why(&e)))),
    };
    TcpListener::bind(&addresses[..]).map_err(|e| {
        Failure::new(format!("cannot listen on {to}: {}", why(&e)))
            .help("name another address    farpage exporter --listen ADDRESS:PORT")
    })
}

fn answer(request: &Request<'_>, per_process: bool) -> Answer {
    match request.path {
        "/metrics" => metrics(request.accepts, per_process),
        "/" => Answer { status: 200, content_type: "text/html; charset=utf-8", body: PAGE.into() },
        _ => Answer::words(404, "there is /metrics"),
    }
}

fn metrics(accepts: &str, per_process: bool) -> Answer {
    let form = match accepts.contains("application/openmetrics-text") {
        true => Exposition::OpenMetrics,
        false => Exposition::Prometheus,
    };
    match find::all() {
        Ok(all) => Answer {
            status: 200,
            content_type: form.content_type(),
            body: metrics::write(&metrics::families(&all, &trees::all().trees, per_process), form),
        },
        Err(failure) => Answer::words(503, &failure.sentence),
    }
}
