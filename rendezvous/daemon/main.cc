// SPDX-License-Identifier: Apache-2.0
// ddprund: the rendezvous daemon.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/secret.h"
#include "common/signal_names.h"
#include "common/socket.h"
#include "common/standard_streams.h"
#include "rendezvous/daemon/candidate.h"
#include "rendezvous/daemon/command_line.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/dropping_sink.h"
#include "rendezvous/daemon/pair.h"
#include "rendezvous/security/tls.h"

namespace {

using namespace ddprun;
using rendezvous::DaemonFlags;

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

int fail(const std::string& message, ExitCode code) {
  std::fprintf(stderr, "ddprund: %s\n", one_line(message).c_str());
  return static_cast<int>(code);
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

// `others`: another one goes on with the jobs at once.
void say_end(int signal_number, const std::vector<std::string>& jobs, const DaemonFlags& flags,
             bool others) {
  std::string names;
  for (const std::string& job : jobs) names += (names.empty() ? "" : ", ") + job;
  if (jobs.empty()) {
    log_info("stopping: ", signal_name(signal_number));
  } else if (others) {
    log_info("stopping: ", signal_name(signal_number), "; another ddprund goes on with: ", names);
  } else if (flags.state_directory) {
    log_warning("stopping: ", signal_name(signal_number),
                "; jobs go on when a ddprund with this "
                "--state-dir is back within their --rendezvous-lost-timeout (60 s): ",
                names);
  } else {
    log_warning("stopping: ", signal_name(signal_number), "; jobs lose their rendezvous: ", names,
                " (their workers run on for --rendezvous-lost-timeout; then they end with 69)");
  }
}

// Said once for each address that others may reach.
void say_who_can_come_in(const SocketAddress& address, const DaemonFlags& flags) {
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

rendezvous::DaemonOptions options_of(const DaemonFlags& flags) {
  rendezvous::DaemonOptions options;
  options.keep_finished = flags.keep_finished;
  options.job_limits = flags.job_limits;
  options.limits = flags.limits;
  if (!flags.token_file.empty()) options.token = Secret::from_file(flags.token_file);
  if (flags.tls.any()) options.tls = security::make_server_context(flags.tls);
  return options;
}

ha::LeadershipOptions leadership_of(const DaemonFlags& flags, std::uint16_t port) {
  ha::LeadershipOptions leadership;
  leadership.etcd.endpoints = flags.ha->endpoints;
  if (flags.ha_tls.any()) leadership.etcd.tls = security::make_client_context(flags.ha_tls);
  leadership.prefix = flags.ha->prefix;
  leadership.lease = flags.ha_lease;
  leadership.name = flags.ha_name;
  if (leadership.name.empty()) leadership.name = to_string(Endpoint{host_name(), port});
  return leadership;
}

rendezvous::PairOptions pair_of(const DaemonFlags& flags, std::uint16_t port) {
  rendezvous::PairOptions pair;
  pair.directory = *flags.state_directory;
  pair.durability = flags.durability;
  pair.peer = *flags.peer;
  pair.is_first = flags.is_first;
  pair.lease = flags.ha_lease;
  pair.name = flags.ha_name;
  if (pair.name.empty()) pair.name = to_string(Endpoint{host_name(), port});
  if (!flags.token_file.empty()) pair.security.token = Secret::from_file(flags.token_file);
  if (flags.ha_tls.any()) pair.security.tls = security::make_client_context(flags.ha_tls);
  pair.security.program = "ddprund";
  pair.security.ca_flag = "--ha-ca";
  return pair;
}

// Alone, or one of several.
class Served {
 public:
  Served(boost::asio::io_context& io, const DaemonFlags& flags) {
    auto options = options_of(flags);
    if (flags.ha) {
      auto listeners = bind(flags);
      auto leadership = leadership_of(flags, addresses_.front().port());
      candidate_ = std::make_unique<rendezvous::Candidate>(
          io, std::move(listeners), std::move(options), std::move(leadership));
      return;
    }
    if (flags.peer) {
      auto listeners = bind(flags);
      auto pair = pair_of(flags, addresses_.front().port());
      pair_ = std::make_unique<rendezvous::Pair>(io, std::move(listeners), std::move(options),
                                                 std::move(pair));
      return;
    }
    std::optional<rendezvous::KeptJobs> kept;
    if (flags.state_directory) kept.emplace(*flags.state_directory, flags.durability);
    daemon_ =
        std::make_unique<rendezvous::Daemon>(io, bind(flags), std::move(options), std::move(kept));
  }

  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  std::vector<std::string> live_jobs() const {
    return (candidate_ ? candidate_->daemon() : pair_ ? pair_->daemon() : *daemon_).live_jobs();
  }
  // Another one goes on with them when this one ends.
  bool has_others() const { return candidate_ || (pair_ && pair_->is_mirrored()); }
  // Says to the other one what has to be said; then `done`.
  void stop(std::function<void()> done) const { pair_ ? pair_->stop(std::move(done)) : done(); }

 private:
  std::vector<UniqueFd> bind(const DaemonFlags& flags) {
    auto listeners = flags.listen.host.empty() ? rendezvous::bind_everywhere(flags.listen.port)
                                               : rendezvous::bind_endpoint(flags.listen);
    for (const UniqueFd& listener : listeners) addresses_.push_back(local_address(listener.get()));
    return listeners;
  }

  std::vector<SocketAddress> addresses_;
  // One of them.
  std::unique_ptr<rendezvous::Daemon> daemon_;
  std::unique_ptr<rendezvous::Candidate> candidate_;
  std::unique_ptr<rendezvous::Pair> pair_;
};

int serve(const DaemonFlags& flags) {
  boost::asio::io_context io(1);
  boost::asio::signal_set signals(io, SIGTERM, SIGINT, SIGQUIT);
  boost::asio::signal_set outlived(io, SIGHUP, SIGUSR1, SIGUSR2);
  outlive_signals(outlived);
  const Served served(io, flags);
  signals.async_wait([&](boost::system::error_code error, int number) {
    if (error) return;
    say_end(number, served.live_jobs(), flags, served.has_others());
    served.stop([&io] { io.stop(); });
  });
  // Said when all is in place: who waits for this line may connect, or end us, from then on.
  for (const SocketAddress& address : served.addresses()) {
    log_info("listening on ", address.text());
    if (!address.is_loopback()) say_who_can_come_in(address, flags);
  }
  io.run();
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace

int main(int argc, char** argv) {
  security::wipe_what_is_freed();
  open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more must not end the jobs
  const rendezvous::CommandLine asked = rendezvous::parse_command_line(argc, argv);
  if (!asked.flags) return asked.exit_status;
  set_up_log(asked.flags->verbose);
  try {
    return serve(*asked.flags);
  } catch (const Error& error) {
    return fail(error.what(), exit_code_for(error.code()));
  } catch (const std::exception& error) {
    return fail("internal error: " + std::string(error.what()), ExitCode::kInternal);
  }
}
