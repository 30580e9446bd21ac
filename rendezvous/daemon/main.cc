// SPDX-License-Identifier: Apache-2.0
// ddprund: the rendezvous daemon.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/duration.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/man_entries.h"
#include "common/man_page.h"
#include "common/secret.h"
#include "common/signal_names.h"
#include "common/socket.h"
#include "common/standard_streams.h"
#include "common/suggest.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/dropping_sink.h"
#include "rendezvous/security/tls.h"

namespace {

using namespace ddprun;

void write_log(LogLevel level, std::string_view message) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  spdlog::log(kLevels[static_cast<int>(level)], "{}", one_line(message));
}

void set_up_log(bool verbose) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "ddprund", std::make_shared<rendezvous::DroppingSink>(STDERR_FILENO)));
  spdlog::set_level(spdlog::level::debug);  // common/log.h drops what is below its level
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l: %v");
  set_log_level(verbose ? LogLevel::kDebug : LogLevel::kInfo);
  set_log_sink(write_log);
}

int fail(const std::string& message, ExitCode code = ExitCode::kUsage) {
  std::fprintf(stderr, "ddprund: %s\n", message.c_str());
  return static_cast<int>(code);
}

int fail_unknown(const std::string& word) {
  const std::string flag = word.substr(0, word.find('='));
  if (!flag.starts_with('-')) return fail("takes no argument, got \"" + word + "\"");
  return fail(
      "unknown flag " + flag +
      did_you_mean(flag, {"--listen", "--state-dir", "--durability", "--job-limits",
                          "--keep-finished", "--limits", "--token-file", "--tls-cert", "--tls-key",
                          "--tls-ca", "--tls-verify-client", "--verbose", "--version", "--help"}) +
      " (see ddprund --help)");
}

// Signals that would end it by default, and every job with it: a terminal that closes, a scheduler
// that warns all processes of a node.
void outlive_signals(boost::asio::signal_set& signals) {
  signals.async_wait([&signals](boost::system::error_code error, int number) {
    if (error) return;
    log_info("got ", signal_name(number), ": serving on (SIGTERM ends it)");
    outlive_signals(signals);
  });
}

void say_end(int signal_number, const std::vector<std::string>& jobs, bool keeps_state) {
  std::string names;
  for (const std::string& job : jobs) names += (names.empty() ? "" : ", ") + job;
  if (jobs.empty()) {
    log_info("stopping: ", signal_name(signal_number));
  } else if (keeps_state) {
    log_warning("stopping: ", signal_name(signal_number),
                "; jobs go on when a ddprund with this "
                "--state-dir is back within their --rendezvous-lost-timeout (60 s): ",
                names);
  } else {
    log_warning("stopping: ", signal_name(signal_number), "; jobs lose their rendezvous: ", names,
                " (their workers run on for --rendezvous-lost-timeout; then they end with 69)");
  }
}

struct Flags {
  std::string listen = "127.0.0.1:29400";
  std::string token_file;
  std::optional<std::string> state_directory;
  std::string durability = "process";
  std::string keep_finished = "1h";
  rendezvous::StoreLimits job_limits = rendezvous::kJobLimits, limits = rendezvous::kTotalLimits;
  security::TlsFiles tls;
  bool verbose = false;
  bool print_man = false;
};

// Said once for each address that others may reach.
void say_who_can_come_in(const SocketAddress& address, const Flags& flags) {
  const bool is_closed = !flags.token_file.empty() || flags.tls.verify_client;
  if (is_closed && !flags.tls.cert.empty()) {
    log_info("only who proves to have the ", flags.token_file.empty() ? "" : "token",
             !flags.token_file.empty() && flags.tls.verify_client ? " and the " : "",
             flags.tls.verify_client ? "certificate" : "", " can join jobs at ", address.text(),
             ", over TLS");
  } else if (is_closed) {
    log_info("only who proves to have the token can join jobs at ", address.text(),
             "; what is said there can be read on the way");
  } else {
    log_warning("anyone who reaches ", address.text(),
                " can join jobs and read their keys: use it on a trusted network only, or with "
                "--token-file");
  }
}

// Empty, or what is wrong.
std::string wrong_with_flags(const Flags& flags, bool says_durability) {
  if (flags.state_directory && flags.state_directory->empty()) {
    return "--state-dir: no directory given";
  }
  if (!flags.tls.cert.empty() && !flags.tls.ca.empty() && !flags.tls.verify_client) {
    return "--tls-ca: here it is the authority of clients' certificates, and none is asked for: "
           "add "
           "--tls-verify-client, or leave it out";
  }
  if (flags.durability != "process" && flags.durability != "disk") {
    return "--durability: \"" + flags.durability + "\" is neither process nor disk";
  }
  if (!parse_duration(flags.keep_finished)) {
    return "--keep-finished: \"" + flags.keep_finished + "\" is no duration (3600, 90m, 1d; 0)";
  }
  if (says_durability && !flags.state_directory) {
    return "--durability says how --state-dir is written; give that, too";
  }
  return {};
}

int serve(const Endpoint& endpoint, const Flags& flags) {
  rendezvous::DaemonOptions options;
  options.keep_finished = *parse_duration(flags.keep_finished);
  options.job_limits = flags.job_limits;
  options.limits = flags.limits;
  if (!flags.token_file.empty()) options.token = Secret::from_file(flags.token_file);
  if (flags.tls.any()) options.tls = security::make_server_context(flags.tls);
  std::optional<rendezvous::KeptJobs> kept;
  if (flags.state_directory) {
    kept.emplace(*flags.state_directory, flags.durability == "disk"
                                             ? journal::Durability::kDisk
                                             : journal::Durability::kProcess);
  }
  auto listeners = endpoint.host.empty() ? rendezvous::bind_everywhere(endpoint.port)
                                         : rendezvous::bind_endpoint(endpoint);
  std::vector<SocketAddress> addresses;
  for (const UniqueFd& listener : listeners) addresses.push_back(local_address(listener.get()));
  boost::asio::io_context io(1);
  boost::asio::signal_set signals(io, SIGTERM, SIGINT, SIGQUIT);
  boost::asio::signal_set outlived(io, SIGHUP, SIGUSR1, SIGUSR2);
  outlive_signals(outlived);
  rendezvous::Daemon daemon(io, std::move(listeners), options, std::move(kept));
  signals.async_wait([&](boost::system::error_code error, int number) {
    if (error) return;
    say_end(number, daemon.live_jobs(), flags.state_directory.has_value());
    io.stop();
  });
  // Said when all is in place: who waits for this line may connect, or end us, from then on.
  for (const SocketAddress& address : addresses) {
    log_info("listening on ", address.text());
    if (!address.is_loopback()) say_who_can_come_in(address, flags);
  }
  io.run();
  return static_cast<int>(ExitCode::kOk);
}

ManPage man_page(const CLI::App& app) {
  return {
      .name = "ddprund",
      .section = 8,
      .summary = "the rendezvous of distributed jobs",
      .synopsis =
          "ddprund [--listen HOST:PORT] [--state-dir DIRECTORY] [--keep-finished DURATION] "
          "[--token-file PATH] [--tls-cert "
          "PATH "
          "--tls-key PATH] [--verbose]",
      .sections = {
          {"Description",
           "Serves the place where the nodes of ddprun(1) jobs meet: it gives out ranks, notices "
           "lost nodes and decides restarts, for any number of jobs at once, and serves a c10d "
           "store (PyTorch's TCPStore) on the same port. GET /v1/jobs on it tells the jobs as "
           "JSON, GET /v1/status the daemon itself (ddprunctl jobs, ddprunctl status). With "
           "--state-dir, jobs go on when it is killed and started again.\n\nWithout "
           "one, a ddprun of the job serves the rendezvous itself. SIGTERM and "
           "SIGINT end it."},
          {"Options", "", man_entries(app)},
          {"Exit status",
           " 0   ended by SIGTERM or SIGINT\n 2   a bad flag, or the address can't be used\n"
           " 70  a fault of its own"},
          {"See also", "ddprun(1), ddprunctl(1), ddprun.toml(5)"}}};
}

}  // namespace

int main(int argc, char** argv) {
  security::wipe_what_is_freed();
  open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more must not end the jobs
  CLI::App app("ddprund: the rendezvous of distributed jobs (see docs/rendezvous.md)", "ddprund");
  Flags flags;
  app.add_option("--listen", flags.listen,
                 "HOST:PORT to serve; :PORT = on all interfaces; port 0 = any free one")
      ->capture_default_str()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--state-dir", flags.state_directory,
                 "DIRECTORY in which jobs are kept (made where it is missing): a ddprund that is "
                 "killed and started again goes on with them; default: nowhere")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--durability", flags.durability,
                 "What --state-dir outlives: process = the end of ddprund; disk = that of the "
                 "machine, too (an fsync per decision)")
      ->capture_default_str()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--keep-finished", flags.keep_finished,
                 "How long ddprunctl jobs shows a job that is over, DURATION (3600, 90m, 1d) from "
                 "its end; 0 = not at all; the last 1000")
      ->capture_default_str()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto add_limits = [&](const char* flag, rendezvous::StoreLimits& limits, const char* help) {
    app.add_option_function<std::string>(
           flag,
           [flag, &limits](const std::string& text) {
             const std::string wrong = rendezvous::set_limits(text, limits);
             if (!wrong.empty()) throw CLI::ValidationError(flag, wrong);
           },
           help)
        ->type_name("LIMITS")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  add_limits("--job-limits", flags.job_limits,
             "What one job's workers may have in the rendezvous (--store=proxy): "
             "keys=1M,bytes=4GiB,connections=65536,requests=N a second (default: any number)");
  add_limits("--limits", flags.limits,
             "Likewise all jobs' together: keys=10M,bytes=16GiB,connections=262144 (agents', too), "
             "requests=N");
  app.add_option("--token-file", flags.token_file,
                 "Only agents that have this file's content (16 bytes or more) are served; mode "
                 "600, or 640 if it is root's")
      ->envname(env::kTokenFile)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto add_file = [&](const char* flag, std::string& path, const char* help) {
    app.add_option(flag, path, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  add_file("--tls-cert", flags.tls.cert, "Serve TLS 1.3 alone, with this certificate (PEM)");
  add_file("--tls-key", flags.tls.key, "Its key (PEM), mode 600");
  add_file("--tls-ca", flags.tls.ca, "The authority of the clients' certificates (PEM)");
  app.add_flag("--tls-verify-client", flags.tls.verify_client,
               "Serve only clients that have a certificate of it");
  app.add_flag("--verbose", flags.verbose, "Log at debug level");
  app.add_flag("--print-man", flags.print_man, "Print the manual page, for man -l -");
  app.set_version_flag("--version", "ddprund " DDPRUN_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ExtrasError&) {
    return fail_unknown(app.remaining().front());
  } catch (const CLI::ParseError& error) {
    return fail(std::string(error.what()) + " (see ddprund --help)");
  }
  if (flags.print_man) {
    std::fputs(to_roff(man_page(app)).c_str(), stdout);
    return static_cast<int>(ExitCode::kOk);
  }
  const std::string& listen = flags.listen;
  const auto endpoint = parse_endpoint(listen, kDefaultRendezvousPort);
  if (!endpoint) return fail("--listen: \"" + listen + "\" is not HOST:PORT");
  if (!listen.empty() && listen.find_first_not_of("0123456789") == std::string::npos) {
    return fail("--listen: \"" + listen +
                "\" is no host; for a port on all interfaces give :" + listen);
  }
  if (app.count("--token-file") > 0 && flags.token_file.empty()) {
    return fail("--token-file: no file given");
  }
  const std::string wrong = wrong_with_flags(flags, app.count("--durability") > 0);
  if (!wrong.empty()) return fail(wrong);
  set_up_log(flags.verbose);
  try {
    return serve(*endpoint, flags);
  } catch (const Error& error) {
    return fail(error.what(), exit_code_for(error.code()));
  } catch (const std::exception& error) {
    return fail("internal error: " + std::string(error.what()), ExitCode::kInternal);
  }
}
