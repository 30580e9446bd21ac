// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <sstream>
#include <vector>

#include "common/completion.h"
#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/man_page.h"
#include "common/parse_problems.h"
#include "common/secret.h"
#include "common/standard_streams.h"
#include "common/text.h"
#include "common/wall_time.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::chrono::seconds kShortestLease{2}, kLongestLease{60};
constexpr std::chrono::milliseconds kShortestGrace{10}, kLongestGrace{60'000};

CommandLine ends_with(ExitCode code) { return {std::nullopt, static_cast<int>(code)}; }

CommandLine fail(const std::string& message) {
  std::fprintf(stderr, "ddprund: %s\n", one_line(message).c_str());
  return ends_with(ExitCode::kUsage);
}

// Lowers the limits that weren't given.
void limit_bytes_in_etcd(DaemonOptions& options) {
  const auto limit = [](std::uint64_t& bytes, std::uint64_t by_default, std::uint64_t most) {
    if (bytes == by_default) bytes = std::min(bytes, most);
  };
  limit(options.job_limits.bytes, default_job_limits().bytes, kBytesInEtcd / 2);
  limit(options.limits.bytes, default_total_limits().bytes, kBytesInEtcd);
}

// Returns the error text for --standby and --standby-of, which made two ddprunds a pair in older
// versions.
std::optional<std::string> what_of_old_flag(const std::string& problem) {
  constexpr std::string_view kUnknown = "unknown flag ";
  if (!problem.starts_with(concat(kUnknown, "--standby"))) return std::nullopt;
  const std::string flag = problem.substr(kUnknown.size());
  return concat(flag.substr(0, flag.find(' ')),
                " is gone: several ddprunds share an etcd, --ha=etcd://HOST:PORT,.../PREFIX "
                "(docs/ha.md)");
}

ManPage man_page(const CLI::App& app) {
  return {
      .name = "ddprund",
      .section = 8,
      .summary = "the rendezvous of distributed jobs",
      .synopsis =
          "ddprund [--listen HOST:PORT] [--state-dir DIRECTORY | --ha URL] [--keep-finished "
          "DURATION] "
          "[--token-file PATH] [--tls-cert PATH --tls-key PATH] [--insecure] [--verbose]",
      .sections = {
          {"Description",
           "Serves the place where the nodes of ddprun(1) jobs meet. It gives out ranks, notices "
           "lost nodes and decides restarts, for any number of jobs at once. It also serves a c10d "
           "store (PyTorch's TCPStore) on the same port. GET /v1/jobs on it tells the jobs as "
           "JSON, GET /v1/status the daemon itself (ddprunctl jobs, ddprunctl status). With "
           "--state-dir, jobs go on when it is killed and started again; where several share an "
           "etcd (--ha), another one goes on with them (ddprun --rdzv-endpoint=A,B).\n\nWithout "
           "one, a ddprun of the job serves the rendezvous itself. SIGTERM and "
           "SIGINT end it; SIGHUP makes it read the files of its token and certificates again. "
           "It speaks systemd's protocols: notification, watchdog, socket activation."},
          {"Options", "", man_entries(app)},
          {"Exit status",
           " 0   ended by SIGTERM or SIGINT\n 2   a bad flag, or the address can't be used\n"
           " 70  a fault of its own\n 74  what was asked for (--help, --print-man) can't be "
           "written to stdout"},
          {"See also", "ddprun(1), ddprunctl(1), ddprun.toml(5)"}}};
}

// Flags as typed that need further parsing.
struct Texts {
  std::string listen = "127.0.0.1:29400";
  std::string durability = "process";
  std::string keep_finished = "1h";
  std::string reconnect_grace = "0.15s";
  std::string watch_output = "on";
  std::optional<std::string> ha;
  std::string ha_lease = "3s";
  bool print_man = false;
  std::string shell;
};

void add_rendezvous_options(CLI::App& app, DaemonFlags& flags, Texts& texts) {
  app.add_option("--listen", texts.listen,
                 "HOST:PORT to serve; :PORT = on all interfaces; port 0 = any free one")
      ->capture_default_str();
  app.add_option("--state-dir", flags.state_directory,
                 "DIRECTORY in which jobs are kept (made where it is missing): a ddprund that is "
                 "killed and started again goes on with them; default: nowhere");
  app.add_option("--durability", texts.durability,
                 "What --state-dir outlives: process = the end of ddprund; disk = that of the "
                 "machine, too (an fsync per decision)")
      ->type_name("process|disk")
      ->capture_default_str();
  app.add_option("--keep-finished", texts.keep_finished,
                 "How long ddprunctl jobs shows a job that is over, DURATION (3600, 90m, 1d) from "
                 "its end; 0 = not at all; the last 1000")
      ->capture_default_str();
  app.add_option("--reconnect-grace", texts.reconnect_grace,
                 "How long a node whose connection is lost has to come back before it counts as "
                 "lost, 0.01s to 60s; longer where the way to it is long or loses connections: a "
                 "node that dies is noticed as much later")
      ->type_name("DURATION")
      ->capture_default_str();
  app.add_option("--watch-output", texts.watch_output,
                 "Whether watchers of a job (the page at /, ddprunctl top) can see the last "
                 "lines that its ranks print (docs/status-page.md)")
      ->type_name("on|off")
      ->capture_default_str();
  const auto add_limits = [&](const char* flag, StoreLimits& limits, const char* help) {
    const auto set = [flag, &limits](const std::vector<std::string>& values) {
      for (const std::string& text : values) {  // a flag keeps the limits that it doesn't name
        const std::string wrong = set_limits(text, limits);
        if (!wrong.empty()) throw CLI::ValidationError(flag, wrong);
      }
    };
    app.add_option_function<std::vector<std::string>>(flag, set, help)
        ->type_name("LIMITS")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false);
  };
  add_limits("--job-limits", flags.daemon.job_limits,
             "What one job's workers may have in the rendezvous (--store=proxy): "
             "keys=1M,bytes=4GiB (at most a quarter of the memory),connections=65536,requests=N a "
             "second (default: any number)");
  add_limits(
      "--limits", flags.daemon.limits,
      "The same limits for all jobs together: keys=10M,bytes=16GiB (at most half of the memory),"
      "connections=262144 (and as many agents), requests=N");
}

void add_security_options(CLI::App& app, DaemonFlags& flags) {
  app.add_option("--jobs-per-client", flags.daemon.max_jobs_per_client,
                 "How many jobs of one user (over loopback without a token) or of one address may "
                 "be here at once; a node that would begin another one is refused")
      ->type_name("N")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1'000'000'000}))
      ->capture_default_str();
  app.add_option("--token-file", flags.token_file,
                 "Only agents that have this file's content (16 bytes or more) are served; mode "
                 "600, or 640 if it is root's")
      ->envname(env::kTokenFile);
  app.add_option(
      "--scrape-token-file", flags.scrape_token_file,
      "With --token-file: a client that sends this file's content as a bearer token, as Prometheus "
      "does, may read /metrics, /v1/status and /v1/jobs; over TLS, or on loopback");
  app.add_option("--tls-cert", flags.tls.cert, "Serve TLS 1.3 alone, with this certificate (PEM)");
  app.add_option("--tls-key", flags.tls.key, "Its key (PEM), mode 600");
  app.add_option("--tls-ca", flags.tls.ca, "The authority of the clients' certificates (PEM)");
  app.add_flag("--tls-verify-client", flags.tls.verify_client,
               "Serve only clients that have a certificate of it");
  app.add_flag(
      "--insecure", flags.is_insecure,
      "Serve beyond loopback without --token-file and TLS: anyone who reaches the port can join "
      "and end jobs, and read their keys");
}

void add_ha_options(CLI::App& app, DaemonFlags& flags, Texts& texts) {
  app.add_option("--ha", texts.ha,
                 "etcd://HOST:PORT,.../PREFIX: one of several ddprunds, of which the one that a "
                 "lease in this etcd names leads; the jobs are kept there (docs/ha.md)")
      ->type_name("URL");
  app.add_option(
         "--ha-lease", texts.ha_lease,
         "How long a leader that says nothing stays it (--ha), 2s to 60s; less than half of "
         "the jobs' keep-alive time (5 s) lets workers run on undisturbed when it is lost")
      ->capture_default_str();
  app.add_option("--ha-name", flags.ha_name,
                 "HOST:PORT that the others tell who asks for the leader; default: this host's "
                 "name and the port");
  app.add_option("--ha-ca", flags.ha_tls.ca,
                 "Speak TLS with etcd: the authority of its certificate (PEM)");
  app.add_option("--ha-cert", flags.ha_tls.cert, "This ddprund's certificate for it (PEM)");
  app.add_option("--ha-key", flags.ha_tls.key, "Its key (PEM), mode 600");
}

std::string not_host_port(const std::string& text) {
  const std::string wrong = port_problem(text);
  return wrong.empty() ? "\"" + text + "\" is not HOST:PORT" : wrong;
}

// Returns all that is wrong with the flags.
std::vector<std::string> wrong_with(const CLI::App& app, const DaemonFlags& flags,
                                    const Texts& texts) {
  std::vector<std::string> wrong =
      empty_files(app, {"--token-file", "--scrape-token-file", "--tls-cert", "--tls-key",
                        "--tls-ca", "--ha-ca", "--ha-cert", "--ha-key"});
  if (!parse_endpoint(texts.listen, kDefaultRendezvousPort)) {
    wrong.push_back("--listen: " + not_host_port(texts.listen));
  }
  if (!texts.listen.empty() && texts.listen.find_first_not_of("0123456789") == std::string::npos) {
    wrong.push_back("--listen: \"" + texts.listen +
                    "\" is no host; for a port on all interfaces give :" + texts.listen);
  }
  if (flags.token_file.empty()) {
    const std::string problem = token_variable_problem(current_environment());
    if (!problem.empty()) wrong.push_back(problem);
  }
  if (!flags.scrape_token_file.empty() && flags.token_file.empty()) {
    wrong.push_back("--scrape-token-file: without --token-file everybody may read the pages");
  }
  if (flags.state_directory && flags.state_directory->empty()) {
    wrong.push_back("--state-dir: no directory given");
  }
  if (!flags.tls.cert.empty() && !flags.tls.ca.empty() && !flags.tls.verify_client) {
    wrong.push_back(
        "--tls-ca: here it is the authority of clients' certificates, and none is asked for: "
        "add --tls-verify-client, or leave it out");
  }
  if (texts.durability != "process" && texts.durability != "disk") {
    wrong.push_back("--durability: \"" + texts.durability + "\" is neither process nor disk");
  } else if (app.count("--durability") > 0 && !flags.state_directory) {
    wrong.push_back("--durability says how --state-dir is written; give that, too");
  }
  if (!parse_duration(texts.keep_finished)) {
    wrong.push_back("--keep-finished: \"" + texts.keep_finished +
                    "\" is no duration (3600, 90m, 1d; 0)");
  }
  const auto grace = parse_duration(texts.reconnect_grace);
  if (!grace || *grace < kShortestGrace || *grace > kLongestGrace) {
    wrong.push_back("--reconnect-grace: \"" + texts.reconnect_grace + "\" is not 0.01s to 60s");
  }
  if (texts.watch_output != "on" && texts.watch_output != "off") {
    wrong.push_back("--watch-output: \"" + texts.watch_output + "\" is neither on nor off");
  }
  if (texts.ha && flags.state_directory) {
    wrong.push_back(
        "--state-dir: with --ha the jobs are kept in etcd alone; leave one of the two out");
  }
  for (const char* flag : {"--ha-lease", "--ha-name", "--ha-ca", "--ha-cert", "--ha-key"}) {
    if (!texts.ha && app.count(flag) > 0) {
      wrong.push_back(concat(flag, ": is for --ha; give that, too"));
    }
  }
  const auto lease = parse_duration(texts.ha_lease);
  if (!lease || *lease < kShortestLease || *lease > kLongestLease ||
      *lease % std::chrono::seconds(1) != std::chrono::milliseconds(0)) {
    wrong.push_back("--ha-lease: \"" + texts.ha_lease + "\" is not 2s to 60s in whole seconds");
  }
  const auto name = parse_endpoint(flags.ha_name, 0);
  if (!flags.ha_name.empty() && (!name || name->host.empty() || name->port == 0)) {
    wrong.push_back("--ha-name: " + not_host_port(flags.ha_name));
  }
  return wrong;
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  CLI::App app("ddprund: the rendezvous of distributed jobs (see docs/rendezvous.md)", "ddprund");
  DaemonFlags flags;
  flags.ha_tls.flags = "--ha";
  Texts texts;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_rendezvous_options(app, flags, texts);
  add_ha_options(app, flags, texts);
  add_security_options(app, flags);
  app.option_defaults()->multi_option_policy();
  app.add_flag("--verbose", flags.verbose, "Log at debug level");
  app.add_flag("--print-man", texts.print_man, "Print the manual page, for man -l -");
  add_completion(app, texts.shell);
  app.footer(kDocsPlace);
  app.set_version_flag("--version", "ddprund " DDPRUN_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    std::ostringstream text;
    app.exit(asked, text, text);
    return {std::nullopt, print_what_was_asked("ddprund", text.str())};
  } catch (const CLI::ParseError& error) {
    CommandLine failed;
    for (const std::string& what : parse_problems<CLI::ExtrasError>(app, error, app)) {
      failed = fail(what_of_old_flag(what).value_or(what + " (see ddprund --help)"));
    }
    return failed;
  }
  if (texts.print_man) {
    return {std::nullopt, print_what_was_asked("ddprund", to_roff(man_page(app)))};
  }
  if (!texts.shell.empty()) {
    return {std::nullopt, print_what_was_asked(
                              "ddprund", completion_script(completed_program(app), texts.shell))};
  }
  std::vector<std::string> wrong = wrong_with(app, flags, texts);
  try {
    if (texts.ha) flags.ha = ha::parse_ha_url(*texts.ha);
  } catch (const Error& error) {
    wrong.push_back(concat("--ha: ", error.what()));
  }
  CommandLine failed;
  for (const std::string& problem : wrong) failed = fail(problem);
  if (!wrong.empty()) return failed;
  flags.listen = *parse_endpoint(texts.listen, kDefaultRendezvousPort);
  flags.durability =
      texts.durability == "disk" ? journal::Durability::kDisk : journal::Durability::kProcess;
  flags.daemon.has_gangs = true;
  flags.daemon.keep_finished = *parse_duration(texts.keep_finished);
  flags.daemon.reconnect_grace = *parse_duration(texts.reconnect_grace);
  flags.daemon.watch_output = texts.watch_output == "on";
  flags.ha_lease =
      std::chrono::duration_cast<std::chrono::seconds>(*parse_duration(texts.ha_lease));
  flags.daemon.stands_by = texts.ha.has_value();
  if (texts.ha) limit_bytes_in_etcd(flags.daemon);
  return {std::move(flags), 0};
}

}  // namespace ddprun::rendezvous
